"""Phase 2: training and evaluation of the router on a table of outcomes.

`train_phase2` runs all steps: split the outcomes, fit the predictor, train the model selector if
the algorithm is PPO, select the checkpoint on validation workflows, refit the predictor on all
rows, and evaluate on test workflows once. Separate test outcomes are evaluated with the final
predictor; a test split of the table with the predictor of the training split. All random draws come
from the seed tree, and `checkpoint_last.pth` has the state after an update, so a resumed run gives
bit-identical results. `policy.py` has the model, `settings.py` the settings.

Routers are compared on the same workflows with paired differences. Success means correct answers,
not answers that passed a verifier. Test queries are divided into groups, and each workflow takes
its queries from one group. Workflows of a group share queries and are not independent, so
confidence intervals are clustered by group.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tutelage.errors import RunError
from tutelage.orchestration.data.outcomes import (
    Floats,
    OutcomeTable,
    estimate_skills,
    simulate_outcomes,
)
from tutelage.orchestration.execution.worker_files import WORKERS, worker_to_json
from tutelage.orchestration.plan.dag import is_valid_dag
from tutelage.orchestration.planner import saving
from tutelage.orchestration.routing.policy import (
    LOOKAHEAD,
    POLICY,
    ModelSelector,
    baselines,
    collect,
    greedy_policy,
    ppo_update,
)
from tutelage.orchestration.routing.predictor import OutcomePredictor
from tutelage.orchestration.routing.settings import Phase2Settings
from tutelage.orchestration.routing.simulator import (
    Chooser,
    Ints,
    QueryTable,
    RewardTerms,
    Scenario,
    WorkflowBatch,
    WorkflowSimulator,
    run_policy,
)
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import Difference, mean_interval, reliable_interval
from tutelage.tasks.overlap import find_overlap, format_list, hash_value

BEST, LAST = "checkpoint_best.pth", "checkpoint_last.pth"
SIMULATED = 2400
"""Number of queries of the simulated table that is used if no table is given."""
GROUPS = 25
"""Number of groups of test queries; workflows of different groups share no queries."""

_PROGRESS = ("best_update", "val_reward", "history")
"""Fields of `Phase2Result` that a checkpoint needs for a resume."""
Line = dict[str, Any]
Log = Callable[[Mapping[str, Any]], None]
"""Callback for a line of metrics: `phase`, `step`, `tick` and numbers by their published names."""


@dataclass(frozen=True, slots=True)
class Phase2Data:
    """Data of phase 2: training, validation and test tables, and reward settings."""

    train: QueryTable
    val: QueryTable
    test: OutcomeTable
    terms: RewardTerms
    known: OutcomeTable
    """The whole table, on which the final predictor is fitted."""
    apart: bool
    """True if the test rows are not part of `known`, so no predictor is fitted on them."""

    @staticmethod
    def from_table(
        table: OutcomeTable,
        scenario: Scenario,
        settings: Phase2Settings,
        seeds: SeedTree,
        test: OutcomeTable | None = None,
    ) -> Phase2Data:
        """Split an outcome table and fit a predictor on the training split. `test` has held-out
        outcomes; if None, a split of the table is held out."""
        train, val, own = table.split(seeds, held_out=test is None)
        predictor, support = OutcomePredictor.fit(train, seeds)
        return Phase2Data(
            QueryTable.from_table(train, predictor, scenario, support),
            QueryTable.from_table(val, predictor, scenario),
            own if test is None else test,
            RewardTerms(settings.reward, settings.weights, settings.max_steps_per_episode),
            table,
            test is not None,
        )

    @property
    def leaks(self) -> list[str]:
        """Ids of test queries whose text also occurs in the training data."""
        learned = self.known if self.apart else self.train.table
        found = find_overlap(learned.instructions, self.test.instructions, hash_value)
        return [self.test.ids[k] for k in found]


@dataclass(slots=True)
class Phase2Result:
    """Progress and result of a training run. Other output files are next to `checkpoint`."""

    checkpoint: Path
    world: Phase2Data
    model: ModelSelector
    best_update: int = 0
    val_reward: float = -float("inf")
    history: list[Line] = field(default_factory=list[Line])
    """One line of metrics per update, and one before the first update."""
    evaluation: RouterEvaluation | None = None


def train_phase2(
    output: str | Path,
    *,
    settings: Phase2Settings | None = None,
    scenario: Scenario | None = None,
    table: OutcomeTable | None = None,
    test_outcomes: OutcomeTable | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    evaluate: bool = True,
    log: Log | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> Phase2Result:
    """Train a router and write its checkpoints and `workers.json` to a folder.

    Outcomes are taken from `table` (see `read_outcomes`), or simulated for the default workers.
    `test_outcomes` are never used for fitting; without them, a part of the table is held out until
    the evaluation. `checkpoint` is a checkpoint of the planner of phase 1, which is copied into
    `checkpoint_best.pth`. `resume` continues the run in `output`, with the same arguments. `warn`
    is called before training if test queries occur in the training data, or if the reward of doing
    nothing is higher than that of a success. Raises `DataError` if the table is too small, and
    `RunError` if a checkpoint is invalid.
    """
    settings, scenario = settings or Phase2Settings(), scenario or Scenario()
    seeds, folder = SeedTree(seed).child("phase2"), Path(output)
    if table is None:
        table = simulate_outcomes(SIMULATED, seeds)
    earlier = None if checkpoint is None else read_checkpoint(checkpoint)
    phase1 = earlier and earlier.get("phase1", earlier)
    folder.mkdir(parents=True, exist_ok=True)
    world = Phase2Data.from_table(table, scenario, settings, seeds, test_outcomes)
    if leaks := world.leaks:
        warn(
            f"{len(leaks)} of {len(world.test)} test queries are also in the training data, word "
            f"for word: {format_list(leaks)}. Results on them are not held-out"
        )
    if settings.warning:
        warn(settings.warning)
    run = _Phase2Training(folder, world, settings, seeds, phase1, log)
    if resume:
        run.restore()
    else:  # the initial model is the first candidate for the best checkpoint
        run.end_update({"phase": "rl", "step": 0, "tick": 0}, validate=True)
    while len(run.result.history) <= settings.updates:
        run.update()
    return run.finish(evaluate=evaluate)


class _Phase2Training:
    """Training loop of phase 2, with model, optimizer and progress."""

    def __init__(
        self,
        folder: Path,
        data: Phase2Data,
        settings: Phase2Settings,
        seeds: SeedTree,
        phase1: Mapping[str, Any] | None,
        log: Log | None,
    ) -> None:
        self.folder, self.world, self.settings, self.seeds = folder, data, settings, seeds
        self.phase1, self.log = phase1, log
        self.model = ModelSelector(seeds.child("model").value(31))
        self.result = Phase2Result(folder / BEST, data, self.model)
        groups = self.model.parameter_groups(settings.learning_rate)
        self.rates = [group["lr"] for group in groups]
        self.optimizer = torch.optim.Adam(groups)
        self.val_flows = WorkflowBatch.draw(data.val, settings.val_workflows, seeds.child("val"))

    def update(self) -> None:
        """Run one update. Every `validate_every` updates, validate and write a checkpoint."""
        settings, number = self.settings, len(self.result.history) - 1
        seeds, terms, train = self.seeds.child("update", number), self.world.terms, self.world.train
        flows = WorkflowBatch.draw(train, settings.num_workflows(number), seeds.child("workflows"))
        left = 1.0 - number / settings.updates
        for group, first in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = left * first
        place = seeds.child("actions")
        batch = collect(train, flows, terms, self.model, place)
        outcome, matrices = batch.outcome, flows.parents_BNN.astype(int).tolist()
        line: Line = {
            "phase": "rl",
            "step": number + 1,
            "tick": number + 1,
            **ppo_update(self.model, self.optimizer, batch, settings, seeds),
            "train_reward": float(outcome.reward_B.mean()),
            "train_workflows": len(flows),
            "success_rate": float(outcome.success_B.mean()),
            "avg_cost": float(outcome.cost_B.mean()),
            "avg_latency": 1000.0 * float(outcome.now_B.mean()),
            "workflow_validity": float(np.mean([is_valid_dag(m) for m in matrices])),
        }
        done = number + 1
        due = done == settings.updates or done % settings.validate_every == 0
        self.end_update(line, validate=due)

    def end_update(self, metrics: Line, *, validate: bool) -> None:
        """Record and log metrics. If `validate` is True, also validate and write checkpoints."""
        result, world = self.result, self.world
        if validate:
            choose = greedy_policy(self.model, world.terms)
            outcome = run_policy(world.val, self.val_flows, world.terms, choose)
            reward = float(outcome.reward_B.mean())
            metrics["val_reward"], metrics["val_loss"] = reward, -reward
            metrics["val_success"] = float(outcome.success_B.mean())
            metrics["val_workflows"] = len(self.val_flows)
        better = validate and metrics["val_reward"] > result.val_reward
        if better:
            result.val_reward, result.best_update = metrics["val_reward"], metrics["step"]
        state = {
            "epoch": metrics["step"],
            "model_state_dict": self.model.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
            "val_loss": -result.val_reward,
        }
        if better:
            saving.write(self.folder / BEST, state | self._router_state(world.train.predictor))
        result.history.append(metrics)
        if self.log is not None:
            self.log(metrics)
        if validate:  # after a crash, training resumes from the last validation
            progress = {name: getattr(result, name) for name in _PROGRESS}
            state["progress"] = json.dumps(progress)
            saving.write(self.folder / LAST, state)

    def _router_state(self, predictor: OutcomePredictor) -> dict[str, Any]:
        """Return the router state for a checkpoint, without the model weights."""
        terms = self.world.terms
        return {
            "router": {
                "predictor": predictor.state_dict(),
                "reward": terms.preset,
                "weights": asdict(terms.weights),
                "algorithm": self.settings.algorithm,
            },
            "phase1": self.phase1,
        }

    def restore(self) -> None:
        """Restore the state of `checkpoint_last.pth`."""
        state = read_checkpoint(self.folder / LAST)
        self.model.load_state_dict(state["model_state_dict"])
        self.optimizer.load_state_dict(state["optimizer_state_dict"])
        for name, value in json.loads(state["progress"]).items():
            setattr(self.result, name, value)

    def finish(self, *, evaluate: bool) -> Phase2Result:
        """Write the final checkpoint (best weights, predictor fitted on all rows) and the file of
        workers. If `evaluate` is True, compare all routers on the test workflows."""
        world, settings, seeds = self.world, self.settings, self.seeds
        shipped, _ = OutcomePredictor.fit(world.known, seeds)
        state = read_checkpoint(self.folder / BEST)
        self.model.load_state_dict(state["model_state_dict"])
        saving.write(self.folder / BEST, state | self._router_state(shipped))
        rows = [worker_to_json(worker) for worker in estimate_skills(world.known)]
        text = json.dumps({"workers": rows}, indent=1, ensure_ascii=False) + "\n"
        (self.folder / WORKERS).write_text(text, encoding="utf-8")
        if evaluate:
            predictor, known = world.train.predictor, world.train.table
            if world.apart:
                predictor, known = shipped, world.known
            query_table = QueryTable.from_table(world.test, predictor, world.train.scenario)
            place = seeds.child("test")
            flows = WorkflowBatch.draw(query_table, settings.test_workflows, place, GROUPS)
            trained = settings.algorithm == "PPO"
            policy = greedy_policy(self.model, world.terms) if trained else None
            self.result.evaluation = evaluate_routers(
                query_table, flows, world.terms, known, policy
            )
        return self.result


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load a checkpoint of phase 1 or 2. Raises `RunError` if a required field is missing."""
    state = saving.read(path, RunError)
    needed = ("epoch", "model_state_dict", "optimizer_state_dict", "val_loss")
    if missing := [name for name in needed if name not in state]:
        raise RunError(
            f"{str(path)!r} has no field {missing[0]!r}; use a checkpoint of phase 1 or phase 2"
        )
    return state


# ------------------------------------------------------------------ evaluation


@dataclass(frozen=True, slots=True)
class RouterEvaluation:
    """Results of all routers on the same workflows, with paired reward differences."""

    router: str
    """Name of the router in the checkpoint."""
    outcomes: Mapping[str, WorkflowSimulator]
    """Finished simulation of all workflows, by router."""
    differences: Mapping[str, Difference]
    """Reward of `router` minus the reward of each other router."""

    def to_json(self) -> dict[str, Any]:
        """Return the differences, and one row of mean metrics per router (cost in USD, latency in
        seconds). Bounds of an interval are None if it cannot be computed."""
        rows: list[dict[str, Any]] = []
        for name, outcome in self.outcomes.items():
            low, high = _interval(outcome.reward_B, outcome.flows.group_B)
            means = {
                "success": outcome.success_B,
                "cost": outcome.cost_B,
                "latency": outcome.now_B,
                "reward": outcome.reward_B,
                "tries": outcome.steps_B,
            }
            row = {key: float(values.mean()) for key, values in means.items()}
            row |= {"workflows": len(outcome.flows), "reward_low": low, "reward_high": high}
            rows.append({"name": name, **_replace_nan(row)})
        differences = {name: _replace_nan(asdict(gap)) for name, gap in self.differences.items()}
        return {"router": self.router, "rows": rows, "differences": differences}


def _replace_nan(row: dict[str, Any]) -> dict[str, Any]:
    return {key: None if value != value else value for key, value in row.items()}


def evaluate_routers(
    query_table: QueryTable,
    workflows: WorkflowBatch,
    terms: RewardTerms,
    train: OutcomeTable,
    policy: Chooser | None,
) -> RouterEvaluation:
    """Compare the policy with all baselines on the same workflows, or the lookahead if `policy` is
    None. `train` has the outcomes used to fit the predictor."""
    choosers = baselines(train, terms)
    choosers |= {} if policy is None else {POLICY: policy}
    outcomes = {
        name: run_policy(query_table, workflows, terms, choose) for name, choose in choosers.items()
    }
    router = LOOKAHEAD if policy is None else POLICY
    mine_B = outcomes[router].reward_B
    differences = {
        name: paired_difference(outcome.reward_B, mine_B, workflows.group_B)
        for name, outcome in outcomes.items()
        if name != router
    }
    return RouterEvaluation(router, outcomes, differences)


def paired_difference(baseline_B: Floats, policy_B: Floats, group_B: Ints) -> Difference:
    """Return the mean of `policy_B - baseline_B`, with a 95 % interval clustered by group."""
    gap_B = policy_B - baseline_B
    signs = (int((gap_B > 0).sum()), int((gap_B < 0).sum()), int((gap_B == 0).sum()))
    return Difference(float(gap_B.mean()), *_interval(gap_B, group_B), *signs)


def _interval(value_B: Floats, group_B: Ints) -> tuple[float, float]:
    """Return the 95 % interval of a mean, clustered by group, or (NaN, NaN) if undefined."""
    tasks = [str(group) for group in group_B]
    return reliable_interval(mean_interval([float(v) for v in value_B], tasks), len({*tasks}))
