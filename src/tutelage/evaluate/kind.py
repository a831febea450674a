"""An evaluation as a kind of run: a policy plays tasks, and every rollout is kept as it ends.

    config.json        what was asked for; the model, the grader and the code that this comes to
    tasks/test.jsonl   the tasks
    store.db           the run with its rollouts and metrics
    result.json        success and mean reward, with their intervals

What the store has is not played again, and a rollout depends on no other one, so a run killed at
any moment goes on and comes to the numbers of one that never stopped. `targets.py` reads the input
and plays; it loads torch, so it is imported when a run is prepared.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tutelage.config.fields import RunSettings
from tutelage.errors import FailureBudgetError, RunError
from tutelage.evaluate.config import LABEL, EvaluationConfig
from tutelage.runs.again import resume_command
from tutelage.runs.figures import Figures, Labels, Measure, RunFiles, folder_mark, read_object
from tutelage.runs.folder import RunFolder, keep_lines
from tutelage.runs.kinds import (
    FINISHED,
    Head,
    Phase,
    RunKind,
    register,
    stored_settings,
)
from tutelage.runs.lifecycle import Run
from tutelage.runs.measured import written
from tutelage.runs.metrics import rollout_metrics
from tutelage.runs.progress import Progress
from tutelage.runs.trust import code_of
from tutelage.statistics.outcome import Evaluation, Success, summarise
from tutelage.store import open_store
from tutelage.tasks.dataset import Dataset
from tutelage.tools.registry import close_tools
from tutelage.tracing.export import endpoint
from tutelage.types import JSON, Rollout

if TYPE_CHECKING:
    from tutelage.evaluate.targets import PreparedEvaluation


@register
@dataclass
class PolicyEvaluation(RunKind):
    """A run's or a model's policy plays tasks."""

    name: ClassVar[str] = "evaluation"
    model: ClassVar[type[RunSettings]] = EvaluationConfig

    target: str
    asked: EvaluationConfig
    trust: bool = False
    """Whether code that a run of somebody else names may be run."""
    otlp: str | None = None
    """A collector that gets the traces as well."""
    ready: PreparedEvaluation = field(init=False)
    """What it works with, once it is prepared."""
    _result: JSON = field(default_factory=dict[str, Any])
    _began: float = field(default_factory=time.monotonic)

    @classmethod
    def read(cls, folder: RunFolder, progress: Progress) -> Self:
        """What was asked for, as the folder has it."""
        asked = stored_settings(folder, EvaluationConfig)
        return cls(str(read_object(folder.config)["target"]), asked)

    @classmethod
    def figures(cls, files: RunFiles) -> Figures:
        """Its model and grader; nothing was trained, so there are scores of one side only."""
        measure = _measure(stored_settings(files.run, EvaluationConfig))
        grader = str(files.config.get("reward", ""))
        return Figures(
            trained="nothing",
            algorithm=cls.name,
            base=str(files.config["target"]),
            base_mark=files.config.get("model"),
            grader=grader,
            labels={measure: Labels("", LABEL, measure)},
            success=files.config.get("success"),
            dollars=None if grader == "llm_judge" else 0.0,
        )

    def config(self) -> JSON:
        """What was asked for, and what it comes to."""
        run = self.ready.run
        return {
            **super().config(),
            "target": self.target,
            "model": self._model(),
            "reward": self.ready.reward,
            "success": self.ready.success,
            "code": [] if run is None else code_of(run[0]),
        }

    def _model(self) -> str:
        """Equal for equal weights."""
        run = self.ready.run
        place = Path(self.target) if run is None else run[0].policy
        return folder_mark(place) or f"model:{self.target}"

    def difference(self, folder: RunFolder) -> str:
        """The tasks or the model may have changed since, so only a resume goes on with it."""
        return "exists already"

    def prepare(self, folder: RunFolder, progress: Progress) -> None:
        """The tasks, the policy and the grader; to go on they have to be those of its beginning."""
        from tutelage.evaluate.targets import prepare_evaluation

        told = read_object(folder.config)
        # Whoever goes on with a folder is asked about the code that it names, so it is trusted.
        code = told.get("code", ())
        self.ready = prepare_evaluation(self.target, self.asked, trust=self.trust, trusted=code)
        if not told:
            return
        if self._model() != told["model"]:
            raise RunError(
                f"the model of {self.target!r} is not the one that this evaluation began with; "
                "give that one, or evaluate it anew with another --output"
            )
        keep_lines(folder.metrics, 0)

    @property
    def head(self) -> Head:
        """What is told of the run."""
        return Head(
            recipe=LABEL,
            algorithm=self.name,
            settings=self.asked,
            collector=endpoint(self.otlp),
        )

    def open(self, run: Run) -> None:
        """Write the tasks down, or see that they are the same, and say what begins."""
        from tutelage.runs.given import write_tasks

        write_tasks(run.folder.tasks("test"), self.ready.tasks)
        run.progress.start("evaluation", {"policy": self.target, "run": str(run.folder.path)})

    def phases(self) -> Sequence[Phase]:
        """The playing of all tasks."""
        return [(LABEL, self._play)]

    def _play(self, run: Run) -> None:
        played = self.ready.play(
            run.progress, run.folder.name, _judged(run), lambda done: run.writer.submit([done])
        )
        lost = [f for r in played if (f := r.last.failure) is not None and f.cause.infrastructure]
        if len(lost) == len(played):
            raise FailureBudgetError(
                f"no rollout could be judged: {lost[0].message}. Go on once that is mended: "
                f"{resume_command(run.folder.path)}"
            )
        run.log({"phase": LABEL, "step": 0, **rollout_metrics(played)})
        self._result = self._told(self.ready.add_up(played, run.progress))

    def _told(self, found: Evaluation) -> JSON:
        """An evaluation as a result has it."""
        return {
            "status": FINISHED,
            "seed": self.asked.seed,
            "graded": found.kind.graded,
            **written(f"after_{_measure(self.asked)}", found.record(), found.kind),
            "test_tasks": found.tasks,
            "overlap": {"test_in_train": found.in_training, "test_repeated": found.repeated},
            "rollouts": found.rollouts,
            "wall_seconds": time.monotonic() - self._began,
        }

    def result(self, status: str) -> JSON | None:
        """The rates and means; a run that was stopped has its rollouts instead."""
        return self._result if status == FINISHED else None

    def close(self) -> None:
        """End the programs behind tools."""
        close_tools(self.ready.subject.tools)


def recorded(folder: RunFolder) -> Evaluation:
    """What the rollouts of a finished run add up to, in the order of its tasks."""
    told, overlap = read_object(folder.config), (folder.read_result() or {})["overlap"]
    place = {task.id: i for i, task in enumerate(Dataset[Any].recorded(folder.tasks("test")))}
    with open_store(folder.store, create=False) as store:
        (run,) = store.runs()
        played = sorted(store.rollouts(run.id), key=lambda r: (place[r.task.id], r.index))
    found = summarise(played, Success.of(told["success"]))
    return replace(found, in_training=overlap["test_in_train"], repeated=overlap["test_repeated"])


def _measure(asked: EvaluationConfig) -> Measure:
    return "greedy" if asked.sampled_at == 0 else "sampled"


def _judged(run: Run) -> dict[str, Rollout]:
    """The rollouts that earlier processes played, by id; what was lost is played again."""
    name = run.folder.name
    found = list(run.store.rollouts(name))
    for rollout in found:
        if rollout.reward is None:
            run.store.discard_rollout(name, rollout.id)
    return {rollout.id: rollout for rollout in found if rollout.reward is not None}
