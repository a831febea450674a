"""Records to put into a store: plain ones by name, and strange ones by hypothesis."""

from __future__ import annotations

from dataclasses import fields as fields_of
from typing import Any

from hypothesis import strategies as st
from sqlalchemy import func, select
from tests.builders import make_attempt, make_call, make_rollout

from tutelage.store import Store, schema
from tutelage.tracing.records import KINDS, STATUSES, SpanEvent, SpanRecord
from tutelage.types import (
    Attempt,
    Call,
    Constraint,
    Failure,
    FailureCause,
    Message,
    Mode,
    Reward,
    Rollout,
    RolloutStatus,
    Sampled,
    Sampling,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
)

RUN: dict[str, Any] = {
    "name": "sums",
    "recipe": "rl",
    "algorithm": "grpo",
    "config": {"steps": 3, "lr": 1e-6, "tools": ["calculator"]},
    "seed": 7,
    "folder": "runs/sums",
    "status": "running",
}
"""What `put_run` needs besides the id."""
OF_ROLLOUT = {field.name for field in fields_of(Rollout)}


def count_spans(store: Store, run_id: str) -> int:
    """How many spans of user code and other programs a run has."""
    query = select(func.count()).where(schema.spans.c.run_id == run_id)
    with store._backend.reader.begin() as conn:  # pyright: ignore[reportPrivateUsage]
        return conn.execute(query).scalar_one()


def call(index: int = 0, tokens: int = 8) -> Call:
    """One call whose conversation has `2 * index + 1` messages and ends in a tool call."""
    messages = [Message("user", "What is 0.1 + 0.2?")]
    for i in range(index):
        messages += [reply(i), Message("tool", "0.30000000000000004", tool_call_id=f"call_{i}")]
    return make_call(
        index,
        messages=tuple(messages),
        prompt_ids=tuple(range(tokens * (index + 1))),
        sampled=Sampled(
            token_ids=tuple(range(tokens)),
            logprobs=tuple(-0.1 * i for i in range(tokens)),
            raw_logprobs=tuple(-0.3 * i for i in range(tokens)),
            stop_reason=StopReason.LENGTH if index else StopReason.STOP,
            policy_version=index,
        ),
        reply=reply(index),
        sampling=Sampling(temperature=0.7, stop=("</s>",)),
        parse_errors=("half a tool call",) if index else (),
        reward=-0.25 if index else None,
    )


def reply(index: int) -> Message:
    """An assistant turn with one tool call."""
    tool_call = ToolCall(f"call_{index}", "calculator", '{"expression": "0.1 + 0.2"}')
    return Message("assistant", None, (tool_call,))


def attempt(
    index: int = 0,
    status: RolloutStatus = RolloutStatus.SUCCEEDED,
    calls: int = 3,
    tokens: int = 8,
    reward: float | None = 1.0,
    answer: str | None = "0.3",
) -> Attempt:
    """One try; with `status` failed it has a failure instead of a reward."""
    failed = status is RolloutStatus.FAILED
    return make_attempt(
        *(call(i, tokens) for i in range(calls)),
        index=index,
        status=status,
        tool_results=(
            ToolResult("call_0", "calculator", "{}", "", error="invalid_arguments", seconds=0.1),
            ToolResult("call_1", "calculator", '{"expression": "1"}', "1", seconds=0.2),
        ),
        answer=answer,
        reward=None if failed or reward is None else Reward(reward, {"b": 0.1, "a": 0.9}),
        failure=Failure(FailureCause.TIMEOUT, "too slow", "Traceback ...") if failed else None,
        stop="deadline" if failed else "answer",
        seconds=1.5,
    )


def rollout(
    name: str = "roll_0",
    *attempts: Attempt,
    run_id: str = "run_a",
    **fields: Any,
) -> Rollout:
    """One rollout; without `attempts` one of `attempt`, which takes what a rollout has not."""
    task = Task("t0", {"question": "What is 0.1 + 0.2?", "answer": 0.3, "n": [1, None]})
    own = {name: fields.pop(name) for name in OF_ROLLOUT & fields.keys()}
    made = attempts or (attempt(**fields),)
    return make_rollout(name, *made, **{"run_id": run_id, "task": task} | own)


def rollouts(count: int, *, first: int = 0, **fields: Any) -> list[Rollout]:
    """`count` rollouts with ids that sort as they are numbered."""
    return [rollout(f"roll_{i:06d}", index=i, **fields) for i in range(first, first + count)]


def span(number: int = 0, rollout_id: str = "roll_0", **fields: Any) -> SpanRecord:
    """One span of a rollout, with an event."""
    given: dict[str, Any] = {
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": f"{number + 1:016x}",
        "parent_id": None,
        "name": f"step {number}",
        "start_ns": 1_700_000_000_000_000_000 + number,
        "end_ns": 1_700_000_000_500_000_000 + number,
        "kind": "client",
        "attributes": {"gen_ai.agent.name": "mine", "n": number, "list": [1.5, None, "x"]},
        "events": (SpanEvent("seen", 1_700_000_000_100_000_000, {"what": "it"}),),
        "status": "error",
        "status_message": "half way",
        "resource": {"service.name": "agent"},
        "scope": "mine",
        "rollout_id": rollout_id,
        "attempt_id": "att_0",
    }
    return SpanRecord(**given | fields)


# Strange records: any text (NUL and lone surrogates included), any float where one is allowed.

text = st.text(st.characters(), max_size=12) | st.sampled_from(
    ["\x00", "\ud83d", "\ud83d\ude00", "\x01escaped:x", "\\u0041", "😀", "'; drop table runs"]
)
finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | finite | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
tokens = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5).map(tuple)
logprobs = st.lists(st.floats(allow_nan=False), max_size=5).map(tuple)
small = st.integers(0, 2**40)
messages = st.builds(
    Message,
    text,
    st.none() | text,
    st.lists(st.builds(ToolCall, text, text, text), max_size=2).map(tuple),
    st.none() | text,
    st.none() | text,
)
schemas = st.dictionaries(text, json_values, max_size=3)
constraints = st.builds(Constraint, text, st.booleans(), st.none() | schemas)
calls = st.builds(
    Call,
    id=text,
    agent=text,
    index=small,
    messages=st.lists(messages, max_size=3).map(tuple),
    prompt_ids=tokens,
    sampled=st.builds(
        Sampled, tokens, logprobs, logprobs, st.sampled_from(StopReason), small, tokens
    ),
    reply=messages,
    sampling=st.builds(Sampling, finite, finite, small, small, st.lists(text).map(tuple)),
    parse_errors=st.lists(text, max_size=2).map(tuple),
    tools=st.lists(st.builds(ToolSpec, text, text, schemas), max_size=2).map(tuple),
    constraint=st.none() | constraints,
    policy=st.none() | text,
    started=finite,
    seconds=finite,
)
attempts = st.builds(
    Attempt,
    id=text,
    index=small,
    status=st.sampled_from(RolloutStatus),
    calls=st.lists(calls, max_size=2).map(tuple),
    tool_results=st.lists(
        st.builds(ToolResult, text, text, text, text, st.none() | text, finite, finite), max_size=2
    ).map(tuple),
    answer=st.none() | text,
    reward=st.none() | st.builds(Reward, finite, st.dictionaries(text, finite, max_size=3)),
    failure=st.none() | st.builds(Failure, st.sampled_from(FailureCause), text, st.none() | text),
    stop=st.none() | text,
    seconds=finite,
    started=finite,
)
spans = st.builds(
    SpanRecord,
    trace_id=text,
    span_id=text,
    parent_id=st.none() | text,
    name=text,
    start_ns=st.integers(0, 2**63 - 1),
    end_ns=st.integers(0, 2**63 - 1),
    kind=st.sampled_from(KINDS),
    attributes=schemas,
    events=st.lists(st.builds(SpanEvent, text, small, schemas), max_size=2).map(tuple),
    status=st.sampled_from(STATUSES),
    status_message=text,
    resource=schemas,
    scope=text,
    rollout_id=text,
    attempt_id=st.none() | text,
)
strange_rollouts = st.builds(
    Rollout,
    id=text,
    run_id=st.just("run_a"),
    task=st.builds(Task, text, st.dictionaries(text, json_values, max_size=3)),
    mode=st.sampled_from(Mode),
    step=small,
    group=text,
    index=small,
    attempts=st.lists(attempts, min_size=1, max_size=3).map(tuple),
    label=text,
)
