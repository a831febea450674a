"""Phase 2: the routing of workflows, from a table of outcomes to a checkpoint and a comparison.

`train_phase2` is the whole of it: read or simulate outcomes, split them, fit the predictor, train
the model selector where PPO is asked for, pick the checkpoint on validation, fit the predictor
again on all rows, and touch the test workflows once. Held-out outcomes of their own are routed by
what is shipped; a test that was cut from the table by the predictor that has not seen it. Before
training it is checked whether the reward wants what it should: under one where a router that knows
every outcome does not rank first, training teaches something else. Every draw comes from the seed
tree and every update starts from what `checkpoint_last.pth` holds, so a run that was killed goes on
bit for bit. `policy.py` has the model; `settings.py` the keys.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch

from tutelage.errors import DataError, RunError, check_given
from tutelage.orchestration.data.outcomes import (
    OutcomeTable,
    read_outcomes,
    read_test_outcomes,
    simulate_outcomes,
    with_skills,
)
from tutelage.orchestration.execution.worker_files import WORKERS, worker_to
from tutelage.orchestration.plan.dag import is_valid_dag
from tutelage.orchestration.planner import saving
from tutelage.orchestration.routing.contract import (
    ORACLE,
    POLICY,
    RouterEvaluation,
    baselines,
    evaluate_routers,
    oracle,
)
from tutelage.orchestration.routing.policy import (
    ModelSelector,
    collect,
    policy_chooser,
    ppo_update,
)
from tutelage.orchestration.routing.predictor import OutcomePredictor
from tutelage.orchestration.routing.settings import Phase2Settings
from tutelage.orchestration.routing.simulator import RewardTerms, run_chooser
from tutelage.orchestration.routing.workflows import (
    QueryTable,
    Scenario,
    WorkflowBatch,
    able_workers,
)
from tutelage.seeds import SeedTree
from tutelage.tasks.overlap import also_trained, content_of, listed

BEST, LAST = "checkpoint_best.pth", "checkpoint_last.pth"
SIMULATED = 2400
"""Queries of the table that is simulated where none is given."""
JUDGED = 400
"""Validation workflows by which a reward is judged."""
GROUPS = 25
"""Groups of test queries, between which workflows share none."""

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
        terms = RewardTerms(
            settings.reward, settings.weights, scenario.rates, settings.prior,
            settings.max_steps_per_episode,
        )  # fmt: skip
        return Phase2Data(
            QueryTable.of(train, predictor, scenario, support),
            QueryTable.of(val, predictor, scenario),
            own if test is None else test,
            terms,
            table,
            test is not None,
        )

    @property
    def leaks(self) -> list[str]:
        """The test queries that are learned from as well, word for word."""
        learned = self.known if self.apart else self.train.table
        found = also_trained(learned.instructions, self.test.instructions, content_of)
        return [self.test.ids[k] for k in found]

    @property
    def unmeasured(self) -> str:
        """The workers that were not asked for some types that they can do, in the training rows."""
        table = self.train.table
        types, kinds = np.array(table.types), sorted(set(table.types))
        able = {kind: np.array(able_workers(table.workers, kind)) for kind in kinds}
        lost_W = sum((able[k] & ~table.known_QW[types == k].any(axis=0)).astype(int) for k in kinds)
        counts = zip(table.names, np.atleast_1d(lost_W), strict=True)
        return ", ".join(f"{name} at {lost} of {len(kinds)} types" for name, lost in counts if lost)

    def reward_warning(self, seeds: SeedTree) -> str | None:
        """What is wrong with training under this reward; None when nothing was found."""
        flows = WorkflowBatch.draw(self.val, JUDGED, seeds.child("judged"))
        terms = self.terms
        rules = baselines(self.train.table, terms, seeds.child("random"))
        judged = ("random", "cheapest", "fastest", "most accurate")
        choosers = {ORACLE: oracle(terms), **{name: rules[name] for name in judged}}
        means = {
            name: float(run_chooser(self.val, flows, terms, choose).reward_B.mean())
            for name, choose in choosers.items()
        }
        means["doing nothing"] = 0.0
        best = max(means, key=means.__getitem__)
        if best == ORACLE:
            return None
        return (
            f"under the reward {terms.preset!r} with {terms.weights!r}, {best!r} earns "
            f"{means[best]:.3f} and a router that knows every outcome {means[ORACLE]:.3f}: "
            "training will not teach to do the work; set normalize: true, which measures cost and "
            "latency as shares, or change the weights"
        )


@dataclass(slots=True)
class _Progress:
    """Where training stands; with the tensors this is all that a resume needs."""

    update: int = 0
    """Updates that are done."""
    best_update: int = 0
    best_reward: float = -float("inf")
    history: list[Line] = field(default_factory=list[Line])


@dataclass(frozen=True, slots=True)
class Phase2Result:
    """What training found; files lie beside `checkpoint`."""

    checkpoint: Path
    best_update: int
    val_reward: float
    history: tuple[Line, ...]
    evaluation: RouterEvaluation | None
    model: ModelSelector
    world: Phase2Data
    warning: str | None
    """What is wrong with the reward; None when nothing was found."""


def train_phase2(
    output: str | Path,
    *,
    settings: Phase2Settings | None = None,
    scenario: Scenario | None = None,
    outcomes: str | Path | None = None,
    models: str | Path | None = None,
    table: OutcomeTable | None = None,
    test_outcomes: str | Path | OutcomeTable | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    evaluate: bool = True,
    log: Log | None = None,
    warn: Callable[[str], None] | None = None,
) -> Phase2Result:
    """Learn to route; writes `checkpoint_best.pth`, `checkpoint_last.pth` and `workers.json`.

    Outcomes come from `table`, from the files `outcomes` and `models`, or are simulated for the
    default workers. `test_outcomes` are held out: no fit sees them; without them a part of the
    table is held out until the router is measured. `checkpoint` is that of phase 1, which then
    travels in phase 2's own, or one of phase 2, whose weights are the start. `resume` goes on from
    `output`. A reward that puts something else above doing the work is said to `warn` before
    training begins, by default as a Python warning. Raises `DataError` for files, `RunError` for
    checkpoints that do not fit, `ConfigError` for settings.
    """
    check_given("output", output, (str, Path), "a folder", RunError)
    check_given("settings", settings, (Phase2Settings, NoneType), "Phase2Settings(...)")
    settings, scenario = settings or Phase2Settings(), scenario or Scenario()
    seeds, folder = SeedTree(seed).child("phase2"), Path(output)
    if table is None:
        if (outcomes is None) != (models is None):
            raise DataError(
                f"outcomes={outcomes!r} and models={models!r} go together: give a table of "
                "outcomes (--outcomes FILE) and the prices of its workers (--models FILE)"
            )
        if outcomes is None or models is None:
            table = simulate_outcomes(SIMULATED, seeds)
        else:
            table = read_outcomes(outcomes, models, seeds)
    earlier = None if checkpoint is None else read_checkpoint(checkpoint)
    old = {} if earlier is None else earlier.get("router", {})
    if settings.algorithm == "lookahead" and old.get("algorithm") == "PPO":
        raise RunError(
            f"{str(checkpoint)!r} holds a policy that PPO trained, and the lookahead has none; "
            "continue it with algorithm=PPO, or begin without that checkpoint"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(test_outcomes, (str, Path)):
        test_outcomes = read_test_outcomes(test_outcomes, models, table, seeds)
    world = Phase2Data.of(table, scenario, settings, seeds, test_outcomes)
    tell = warn or partial(warnings.warn, stacklevel=2)
    if leaks := world.leaks:
        tell(
            f"{len(leaks)} of {len(world.test)} test queries are learned from as well, word for "
            f"word: {listed(leaks)}. What is reached on them is not held-out"
        )
    if unmeasured := world.unmeasured:
        tell(
            f"no outcome to learn from of {unmeasured}: a worker's share of right answers at all "
            "types stands in for it"
        )
    if warning := world.reward_warning(seeds):
        tell(warning)
    # Changes with anything that the course of training depends on.
    digest = hashlib.blake2b(digest_size=16)
    fields = (settings.model_dump(), asdict(scenario), seed, table.ids, table.names)
    digest.update(json.dumps(fields).encode())
    for values in (table.scores_QW, table.costs_QW, table.seconds_QW):
        digest.update(np.ascontiguousarray(values).tobytes())
    run = _Phase2Training(folder, world, settings, seeds, earlier, digest.hexdigest(), log)
    (run.restore if resume else run.begin)()
    while run.progress.update < settings.updates:
        run.update()
    model, shipped = run.ship()
    progress = run.progress
    return Phase2Result(
        checkpoint=folder / BEST,
        best_update=progress.best_update,
        val_reward=progress.best_reward,
        history=tuple(progress.history),
        evaluation=run.evaluate(model, shipped) if evaluate else None,
        model=model,
        world=world,
        warning=warning,
    )


@dataclass
class _Phase2Training:
    """One training: the model, its optimizer, and where it stands."""

    folder: Path
    world: Phase2Data
    settings: Phase2Settings
    seeds: SeedTree
    phase1: Mapping[str, Any] | None
    """The checkpoint it starts from; then what that has of phase 1."""
    fingerprint: str
    log: Log | None
    progress: _Progress = field(default_factory=_Progress)

    def __post_init__(self) -> None:
        self.model = ModelSelector(self.seeds.child("model").value(31))
        if self.phase1 is not None and "router" in self.phase1:
            self.model.load_state_dict(self.phase1["model_state_dict"])
            self.phase1 = self.phase1["phase1"]
        self.groups = self.model.parameter_groups(self.settings.learning_rate)
        self.rates = [group["lr"] for group in self.groups]
        self.optimizer = torch.optim.Adam(self.groups)
        size, place = self.settings.val_workflows, self.seeds.child("val")
        self.val_flows = WorkflowBatch.draw(self.world.val, size, place)

    def begin(self) -> None:
        """Validate what training starts from: it is the first candidate for the best."""
        line: Line = {"phase": "rl", "step": 0, "tick": 0}
        self._validate(line)
        self._tell(line, save=True)

    def update(self) -> None:
        """One update, and now and then a validation with its checkpoint."""
        settings, number = self.settings, self.progress.update
        seeds = self.seeds.child("update", number)
        flows = WorkflowBatch.draw(
            self.world.train, settings.workflows_of(number), seeds.child("workflows")
        )
        left = 1.0 - number / settings.updates
        for group, first in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = left * first
        place, terms = seeds.child("actions"), self.world.terms
        batch = collect(self.world.train, flows, terms, self.model, place)
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
            "avg_latency": 1000.0 * float(outcome.latency_B.mean()),
            "workflow_validity": float(np.mean([is_valid_dag(m) for m in matrices])),
        }
        self.progress.update = number + 1
        due = (number + 1) % settings.validate_every == 0 or number + 1 == settings.updates
        if due:
            self._validate(line)
        self._tell(line, save=due)

    def _validate(self, line: Line) -> None:
        choose = policy_chooser(self.model, self.world.terms)
        outcome = run_chooser(self.world.val, self.val_flows, self.world.terms, choose)
        reward = float(outcome.reward_B.mean())
        line["val_reward"], line["val_loss"] = reward, -reward
        line["val_success"] = float(outcome.success_B.mean())
        line["val_workflows"] = len(self.val_flows)
        if reward > self.progress.best_reward:
            self.progress.best_reward = reward
            self.progress.best_update = self.progress.update
            state = self._state() | self._router(self.world.train.predictor)
            saving.write(self.folder / BEST, state)

    def _tell(self, line: Line, *, save: bool) -> None:
        self.progress.history.append(line)
        if self.log is not None:
            self.log(line)
        if save:  # a kill leaves the checkpoint before
            state = self._state() | {"progress": json.dumps(asdict(self.progress))}
            saving.write(self.folder / LAST, state)

    def _state(self) -> dict[str, Any]:
        """The published fields of a checkpoint."""
        return {
            "epoch": self.progress.update,
            "model_state_dict": self.model.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
            "val_loss": -self.progress.best_reward,
            "fingerprint": self.fingerprint,
        }

    def _router(self, predictor: OutcomePredictor) -> dict[str, Any]:
        """What a router is made of again, beside its weights."""
        terms = self.world.terms
        return {
            "router": {
                "predictor": predictor.state_dict(),
                "reward": terms.preset,
                "weights": asdict(terms.weights),
                "prior": terms.prior,
                "rates": asdict(terms.rates),
                "max_tries": self.world.train.max_tries,
                "algorithm": self.settings.algorithm,
            },
            "task_types": list(dict.fromkeys(self.world.known.types)),
            "phase1": self.phase1,
        }

    def ship(self) -> tuple[ModelSelector, OutcomePredictor]:
        """Write the weights that validation picked with the predictor of all rows, and its workers
        as a file; returns both."""
        predictor, _ = OutcomePredictor.fit(self.world.known, self.seeds)
        state, model = read_checkpoint(self.folder / BEST), ModelSelector()
        model.load_state_dict(state["model_state_dict"])
        saving.write(self.folder / BEST, state | self._router(predictor))
        rows = [worker_to(worker) for worker in with_skills(self.world.known)]
        text = json.dumps({"workers": rows}, indent=1, ensure_ascii=False) + "\n"
        (self.folder / WORKERS).write_text(text, encoding="utf-8")
        return model, predictor

    def restore(self) -> None:
        """Take over `checkpoint_last.pth`. Raises `RunError` when it is of another run."""
        path = self.folder / LAST
        state = read_checkpoint(path)
        if state["fingerprint"] != self.fingerprint:
            raise RunError(
                f"{str(path)!r} is of a run with other outcomes, settings or seed; resume with "
                "those, or start again in another folder"
            )
        self.model.load_state_dict(state["model_state_dict"])
        self.optimizer.load_state_dict(state["optimizer_state_dict"])
        self.progress = _Progress(**json.loads(state["progress"]))

    def evaluate(self, model: ModelSelector, shipped: OutcomePredictor) -> RouterEvaluation:
        """The table of all routers, on test workflows; call it once, when the model is chosen."""
        world, seeds = self.world, self.seeds
        predictor, known = world.train.predictor, world.train.table
        if world.apart:
            predictor, known = shipped, world.known
        query_table = QueryTable.of(world.test, predictor, world.train.scenario)
        flows = WorkflowBatch.draw(
            query_table, self.settings.test_workflows, seeds.child("test"), GROUPS
        )
        trained = self.settings.algorithm == "PPO"
        policies = {POLICY: partial(policy_chooser, model)} if trained else {}
        place = seeds.child("evaluation")
        return evaluate_routers(query_table, flows, world.terms, known, place, policies)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint of either phase. Raises `RunError` unless it has the published fields."""
    state = saving.read(path, RunError)
    needed = ("epoch", "model_state_dict", "optimizer_state_dict", "val_loss")
    missing = [name for name in needed if name not in state]
    if missing:
        raise RunError(
            f"the checkpoint {str(path)!r} has no {missing[0]!r}; give one of phase 1 or phase 2"
        )
    return state
