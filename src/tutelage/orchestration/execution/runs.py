"""What verbs of orchestration execute, as a kind of run: each execution is a rollout of it.

`runs/lifecycle.py` does what is the same for every run, `stored.py` makes the rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from tutelage.config.fields import RunSettings
from tutelage.errors import RunError
from tutelage.orchestration.execution.config import ExecutionConfig
from tutelage.orchestration.execution.record import plan_json
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
    """Plans that are executed, each a rollout; what the record of a single one has is not run
    again. `collect` and `audit` execute many, which begin again by their command."""

    name: ClassVar[str] = "execution"
    model: ClassVar[type[RunSettings]] = ExecutionConfig

    asked: RunSettings
    """The options."""
    work: Callable[[Run], JSON]
    """Executes, and returns what stands in the result."""
    plan: Plan | None = None
    """The plan, where there is one."""
    recipe: str = RECIPE
    otlp: str | None = None
    """A collector that gets the trace as well."""
    _result: JSON = field(default_factory=dict[str, Any])

    @classmethod
    def read(cls, folder: RunFolder, progress: Progress) -> Self:
        """A system is built by the caller: see `again`."""
        raise RunError(f"an execution is continued by its command: {resume_command(folder.path)}")

    def sources(self, folder: RunFolder) -> dict[str, str]:
        """Marks of its workers and tools; the plan is kept in the folder."""
        asked = self.head.settings.model_dump(mode="json", exclude={"plan", "checkpoint"})
        return settings_sources(asked, folder)

    def again(self, folder: RunFolder, progress: Progress) -> Self:
        """The caller's."""
        return self

    def prepare(self, folder: RunFolder, progress: Progress) -> None:
        """The caller has built it already."""

    @property
    def head(self) -> RunHeader:
        """What store, loggers and collector know of the run."""
        return RunHeader(
            recipe=self.recipe,
            algorithm=getattr(self.asked, "router", self.recipe),
            settings=self.asked,
            collector=endpoint(self.otlp),
        )

    def begin(self, folder: RunFolder) -> None:
        """Keep the plan of a single execution."""
        if self.plan is not None:
            write_json(folder.path / PLAN, plan_json(self.plan))

    def phases(self) -> Sequence[Phase]:
        """All of it."""

        def play(run: Run) -> None:
            self._result = self.work(run)

        return [("execution", play)]

    def result(self, status: str) -> JSON | None:
        """Its result; one that was stopped has its record instead."""
        return self._result if status == FINISHED else None
