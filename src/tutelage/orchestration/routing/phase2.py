"""Phase 2: the routing of workflows, from a table of outcomes to a checkpoint and a table.

`train_phase2` is the whole of it: read or simulate outcomes, split them, fit the predictor, train
the model selector where PPO is asked for, pick the checkpoint on validation, fit the predictor
again on all rows, and touch the test workflows once. Held-out outcomes of their own are routed by
what is shipped; a test that was cut from the table by the predictor that has not seen it. Every
draw comes from the seed tree and every update starts from what `checkpoint_last.pth` holds, so a
run that was killed goes on bit for bit. `policy.py` has the model; `settings.py` the keys.
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
    with_skills,
)
from tutelage.orchestration.data.synthetic_outcomes import simulate_outcomes
from tutelage.orchestration.execution.worker_files import WORKERS, worker_to
from tutelage.orchestration.plan.dag import is_valid_dag
from tutelage.orchestration.planner import saving
from tutelage.orchestration.routing.choosers import (
    greedy,
    node_utility,
    policy_chooser,
    run_chooser,
)
from tutelage.orchestration.routing.evaluation import POLICY, RouterEvaluation, evaluate_routers
from tutelage.orchestration.routing.learning import clone_oracle, collect, ppo_update
from tutelage.orchestration.routing.phase2_data import Phase2Data
from tutelage.orchestration.routing.policy import ModelSelector
from tutelage.orchestration.routing.predictor import OutcomePredictor
from tutelage.orchestration.routing.report import write_report
from tutelage.orchestration.routing.settings import Phase2Settings
from tutelage.orchestration.routing.simulator import SimulationResult
from tutelage.orchestration.routing.workflows import QueryTable, Scenario, WorkflowBatch
from tutelage.seeds import SeedTree
from tutelage.tasks.overlap import listed

BEST, LAST = "checkpoint_best.pth", "checkpoint_last.pth"
SIMULATED = 2400
"""Queries of the table that is simulated where none is given."""
CLONED = "behaviour cloning"

Line = dict[str, Any]
Log = Callable[[Mapping[str, Any]], None]
"""Takes a line of metrics: `phase`, `step`, `tick`, and numbers by the published names."""
Record = Callable[[str, int, QueryTable, WorkflowBatch, SimulationResult], None]
"""Takes workflows that were run: under a label (empty in training), after this number of
updates."""
GREEDILY, ROUTED = "phase2/greedy", "phase2/routed"
"""Labels of test workflows, as the greedy router and as the shipped one ran them."""
TOLD = 200
"""Test workflows that `record` gets."""
GROUPS = 25
"""Groups of test queries, between which workflows share none."""


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
    record: Record | None = None,
) -> Phase2Result:
    """Learn to route; writes checkpoints, `phase2.json`, a report and plots to `output`.

    Outcomes come from `table`, from the files `outcomes` and `models`, or are simulated.
    `test_outcomes` are held out: no fit sees them; without them a part of the table is held out
    until the router is measured. `checkpoint` is that of phase 1, which then travels in phase 2's
    own, or one of phase 2, whose weights are the start. `resume` goes on from `output`. Raises
    `DataError` for files, `RunError` for checkpoints that do not fit, `ConfigError` for settings.
    A reward that puts something else above doing the work is told to `warn`, by default as a Python
    warning; `record` takes workflows with what was decided in them.
    """
    check_given("output", output, (str, Path), "a folder", RunError)
    check_given("settings", settings, (Phase2Settings, NoneType), "Phase2Settings(...)")
    settings, scenario = settings or Phase2Settings(), scenario or Scenario()
    seeds, folder = SeedTree(seed).child("phase2"), Path(output)
    table = _table(outcomes, models, seeds) if table is None else table
    earlier = _earlier(checkpoint, settings)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(test_outcomes, (str, Path)):
        test_outcomes = read_test_outcomes(test_outcomes, models, table, seeds)
    world = Phase2Data.of(table, scenario, settings, seeds, test_outcomes)
    warning = _warned(world, seeds, warn or partial(warnings.warn, stacklevel=3))
    message = _fingerprint(table, settings, scenario, seed)
    run = _Phase2Training(folder, world, settings, seeds, earlier, message, log, record)
    (run.restore if resume else run.begin)()
    while run.progress.update < settings.updates:
        run.update()
    model, progress, shipped = run.best_model(), run.progress, world.refitted(seeds)
    run.ship(model, shipped)
    evaluation = None
    if evaluate:
        evaluation = run.evaluate(model, shipped)
        write_report(folder, evaluation, progress.history, best_update=progress.best_update)
    return Phase2Result(
        checkpoint=folder / BEST,
        best_update=progress.best_update,
        val_reward=progress.best_reward,
        history=tuple(progress.history),
        evaluation=evaluation,
        model=model,
        world=world,
        warning=warning,
    )


def _warned(world: Phase2Data, seeds: SeedTree, tell: Callable[[str], None]) -> str | None:
    """Tell what is wrong with the data and with the reward; returns the latter."""
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
    warning = world.reward_warning(seeds)
    if warning is not None:
        tell(warning)
    return warning


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
    record: Record | None
    progress: _Progress = field(default_factory=_Progress)

    def __post_init__(self) -> None:
        self.model = ModelSelector(self.seeds.child("model").value(31))
        if self.phase1 is not None and "router" in self.phase1:
            self.model.load_state_dict(self.phase1["model_state_dict"])
            self.phase1 = self.phase1["phase1"]
        self.optimizer = torch.optim.Adam(self._groups())
        size, place = self.settings.val_workflows, self.seeds.child("val")
        self.val_flows = WorkflowBatch.draw(self.world.val, size, place)

    def _groups(self) -> list[dict[str, Any]]:
        return self.model.parameter_groups(self.settings.learning_rate)

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
        for group, first in zip(self.optimizer.param_groups, self._groups(), strict=True):
            group["lr"] = left * first["lr"]
        place, terms = seeds.child("actions"), self.world.terms
        batch = collect(self.world.train, flows, terms, self.model, place)
        outcome, matrices = batch.outcome, flows.parents_BNN.astype(int).tolist()
        if self.record is not None:
            self.record("", number + 1, self.world.train, flows, outcome)
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
        terms = self.world.terms
        outcome = run_chooser(
            self.world.val, self.val_flows, terms, policy_chooser(self.model, terms)
        )
        reward = float(outcome.reward_B.mean())
        line["val_reward"], line["val_loss"] = reward, -reward
        line["val_success"] = float(outcome.success_B.mean())
        line["val_workflows"] = len(self.val_flows)
        if reward > self.progress.best_reward:
            self.progress.best_reward = reward
            self.progress.best_update = self.progress.update
            self._save(BEST)

    def _tell(self, line: Line, *, save: bool) -> None:
        self.progress.history.append(line)
        if self.log is not None:
            self.log(line)
        if save:
            self._save(LAST)

    def _save(self, name: str) -> None:
        """Write a checkpoint; a kill leaves the one before."""
        state: dict[str, Any] = {
            "epoch": self.progress.update,
            "model_state_dict": self.model.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
            "val_loss": -self.progress.best_reward,
            "fingerprint": self.fingerprint,
        }
        if name == LAST:
            state["progress"] = json.dumps(asdict(self.progress))
        else:
            state |= self._router(self.world.train.predictor)
        saving.write(self.folder / name, state, keep_previous=name == LAST)

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

    def ship(self, model: ModelSelector, predictor: OutcomePredictor) -> None:
        """Write the chosen weights with the predictor of all rows, and its workers as a file."""
        state = read_checkpoint(self.folder / BEST)
        state |= {"model_state_dict": model.state_dict(), **self._router(predictor)}
        saving.write(self.folder / BEST, state)
        rows = [worker_to(worker) for worker in with_skills(self.world.known)]
        text = json.dumps({"workers": rows}, indent=1, ensure_ascii=False) + "\n"
        (self.folder / WORKERS).write_text(text, encoding="utf-8")

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

    def best_model(self) -> ModelSelector:
        """The model that validation picked."""
        state = read_checkpoint(self.folder / BEST)
        model = ModelSelector()
        model.load_state_dict(state["model_state_dict"])
        return model

    def evaluate(self, model: ModelSelector, shipped: OutcomePredictor) -> RouterEvaluation:
        """The table of all routers, on test workflows; call it once, when the model is chosen."""
        world, terms, seeds = self.world, self.world.terms, self.seeds
        fitted = world.train.predictor
        predictor, known = (shipped, world.known) if world.apart else (fitted, world.train.table)
        query_table = QueryTable.of(world.test, predictor, world.train.scenario)
        size = self.settings.test_workflows
        flows = WorkflowBatch.draw(query_table, size, seeds.child("test"), GROUPS)
        trained = self.settings.algorithm == "PPO"
        models = {}
        if trained:
            models = {CLONED: clone_oracle(world.train, terms, seeds.child("clone")), POLICY: model}
        if self.record is not None:
            few = flows.take(np.arange(min(TOLD, len(flows))))
            own = policy_chooser(model, terms) if trained else greedy(terms)
            for label, choose in {GREEDILY: node_utility(terms), ROUTED: own}.items():
                outcome = run_chooser(query_table, few, terms, choose)
                self.record(label, self.settings.updates, query_table, few, outcome)
        return evaluate_routers(
            query_table, flows, terms, known, seeds.child("evaluation"), models,
            fitted if world.apart else None,
        )  # fmt: skip


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


def _earlier(checkpoint: str | Path | None, settings: Phase2Settings) -> dict[str, Any] | None:
    """The checkpoint that is gone on from. Raises `RunError` where its policy would be lost."""
    if checkpoint is None:
        return None
    state = read_checkpoint(checkpoint)
    if settings.algorithm == "lookahead" and state.get("router", {}).get("algorithm") == "PPO":
        raise RunError(
            f"{str(checkpoint)!r} holds a policy that PPO trained, and the lookahead has none; "
            "continue it with algorithm=PPO, or begin without that checkpoint"
        )
    return state


def _table(outcomes: str | Path | None, models: str | Path | None, seeds: SeedTree) -> OutcomeTable:
    if outcomes is None and models is None:
        return simulate_outcomes(SIMULATED, seeds)
    if outcomes is None or models is None:
        raise DataError(
            f"outcomes={outcomes!r} and models={models!r} go together: give a table of outcomes "
            "(--outcomes FILE) and the prices of its workers (--models FILE)"
        )
    return read_outcomes(outcomes, models, seeds)


def _fingerprint(
    table: OutcomeTable, settings: Phase2Settings, scenario: Scenario, seed: int
) -> str:
    """Changes with anything that the course of training depends on."""
    digest = hashlib.blake2b(digest_size=16)
    fields = (settings.model_dump(), asdict(scenario), seed, table.ids, table.names)
    digest.update(json.dumps(fields).encode())
    for values in (table.scores_QW, table.costs_QW, table.seconds_QW):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
