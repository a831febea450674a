"""Phase 2: the routing of workflows, from a table of outcomes to a checkpoint and a comparison.

`train_phase2` is the whole of it: split the outcomes, fit the predictor, train the model selector
where PPO is asked for, pick the checkpoint on validation, fit the predictor again on all rows, and
touch the test workflows once. Held-out outcomes of their own are routed by what is shipped; a test
that was cut from the table by the predictor that has not seen it. Every draw comes from the seed
tree and every update starts from what `checkpoint_last.pth` holds, so a run that was killed goes on
bit for bit.
`policy.py` has the model; `settings.py` the keys.

Routers are compared on the same workflows, so differences are paired. Success means right answers,
not passed ones. The queries of a test stand in groups and no workflow takes queries of two:
workflows of one group share queries and are no independent evidence, so intervals are those of the
groups.
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
    simulate_outcomes,
    with_skills,
)
from tutelage.orchestration.evaluation.rewards import ExecutionResult, compute_reward
from tutelage.orchestration.execution.worker_files import WORKERS, worker_to
from tutelage.orchestration.plan.dag import is_valid_dag
from tutelage.orchestration.planner import saving
from tutelage.orchestration.routing.policy import (
    LOOKAHEAD,
    POLICY,
    ModelSelector,
    baselines,
    collect,
    policy_chooser,
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
    run_chooser,
)
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import Difference, mean_interval, shown_interval
from tutelage.tasks.overlap import also_trained, content_of, listed

BEST, LAST = "checkpoint_best.pth", "checkpoint_last.pth"
SIMULATED = 2400
"""Queries of the table that is simulated where none is given."""
GROUPS = 25
"""Groups of test queries, between which workflows share none."""

_PROGRESS = ("best_update", "val_reward", "history")
"""What a resume needs beside the tensors."""
Line = dict[str, Any]
Log = Callable[[Mapping[str, Any]], None]
"""Takes a line of metrics: `phase`, `step`, `tick`, and numbers by the published names."""


@dataclass(frozen=True, slots=True)
class Phase2Data:
    """What phase 2 learns in: the tables of training and validation, the test rows, the reward."""

    train: QueryTable
    val: QueryTable
    test: OutcomeTable
    terms: RewardTerms
    known: OutcomeTable
    """All rows that may be learned from once the choices are made: the whole table."""
    apart: bool
    """Whether the test rows are no part of that table, so that no fit ever sees them."""

    @staticmethod
    def of(
        table: OutcomeTable,
        scenario: Scenario,
        settings: Phase2Settings,
        seeds: SeedTree,
        test: OutcomeTable | None = None,
    ) -> Phase2Data:
        """Split a table and learn to predict from its training part; `test` are held-out outcomes,
        without which a part of the table is held out."""
        train, val, own = table.split(seeds, held_out=test is None)
        predictor, support = OutcomePredictor.fit(train, seeds)
        return Phase2Data(
            QueryTable.of(train, predictor, scenario, support),
            QueryTable.of(val, predictor, scenario),
            own if test is None else test,
            RewardTerms(
                settings.reward,
                settings.weights,
                settings.prior,
                settings.max_steps_per_episode,
            ),
            table,
            test is not None,
        )

    @property
    def leaks(self) -> list[str]:
        """The test queries that are learned from as well, word for word."""
        learned = self.known if self.apart else self.train.table
        found = also_trained(learned.instructions, self.test.instructions, content_of)
        return [self.test.ids[k] for k in found]


@dataclass(slots=True)
class Phase2Result:
    """The outcome of a training, and until then where it stands; files lie beside `checkpoint`."""

    checkpoint: Path
    world: Phase2Data
    model: ModelSelector
    best_update: int = 0
    val_reward: float = -float("inf")
    history: list[Line] = field(default_factory=list[Line])
    """A line of metrics an update, and one before the first."""
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
    """Learn to route; writes `checkpoint_best.pth`, `checkpoint_last.pth` and `workers.json`.

    Outcomes are those of `table` (see `read_outcomes`), else simulated for the default workers.
    `test_outcomes` are held out: no fit sees them; without them a part of the table is held out
    until the router is measured. `checkpoint` has the planner of phase 1, which then travels in
    phase 2's own. `resume` goes on from `output`, with the same arguments. A reward
    under which doing nothing earns more than a success is said to `warn` before training begins.
    Raises `DataError` for a table that is too small, `RunError` for checkpoints that do not fit.
    """
    settings, scenario = settings or Phase2Settings(), scenario or Scenario()
    seeds, folder = SeedTree(seed).child("phase2"), Path(output)
    if table is None:
        table = simulate_outcomes(SIMULATED, seeds)
    earlier = None if checkpoint is None else read_checkpoint(checkpoint)
    phase1 = earlier and earlier.get("phase1", earlier)
    folder.mkdir(parents=True, exist_ok=True)
    world = Phase2Data.of(table, scenario, settings, seeds, test_outcomes)
    if leaks := world.leaks:
        warn(
            f"{len(leaks)} of {len(world.test)} test queries are learned from as well, word for "
            f"word: {listed(leaks)}. What is reached on them is not held-out"
        )
    example = ExecutionResult(True, dict.fromkeys("abc", "done"), 0.045, 1200.0)
    earned = compute_reward(example, weights=settings.weights)
    if settings.reward == "seed" and earned < 0:
        warn(
            f"a success for 0.045 USD in 1.2 s earns {earned:.2f} under these weights, and doing "
            "nothing 0: set normalize: true, which measures cost and latency as shares, or change "
            "the weights"
        )
    run = _Phase2Training(folder, world, settings, seeds, phase1, log)
    if resume:
        run.restore()
    else:  # what training starts from is the first candidate for the best
        run.end_update({"phase": "rl", "step": 0, "tick": 0}, validate=True)
    while len(run.result.history) <= settings.updates:
        run.update()
    return run.ship(evaluate=evaluate)


class _Phase2Training:
    """One training: the model, its optimizer, and where it stands."""

    def __init__(
        self,
        folder: Path,
        world: Phase2Data,
        settings: Phase2Settings,
        seeds: SeedTree,
        phase1: Mapping[str, Any] | None,
        log: Log | None,
    ) -> None:
        self.folder, self.world, self.settings, self.seeds = folder, world, settings, seeds
        self.phase1, self.log = phase1, log
        self.model = ModelSelector(seeds.child("model").value(31))
        self.result = Phase2Result(folder / BEST, world, self.model)
        groups = self.model.parameter_groups(settings.learning_rate)
        self.rates = [group["lr"] for group in groups]
        self.optimizer = torch.optim.Adam(groups)
        self.val_flows = WorkflowBatch.draw(world.val, settings.val_workflows, seeds.child("val"))

    def update(self) -> None:
        """Make one update, and now and then a validation with its checkpoint."""
        settings, number = self.settings, len(self.result.history) - 1
        seeds, terms, train = self.seeds.child("update", number), self.world.terms, self.world.train
        flows = WorkflowBatch.draw(train, settings.workflows_of(number), seeds.child("workflows"))
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

    def end_update(self, line: Line, *, validate: bool) -> None:
        """Validate, keep the best, tell the metrics, and write where training stands."""
        result, world = self.result, self.world
        if validate:
            choose = policy_chooser(self.model, world.terms)
            outcome = run_chooser(world.val, self.val_flows, world.terms, choose)
            reward = float(outcome.reward_B.mean())
            line["val_reward"], line["val_loss"] = reward, -reward
            line["val_success"] = float(outcome.success_B.mean())
            line["val_workflows"] = len(self.val_flows)
        better = validate and line["val_reward"] > result.val_reward
        if better:
            result.val_reward, result.best_update = line["val_reward"], line["step"]
        state = {
            "epoch": line["step"],
            "model_state_dict": self.model.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
            "val_loss": -result.val_reward,
        }
        if better:
            saving.write(self.folder / BEST, state | self._router(world.train.predictor))
        result.history.append(line)
        if self.log is not None:
            self.log(line)
        if validate:  # a kill leaves the checkpoint before
            progress = {name: getattr(result, name) for name in _PROGRESS}
            state["progress"] = json.dumps(progress)
            saving.write(self.folder / LAST, state)

    def _router(self, predictor: OutcomePredictor) -> dict[str, Any]:
        """Return what a router is made of again, beside its weights."""
        terms = self.world.terms
        return {
            "router": {
                "predictor": predictor.state_dict(),
                "reward": terms.preset,
                "weights": asdict(terms.weights),
                "prior": terms.prior,
                "algorithm": self.settings.algorithm,
            },
            "task_types": list(dict.fromkeys(self.world.known.types)),
            "phase1": self.phase1,
        }

    def restore(self) -> None:
        """Take over `checkpoint_last.pth`."""
        state = read_checkpoint(self.folder / LAST)
        self.model.load_state_dict(state["model_state_dict"])
        self.optimizer.load_state_dict(state["optimizer_state_dict"])
        for name, value in json.loads(state["progress"]).items():
            setattr(self.result, name, value)

    def ship(self, *, evaluate: bool) -> Phase2Result:
        """Write the weights that validation picked with the predictor of all rows, and its workers
        as a file; compare all routers on test workflows where that is wanted."""
        world, settings, seeds = self.world, self.settings, self.seeds
        shipped, _ = OutcomePredictor.fit(world.known, seeds)
        state = read_checkpoint(self.folder / BEST)
        self.model.load_state_dict(state["model_state_dict"])
        saving.write(self.folder / BEST, state | self._router(shipped))
        rows = [worker_to(worker) for worker in with_skills(world.known)]
        text = json.dumps({"workers": rows}, indent=1, ensure_ascii=False) + "\n"
        (self.folder / WORKERS).write_text(text, encoding="utf-8")
        if evaluate:
            predictor, known = world.train.predictor, world.train.table
            if world.apart:
                predictor, known = shipped, world.known
            query_table = QueryTable.of(world.test, predictor, world.train.scenario)
            place = seeds.child("test")
            flows = WorkflowBatch.draw(query_table, settings.test_workflows, place, GROUPS)
            trained = settings.algorithm == "PPO"
            policy = policy_chooser(self.model, world.terms) if trained else None
            self.result.evaluation = evaluate_routers(
                query_table, flows, world.terms, known, policy
            )
        return self.result


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return a checkpoint of either phase. Raises `RunError` unless it has the published fields."""
    state = saving.read(path, RunError)
    needed = ("epoch", "model_state_dict", "optimizer_state_dict", "val_loss")
    if missing := [name for name in needed if name not in state]:
        raise RunError(
            f"the checkpoint {str(path)!r} has no {missing[0]!r}; give one of phase 1 or phase 2"
        )
    return state


# ------------------------------------------------------------------ the comparison


@dataclass(frozen=True, slots=True)
class RouterEvaluation:
    """Routers on the same workflows, and the paired differences of their rewards."""

    router: str
    """The router that is shipped."""
    outcomes: Mapping[str, WorkflowSimulator]
    """By router, all workflows at their end."""
    differences: Mapping[str, Difference]
    """The shipped router's reward less that of each other one."""

    def to_json(self) -> dict[str, Any]:
        """Return a row a router, with means over workflows: costs in USD, latencies in seconds; and
        the differences. Ends of intervals are None if there is no interval."""
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
            rows.append({"name": name, **_without_nan(row)})
        differences = {name: _without_nan(asdict(gap)) for name, gap in self.differences.items()}
        return {"router": self.router, "rows": rows, "differences": differences}


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    return {key: None if value != value else value for key, value in row.items()}


def evaluate_routers(
    query_table: QueryTable,
    flows: WorkflowBatch,
    terms: RewardTerms,
    train: OutcomeTable,
    policy: Chooser | None,
) -> RouterEvaluation:
    """Run all baselines and the trained policy, which is the shipped router, on the same workflows;
    without one the lookahead is. `train` are the outcomes that the predictor was fitted on."""
    choosers = baselines(train, terms)
    choosers |= {} if policy is None else {POLICY: policy}
    outcomes = {
        name: run_chooser(query_table, flows, terms, choose) for name, choose in choosers.items()
    }
    router = LOOKAHEAD if policy is None else POLICY
    mine_B = outcomes[router].reward_B
    differences = {
        name: paired_difference(outcome.reward_B, mine_B, flows.group_B)
        for name, outcome in outcomes.items()
        if name != router
    }
    return RouterEvaluation(router, outcomes, differences)


def paired_difference(theirs_B: Floats, mine_B: Floats, group_B: Ints) -> Difference:
    """Return the mean of mine less theirs over workflows, with the interval of their groups."""
    gap_B = mine_B - theirs_B
    signs = (int((gap_B > 0).sum()), int((gap_B < 0).sum()), int((gap_B == 0).sum()))
    return Difference(float(gap_B.mean()), *_interval(gap_B, group_B), *signs)


def _interval(value_B: Floats, group_B: Ints) -> tuple[float, float]:
    """Return the 95 % interval of a mean clustered by group; two NaN if there is none."""
    tasks = [str(group) for group in group_B]
    return shown_interval(mean_interval([float(v) for v in value_B], tasks), len({*tasks}))
