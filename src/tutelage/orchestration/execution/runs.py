"""Run kind of the verbs of `tutelage orchestrate`: each execution is a rollout of the run.

`runs/lifecycle.py` has the parts that all kinds of run share, `stored.py` creates the rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from tutelage.config.fields import RunSettings
from tutelage.errors import RunError
from tutelage.orchestration.execution.config import ExecutionConfig
from tutelage.orchestration.execution.record import plan_to_json
from tutelage.orchestration.plan.dag import Plan
from tutelage.runs.fingerprint import settings_sources
from tutelage.runs.folder import RunFolder, write_json
from tutelage.runs.kinds import FINISHED, Phase, RunHeader, RunKind, register
from tutelage.runs.lifecycle import Run
from tutelage.runs.progress import Progress
from tutelage.runs.resume_hint import resume_command
from tutelage.tracing.export import endpoint
from tutelage.types import JSON

RECIPE, PLAN = "orchestrate", "plan.json"


@register
@dataclass
class ExecutionRun(RunKind):
    """Run that executes plans and stores each execution as a rollout. A run with a single plan can
    be resumed without repeating finished nodes; `collect` executes many plans and restarts from the
    beginning."""

    name: ClassVar[str] = "execution"
    model: ClassVar[type[RunSettings]] = ExecutionConfig

    asked: RunSettings
    """Options of the run."""
    work: Callable[[Run], JSON]
    """Executes the plans and returns the result as JSON."""
    plan: Plan | None = None
    """Plan of a run with a single execution, else None."""
    recipe: str = RECIPE
    otlp: str | None = None
    """URL of an OTLP collector that also receives the trace."""
    _result: JSON = field(default_factory=dict[str, Any])

    @classmethod
    def read(cls, folder: RunFolder, progress: Progress) -> Self:
        """Raise `RunError`: an execution is resumed by its command, which builds the system."""
        raise RunError(f"resume the execution with its command: {resume_command(folder.path)}")

    def sources(self, folder: RunFolder) -> dict[str, str]:
        """Return fingerprints of the workers and tools; the plan itself is stored in the folder."""
        asked = self.head.settings.model_dump(mode="json", exclude={"plan", "checkpoint"})
        return settings_sources(asked, folder)

    def reload(self, folder: RunFolder, progress: Progress) -> Self:
        """Return this run unchanged, because the caller has already built the system."""
        return self

    def prepare(self, folder: RunFolder, progress: Progress) -> None:
        """Do nothing; the caller has already built the system."""

    @property
    def head(self) -> RunHeader:
        """Header of the run for the store, the loggers and the trace collector."""
        return RunHeader(
            recipe=self.recipe,
            algorithm=getattr(self.asked, "router", self.recipe),
            settings=self.asked,
            collector=endpoint(self.otlp),
        )

    def begin(self, folder: RunFolder) -> None:
        """Write the plan to the run folder if the run executes a single plan."""
        if self.plan is not None:
            write_json(folder.path / PLAN, plan_to_json(self.plan))

    def phases(self) -> Sequence[Phase]:
        """Return the single phase of the run, which executes the plans."""

        def play(run: Run) -> None:
            self._result = self.work(run)

        return [("execution", play)]

    def result(self, status: str) -> JSON | None:
        """Return the result of a finished run, or None if the run was stopped."""
        return self._result if status == FINISHED else None
