"""Training of a planner as a run: phase 1 trains the planner, phase 2 the router of workers.

    config.json                  the request
    metrics.jsonl                a line per epoch (phase1) and per update (phase2)
    checkpoints/phase1_best.pth  the planner; checkpoint_best.pth has the same content
    checkpoints/phase1_last.pth  training state of phase 1, until it ends
    phase2/                      the router
    store.db                     the run with its metrics, and the plans of the test set as rollouts
    result.json                  the results

A checkpoint is written after each epoch, so a killed run resumes with bit-identical results.
`setup.py` reads the data, `evaluation/metrics.py` evaluates, `runs/lifecycle.py` runs it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self

from tutelage.config.fields import RunSettings
from tutelage.orchestration.data.outcomes import OutcomeTable, read_tables
from tutelage.orchestration.evaluation.metrics import (
    SCORES,
    PlanScores,
    evaluate,
)
from tutelage.orchestration.execution.stored import make_call, make_rollout
from tutelage.orchestration.plan.dag import Plan, to_text
from tutelage.orchestration.planner import saving
from tutelage.orchestration.planner.fit import PlannerTrainer
from tutelage.orchestration.planner.settings import (
    RECIPE,
    PlannerConfig,
    PlannerTrainingSettings,
)
from tutelage.orchestration.routing.phase2 import LAST as LAST2
from tutelage.orchestration.routing.phase2 import read_checkpoint, train_phase2
from tutelage.orchestration.setup import PlannerDatasets, read_datasets
from tutelage.policy.machine import single_thread
from tutelage.runs.figures import Figures, Labels, RunFiles
from tutelage.runs.folder import RunFolder, trim_lines, write_json
from tutelage.runs.kinds import FINISHED, Phase, RunHeader, RunKind, load_settings, register
from tutelage.runs.lifecycle import Run
from tutelage.runs.loggers import check_loggers
from tutelage.runs.progress import Progress
from tutelage.seeds import SeedTree
from tutelage.types import JSON, Message, Reward, Rollout, Task

PHASE1, PHASE2 = "phase1", "phase2"
LAST = "phase1_last.pth"
PLANNED = "phase1/planner"
"""Label of the rollouts with plans of test workflows."""


@register
@dataclass
class PlannerTraining(RunKind):
    """Training run of a planner, with one or both phases. Phases resume from checkpoints."""

    name: ClassVar[str] = RECIPE
    model: ClassVar[type[RunSettings]] = PlannerConfig

    request: PlannerConfig
    settings: PlannerTrainingSettings = field(init=False)
    """Settings with defaults; set by `prepare`."""
    sets: PlannerDatasets | None = None
    """Workflows of phase 1; None if the run has no phase 1."""
    tables: tuple[OutcomeTable | None, OutcomeTable | None] = (None, None)
    """Outcomes of phase 2: for training, and held out."""
    last: Mapping[str, Any] | None = None
    """Training state of phase 1; None if it has not started or is complete."""
    _found: JSON = field(default_factory=dict[str, Any])
    _began: float = field(default_factory=time.monotonic)

    @classmethod
    def read(cls, folder: RunFolder, progress: Progress) -> Self:
        """Read the request of a run from its folder."""
        return cls(load_settings(folder, PlannerConfig))

    @classmethod
    def figures(cls, files: RunFiles) -> Figures:
        """Return the labels of the figures. Plans and simulated workflows have separate tables."""
        planned = files.settings.get("phase") != "2"
        return Figures(
            labels={"greedy": Labels("", PLANNED, PHASE1)} if planned else {},
            trained="orchestration",
            algorithm=RECIPE,
            base="planner network",
            base_mark="orchestration:planner network",
            grader="workflows",
            dollars=0.0,
            best=files.run.checkpoints,
            remark=f"a planner is scored on plans, not tasks: tutelage show {files.run.path}",
        )

    def prepare(self, folder: RunFolder, progress: Progress) -> None:
        """Read the datasets, and the training state if the run is resumed."""
        request = self.request
        self.settings = settings = request.check_options()
        check_loggers(settings.logger)
        if request.phase != "2":
            self.sets = read_datasets(request, settings.phase1_supervised)
        if request.phase != "1" and request.outcomes is not None and request.models is not None:
            seeds = SeedTree(request.seed).child(PHASE2)
            self.tables = read_tables(
                request.outcomes, request.models, request.test_outcomes, seeds
            )
        if not folder.config.is_file():
            return
        path = folder.checkpoints / LAST
        self.last = saving.read(path) if path.is_file() else None
        trim_lines(folder.metrics, _count_lines(folder, self.last))

    @property
    def head(self) -> RunHeader:
        """Header of the run, for the store, loggers and collector."""
        training = self.request.settings()
        return RunHeader(
            recipe=RECIPE,
            algorithm=RECIPE,
            settings=self.request,
            project=training.project_name,
            loggers=training.logger,
        )

    def open(self, run: Run) -> None:
        """Print the start message with the data, the learning rate and the reward."""
        rate = f"{self.settings.phase1_supervised.learning_rate:g}"
        facts = {} if self.sets is None else {**self.sets.facts, "learning rate": rate}
        if self.request.phase != "1":
            phase2 = self.settings.phase2_rl
            weights = ", ".join(
                f"{name} {value:g}" for name, value in asdict(phase2.weights).items()
            )
            facts["reward"] = f"{phase2.reward}: {weights}"
            if phase2.warning:  # before phase 1 is trained or a worker is paid
                facts["warning"] = phase2.warning
        run.progress.start("Planner", {**facts, "run": str(run.folder.path)})

    def phases(self) -> Sequence[Phase]:
        """Return the requested phases. Each phase resumes from its files."""
        asked: list[Phase] = [(PHASE1, self._run_phase1)] if self.sets is not None else []
        return asked if self.request.phase == "1" else [*asked, (PHASE2, self._run_phase2)]

    def result(self, status: str) -> JSON | None:
        """Return the results of the phases, or None if the run was stopped."""
        if status != FINISHED:
            return None
        asked = {"recipe": RECIPE, "phase": self.request.phase, "seed": self.request.seed}
        seconds = time.monotonic() - self._began
        return {**asked, **self._found, "status": status, "wall_seconds": seconds}

    # ------------------------------------------------------------ phase 1

    @single_thread()
    def _run_phase1(self, run: Run) -> None:
        folder, progress, sets = run.folder, run.progress, self.sets
        assert sets is not None
        done = folder.path / "phase1.json"
        if done.is_file() and (folder.checkpoints / saving.PHASE1).is_file():
            self._found[PHASE1] = json.loads(done.read_text(encoding="utf-8"))
            return
        phase, seeds = self.settings.phase1_supervised, SeedTree(self.request.seed).child("planner")
        fitting = PlannerTrainer(
            sets.train, sets.held_out, sets.catalog, phase, seeds.child(PHASE1)
        )
        tick, shown = 0, ""
        if self.last is not None:
            fitting.restore(dict(self.last["fit"]))
            tick = int(self.last["tick"])
            progress.note(f"resumed at epoch {fitting.at.epoch} of {fitting.at.stage}")
        while not fitting.done:
            stage = fitting.at.stage
            if stage != shown:
                message = "learning to plan" if stage == "search" else "learning from all"
                steps = fitting.at.epoch + fitting.epochs_left
                progress.phase(f"Phase 1: {message} (a step is an epoch)", steps=steps)
                shown = stage
            metrics = fitting.train_epoch()
            tick += 1
            refit = int(stage == "refit")
            run.log({"phase": PHASE1, "step": tick, "tick": tick, "refit": refit, **metrics})
            saving.write(folder.checkpoints / LAST, {"fit": fitting.get_state(), "tick": tick})
            done_epochs = tick if stage == "search" else fitting.at.epoch or fitting.at.best_epoch
            progress.step(done_epochs, metrics)
        at, model, remembered = fitting.at, fitting.model, fitting.remembered
        optimizer = fitting.optimizer.state_dict()
        content = saving.make_checkpoint(model, optimizer, at.best_epoch, at.best_loss)
        for name in (saving.PHASE1, saving.BEST):
            saving.write(folder.checkpoints / name, content)
        result: dict[str, Any] = {
            "epochs": at.best_epoch,
            "val_loss": at.best_loss,
            "validation": dict(fitting.at.best_metrics),
            "tools": len(model.catalog),
            "train_workflows": len(remembered),
        }
        if sets.test:
            progress.evaluation("test workflows", 0, len(sets.test))
            result["leaks"] = list(sets.leaks)
            result["test"], plans = evaluate(model, remembered, sets.test, seeds.child("bootstrap"))
            run.writer.submit(_make_rollouts(run.id, self.request.seed, at.best_epoch, plans, sets))
            progress.evaluation("test workflows", len(sets.test), len(sets.test))
        self._found[PHASE1] = result
        write_json(done, result)
        (folder.checkpoints / LAST).unlink(missing_ok=True)

    # ------------------------------------------------------------ phase 2

    @single_thread()
    def _run_phase2(self, run: Run) -> None:
        folder, progress, request = run.folder, run.progress, self.request
        place = folder.path / PHASE2
        own = folder.checkpoints / saving.PHASE1
        before = _count_phase1_lines(folder)
        phase = self.settings.phase2_rl
        progress.phase("Phase 2: learning to route", steps=phase.updates or None)

        def log(metrics: Mapping[str, Any]) -> None:
            run.log({**metrics, "phase": PHASE2, "tick": before + int(metrics["tick"])})
            numbers = {k: float(v) for k, v in metrics.items() if isinstance(v, (int, float))}
            progress.step(int(metrics["step"]), numbers)

        phase2_result = train_phase2(
            place,
            settings=phase,
            table=self.tables[0],
            test_outcomes=self.tables[1],
            seed=request.seed,
            checkpoint=request.checkpoint or (str(own) if own.is_file() else None),
            resume=(place / LAST2).is_file(),
            log=log,
            warn=lambda text: progress.note(f"Warning: {text}"),
        )
        evaluation = phase2_result.evaluation
        assert evaluation is not None
        self._found[PHASE2] = {
            "checkpoint": str(phase2_result.checkpoint.relative_to(folder.path)),
            "best_update": phase2_result.best_update,
            "val_reward": phase2_result.val_reward,
            "leaks": list(phase2_result.world.leaks),
            "evaluation": evaluation.to_json(),
        }


def _make_rollouts(
    run_id: str, seed: int, epoch: int, plans: Sequence[Plan], sets: PlannerDatasets
) -> list[Rollout]:
    """Convert the plans of the test set to rollouts. Each workflow is a task; the reward is its
    score."""
    scores, rollouts = PlanScores.score(plans, sets.test), list[Rollout]()
    for i, (plan, wanted) in enumerate(zip(plans, sets.test, strict=True)):
        parts = {name: float(getattr(scores, name)[i]) for name in SCORES}
        value = (parts["node_f1"] + parts["edge_f1"] + parts["exact_nodes"]) / 3
        place = SeedTree(seed).child("planner", "stored", PLANNED, i)
        fields = {"instruction": wanted.instruction, "expected": to_text(wanted.plan)}
        messages, answer = (Message("user", wanted.instruction),), to_text(plan)
        call = make_call(place.child("call", 0).id("call"), "planner", 0, messages, answer)
        task = Task(wanted.name or f"test-{i}", fields)
        rollouts.append(
            make_rollout(
                place,
                run_id,
                task,
                PLANNED,
                step=epoch,
                calls=(call,),
                answer=answer,
                reward=Reward(value, parts),
            )
        )
    return rollouts


def _count_phase1_lines(folder: RunFolder) -> int:
    """Return the number of metrics lines of phase 1, or 0 if it is incomplete."""
    if not (folder.path / "phase1.json").is_file():
        return 0
    return sum(line.get("phase") == PHASE1 for line in folder.read_metrics())


def _count_lines(folder: RunFolder, state: Mapping[str, Any] | None) -> int:
    """Return the number of metrics lines until the last checkpoint. Later lines are removed."""
    if state is not None:
        return int(state["tick"])
    path = folder.path / PHASE2 / LAST2
    routed = json.loads(read_checkpoint(path)["progress"])["history"] if path.is_file() else ()
    return _count_phase1_lines(folder) + len(routed)
