"""The execution of one plan as a kind of run: its journal, its rollout in the store, its result.

A run folder holds the plan with its journal (`execution.jsonl`), from which an execution goes on
after a kill, and the store with the trace. `system.py` executes; `runs/lifecycle.py` does what is
the same for every run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from tutelage.errors import RunError
from tutelage.orchestration.execution.config import ExecutionConfig
from tutelage.orchestration.execution.journal import plan_json
from tutelage.orchestration.execution.record import Execution
from tutelage.orchestration.execution.stored import ExecutionRecorder, rollout_id
from tutelage.orchestration.execution.system import OrchestrationSystem
from tutelage.orchestration.plan.dag import Plan
from tutelage.runs.again import resume_command
from tutelage.runs.folder import RunFolder, write_json
from tutelage.runs.kinds import FINISHED, Head, Phase, RunKind, TraceTarget, register
from tutelage.runs.lifecycle import Run
from tutelage.runs.progress import Progress
from tutelage.tracing.export import endpoint
from tutelage.types import JSON

RECIPE = "orchestrate"
JOURNAL = "execution.jsonl"
PLAN = "plan.json"

Events = Callable[[dict[str, Any]], None]


@contextmanager
def _unseen() -> Generator[Events]:
    yield lambda event: None


@register
@dataclass
class PlanExecution(RunKind):
    """The execution of one plan by a system; what its journal has is not run again."""

    name: ClassVar[str] = "execution"

    asked: ExecutionConfig
    """What both were made of."""
    plan: Plan
    system: OrchestrationSystem
    otlp: str | None = None
    """A collector that gets the trace as well."""
    watch: Callable[[], AbstractContextManager[Events]] = _unseen
    found: Execution | None = None
    """The execution, once it has ended."""
    rollout: str = ""
    """The id of its rollout in the store."""
    _result: JSON = field(default_factory=dict[str, Any])

    @classmethod
    def read(cls, folder: RunFolder, progress: Progress) -> Self:
        """A system is put together by whoever asks: see `again`."""
        raise RunError(
            f"an execution is gone on with by its command: {resume_command(folder.path)}"
        )

    def config(self) -> JSON:
        """What was asked for."""
        return {"config": {"recipe": RECIPE, **self.asked.model_dump(mode="json")}}

    def again(self, folder: RunFolder, progress: Progress) -> Self:
        """The caller's."""
        return self

    def prepare(self, folder: RunFolder, progress: Progress) -> None:
        """Whoever asks has put it together already."""

    @property
    def head(self) -> Head:
        """What is told of the run."""
        url = endpoint(self.otlp)
        return Head(
            recipe=RECIPE,
            algorithm=self.asked.router,
            seed=self.asked.seed,
            collector=None if url is None else TraceTarget(url),
        )

    def begin(self, folder: RunFolder) -> None:
        """Keep the plan."""
        write_json(folder.path / PLAN, plan_json(self.plan))

    def phases(self) -> Sequence[Phase]:
        """The execution."""
        return [("execution", self._execute)]

    def _execute(self, run: Run) -> None:
        preset = self.asked.reward
        self.system.recorder = ExecutionRecorder(run.writer, run.folder.name, preset)
        with self.watch() as watch:
            found = self.system.execute(
                self.plan.instruction,
                plan=self.plan,
                budget=self.asked.budget,
                name="run",
                observers=[watch],
                journal=run.folder.path / JOURNAL,
            )
        self.found, self.rollout = found, rollout_id(found)
        run.failed = not found.success
        self._result = {
            "status": "succeeded" if found.success else "failed",
            "success": found.success,
            "cost": found.total_cost,
            "latency_ms": found.total_latency_ms,
            "reason": found.reason,
            "rollout": self.rollout,
        }

    def result(self, status: str) -> JSON | None:
        """What it came to; one that was stopped has its journal instead."""
        return self._result if status == FINISHED else None
