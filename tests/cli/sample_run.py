"""A small run on disk: configuration, metrics, result, and rollouts of every kind in its store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.builders import make_attempt, make_call, make_rollout

from tutelage.config import Machine
from tutelage.runs.folder import RunFolder, append_json, create, write_json, write_text
from tutelage.store import open_store
from tutelage.tracing import Identity, span, trace_attempt
from tutelage.types import (
    Attempt,
    Call,
    Failure,
    FailureCause,
    Message,
    Mode,
    Reward,
    Rollout,
    Sampled,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
)
from tutelage.weights.config import resolve

RESULT: dict[str, Any] = {
    "status": "finished",
    "seed": 3,
    "wall_seconds": 284.2,
    "rl_steps": 2,
    "rollouts": 6,
    "tokens": 12345,
    "test_tasks": 200,
    "success_before_sampled": 0.31,
    "success_before_greedy": 0.42,
    "success_after_sampled": 0.945,
    "success_after_greedy": 0.985,
    "success_no_tools_greedy": 0.02,
    "success_control_sampled": None,
    "success_control_greedy": None,
}
QUESTION = Message("user", "What is 17 * 23 + 5?")
CALL = ToolCall("call_1", "calculator", '{"expression": "17 * 23 + 5"}')
ASKS = Message("assistant", "Let me see.", (CALL,))
OBSERVED = Message("tool", "396", tool_call_id="call_1", name="calculator")
ANSWERS = Message("assistant", "396")


def call(index: int, messages: tuple[Message, ...], reply: Message, **more: Any) -> Call:
    """One call with four prompt tokens for each message and two sampled ones."""
    return make_call(
        index,
        messages=messages,
        prompt_ids=tuple(range(4 * len(messages))),
        sampled=Sampled((7, 8), (-0.25, -0.75), (-0.25, -0.75), StopReason.STOP, 5),
        reply=reply,
        **more,
    )


def success() -> Attempt:
    """Two turns: a tool call and the answer."""
    return make_attempt(
        call(0, (QUESTION,), ASKS),
        call(1, (QUESTION, ASKS, OBSERVED), ANSWERS),
        tool_results=(ToolResult("call_1", "calculator", CALL.arguments, "396"),),
        answer="396",
        reward=Reward(1.0, {"exact": 1.0}),
        seconds=0.5,
    )


def failure() -> Attempt:
    """A tool that fails, then an agent that raises."""
    error = "Error: division by zero"
    return make_attempt(
        call(0, (QUESTION,), ASKS, parse_errors=("half a call",)),
        id="att_1",
        tool_results=(ToolResult("call_1", "calculator", CALL.arguments, error, error="raised"),),
        reward=Reward(0.0),
        failure=Failure(FailureCause.AGENT_ERROR, "ValueError: no\x1b[31m", "Traceback (most ..."),
    )


def rollout(name: str, attempt: Attempt, **more: Any) -> Rollout:
    """One rollout of one task."""
    fields: dict[str, Any] = {
        "run_id": "sums",
        "task": Task("t-17", {"question": QUESTION.content, "answer": "396"}),
        "step": 1,
        "group": "rl/0/0",
    }
    return make_rollout(name, attempt, **fields | more)


def rollouts() -> list[Rollout]:
    """Successes and failures, in training and in evaluations."""
    after = {"mode": Mode.TEST, "step": 9, "label": "after/greedy"}
    return [
        rollout("roll_aaaaaaaaaaaaaaaaaaaaaaaa", success()),
        rollout("roll_aaaaaabbbbbbbbbbbbbbbbbb", failure(), index=1),
        rollout("roll_cccccccccccccccccccccccc", success(), step=2),
        rollout("roll_dddddddddddddddddddddddd", success(), **after),
    ]


def make_run(path: Path, *, result: bool = True, store: bool = True) -> RunFolder:
    """A finished run named after its folder; `result` off leaves it stopped."""
    folder = create(path)
    resolved = resolve(
        "math", ["lr=0.001"], machine=Machine(0, 2), flags={"seed": 3, "level": "hard"}
    )
    write_text(folder.config, resolved.to_json())
    append_json(folder.metrics, {"phase": "cold_start", "step": 1, "tick": 0, "loss/sft": 2.5})
    for step, reward in ((1, 0.25), (2, 0.75)):
        values = {"reward/mean": reward, "loss/policy": -0.5, "max_dlogp": 2e-6}
        append_json(folder.metrics, {"phase": "rl", "step": step, "tick": step, **values})
    if result:
        write_json(folder.result, RESULT)
    if store:
        with open_store(folder.store) as opened:
            opened.put_run(
                folder.name,
                name=folder.name,
                recipe="math",
                algorithm="rl",
                config=json.loads(resolved.to_json()),
                seed=3,
                folder=str(path),
                status="running",
            )
            # Ids come from the seed, so runs of one seed share them.
            opened.put_rollouts([replace(r, run_id=folder.name) for r in rollouts()])
    return folder


def add_span(runs: Path) -> None:
    """Give the rollout `roll_aaaaaaaaaa...` a span of the user's own."""
    with open_store(runs / "sums" / "store.db") as store:
        (run,) = store.runs()
        found = store.find_rollout("roll_aaaaaaaaaa", run.id)
        identity = Identity(run.id, found.id, found.last.id)
        with trace_attempt(identity) as trace, span("my step", {"n": 1}):
            pass
        store.put_rollouts((), {run.id: trace.records})
