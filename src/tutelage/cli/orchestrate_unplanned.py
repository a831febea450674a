"""The record of planning that was paid for and gave no plan that is begun: a run that failed.

`tutelage orchestrate run` makes no folder for what it refuses. Requests to a language model that
plans cost something, though, so what was asked, and said, is kept as that of any other run.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from tutelage.cli.failures import tell
from tutelage.errors import TutelageError, counted
from tutelage.orchestration.evaluation.judged import DEADLINE
from tutelage.orchestration.execution.record import Execution
from tutelage.orchestration.plan.dag import LatePlanError, Plan, PlannerCall
from tutelage.runs.progress import Progress
from tutelage.seeds import SeedTree
from tutelage.types import Sampling

if TYPE_CHECKING:
    from tutelage.orchestration.execution.config import ExecutionConfig
    from tutelage.orchestration.planner.llm import LLMPlanner
    from tutelage.runs.lifecycle import Run
    from tutelage.types import JSON


def keep_unplanned(
    asked: ExecutionConfig,
    error: TutelageError | KeyboardInterrupt,
    otlp: str | None,
    began: float,
) -> None:
    """Keep the requests of planning that was refused or stopped, where there are any, in the folder
    of a run. Planning began at `began`, in seconds since 1970."""
    calls: tuple[PlannerCall, ...] = getattr(error, "calls", ())
    if not calls:
        return
    from tutelage.cli.console import shown_path
    from tutelage.orchestration.execution.runs import RECIPE, ExecutionRun
    from tutelage.orchestration.execution.stored import ExecutionRecorder
    from tutelage.runs import lifecycle
    from tutelage.runs.folder import create, place_of

    stopped = isinstance(error, KeyboardInterrupt)
    reason = "stopped before there was a plan" if stopped else str(error)
    seeds = SeedTree(asked.seed).child("orchestration").child("run")
    plan = Plan(asked.instruction or "", (), calls)
    execution = Execution.of(
        plan, (), (), id=seeds.id("flow"), seeds=seeds, router=asked.router, unplanned=reason,
        reason=DEADLINE if isinstance(error, LatePlanError) else "",
    )  # fmt: skip
    seconds = time.time() - began

    def work(run: Run) -> JSON:
        recorder = ExecutionRecorder(run.writer, run.id, asked.reward)
        recorder(execution, Sampling(0.0, max_tokens=asked.max_tokens), began, seconds)
        run.failed = True
        return {
            "status": "stopped" if stopped else "failed",
            "success": False,
            "cost": execution.total_cost,
            "latency_ms": execution.total_latency_ms,
            "reason": execution.reason or reason,
            "rollout": execution.rollout,
        }

    with suppress(TutelageError):  # such as a folder of another run: the refusal is what matters
        folder = create(place_of(asked.output, RECIPE))
        lifecycle.start(ExecutionRun(asked, work, otlp=otlp), folder, Progress())
        tell(f"What was asked is kept: tutelage show {shown_path(folder.path)}")
        if stopped and asked.output is not None:
            error.add_note("The same command with another --output begins again.")


def spent_words(llm: LLMPlanner) -> str:
    """Return what planning took that gave nothing that can run, in words."""
    read, written = sum(c.tokens_in for c in llm.calls), sum(c.tokens_out for c in llm.calls)
    cost = f"{math.fsum(c.cost for c in llm.calls):.6f} USD" if llm.priced else "unknown"
    bound = [c for c in llm.calls if not c.tokens_in and not c.tokens_out and c.cost]
    left = f", {len(bound)} without an answer, at its bound" if bound else ""
    requests = counted(len(llm.calls), "request")
    return f"Planning made {requests}{left}: {read} tokens read, {written} written, cost {cost}."
