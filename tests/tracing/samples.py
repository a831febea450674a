"""Rollouts whose spans are known, and spans of other programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.builders import make_attempt, make_call, make_rollout

from tutelage.tracing import SpanRecord
from tutelage.types import (
    Attempt,
    Call,
    Failure,
    FailureCause,
    Message,
    Reward,
    Rollout,
    Sampled,
    Sampling,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
)

START = 1_700_000_000.0
TRACE = "0af7651916cd43dd8448eb211c80319c"


def call(index: int, *, agent: str = "main", tool: bool = False, **fields: Any) -> Call:
    """One call of an agent, a second after the one before it; with `tool` it calls one."""
    made = (ToolCall(f"t{index}", "calculator", '{"expression": "1+1"}'),) if tool else ()
    given: dict[str, Any] = {
        "agent": agent,
        "messages": (Message("user", "What is 1 + 1? Secret."),),
        "sampled": Sampled((4, 5), (-0.1, -0.2), (-0.1, -0.2), StopReason.STOP, 3),
        "reply": Message("assistant", None if tool else "2", made),
        "sampling": Sampling(temperature=0.5, max_tokens=9, stop=("</s>",)),
        "started": START + index,
        "seconds": 0.25,
    }
    return make_call(index, **given | fields)


def attempt(*calls: Call, index: int = 0, **fields: Any) -> Attempt:
    """A try with these calls, and a result for each tool call."""
    made = [t for c in calls for t in c.reply.tool_calls]
    given: dict[str, Any] = {
        "tool_results": tuple(
            ToolResult(t.id, t.name, t.arguments, "2", seconds=0.1, started=START + 0.5 + i)
            for i, t in enumerate(made)
        ),
        "answer": "2",
        "reward": Reward(1.0, {"exact": 1.0}),
        "started": START,
        "seconds": 3.0,
    }
    return make_attempt(*calls, index=index, **given | fields)


def rollout(*attempts: Attempt, name: str = "roll_0", run_id: str = "run") -> Rollout:
    """A rollout; without attempts one with a tool call and an answer."""
    task = Task("t0", {"question": "What is 1 + 1? Secret."})
    tries = attempts or (attempt(call(0, tool=True), call(1)),)
    return make_rollout(name, *tries, run_id=run_id, task=task, step=7, group="g")


def failed(index: int = 0, cause: FailureCause = FailureCause.TIMEOUT) -> Attempt:
    """A try that failed without a call."""
    failure = Failure(cause, "it was stopped", "Traceback ...")
    return attempt(index=index, failure=failure, reward=None, answer=None, stop="answer")


def foreign(number: int = 0, parent: int | None = None, **fields: Any) -> SpanRecord:
    """A span of another program's trace."""
    base = SpanRecord(
        trace_id=TRACE,
        span_id=f"{number + 1:016x}",
        parent_id=None if parent is None else f"{parent + 1:016x}",
        name=f"foreign {number}",
        start_ns=int((START + 1) * 1e9) + number,
        end_ns=int((START + 2) * 1e9),
        resource={"service.name": "agent"},
        scope="theirs",
        rollout_id="roll_0",
    )
    return replace(base, **fields)


def orphans(spans: Iterable[SpanRecord]) -> list[SpanRecord]:
    """Spans whose parent is not among them."""
    known = list(spans)
    ids = {(span.trace_id, span.span_id) for span in known}
    return [s for s in known if s.parent_id is not None and (s.trace_id, s.parent_id) not in ids]
