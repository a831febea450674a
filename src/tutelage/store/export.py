"""A run's rollouts as rows for other programs: whole records, or chat data for supervised tuning.

`jsonl` is one rollout a line with everything that was recorded. `sft` is chat format, as `tutelage
train sft` and other trainers read it: the turns of successful training rollouts with their tool
calls and observations. Calls become one row only while each extends the conversation before it, so
a context that was rewritten on the way starts a new row instead of inventing a conversation that
never was. `otlp` is a rollout's traces, one request of OTLP-JSON a line, as collectors read them
from a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace

from tutelage.errors import StoreError
from tutelage.store.fetch import RolloutFilter
from tutelage.store.store import Store
from tutelage.tracing.tree import whole_trace
from tutelage.types import (
    JSON,
    THOUGHTS,
    Attempt,
    Call,
    Message,
    Mode,
    Rollout,
    RolloutStatus,
    ToolSpec,
)

FORMATS = ("jsonl", "sft", "otlp")
SUCCESS = 1.0
"""The reward of a full success in all built-in graders."""


def export_rows(
    store: Store,
    run_id: str,
    fmt: str,
    *,
    tools: Sequence[ToolSpec] | None = (),
    content: bool = False,
    successful: bool = False,
) -> Iterator[JSON]:
    """The rows of a run in one of `FORMATS`, read as the iteration goes.

    `tools` are what the agent was given, None for those in its requests; only `sft` rows carry
    them. `content` puts messages into
    `otlp` rows. `successful` leaves out what earned less than the full reward, as `sft` does.
    Raises `StoreError` for
    another format or an unknown run. Write a row with `dump_json`, which keeps every number.
    """
    if fmt not in FORMATS:
        raise StoreError(f"{fmt!r} is no export format: use one of {', '.join(FORMATS)}")
    if fmt == "sft":
        return sft_rows(store, run_id, tools=tools)
    won: RolloutFilter = (
        {"status": RolloutStatus.SUCCEEDED, "min_reward": SUCCESS} if successful else {}
    )
    chosen = store.rollouts(run_id, **won)
    if fmt == "jsonl":
        return map(rollout_record, chosen)
    return _otlp_rows(store, run_id, chosen, content=content)


def _otlp_rows(
    store: Store, run_id: str, rollouts: Iterable[Rollout], *, content: bool = False
) -> Iterator[JSON]:
    """The traces of rollouts, with all that was recorded of them, as OTLP-JSON."""
    from tutelage.tracing.content import without_content
    from tutelage.tracing.otlp import encode_json

    for rollout in rollouts:
        spans = whole_trace(rollout, store.spans(run_id, rollout.id), content=content)
        yield encode_json(spans if content else [without_content(span) for span in spans])


def rollout_record(rollout: Rollout) -> JSON:
    """A whole rollout as JSON: messages in the OpenAI form, tokens and logprobs as lists."""
    return {
        **asdict(replace(rollout, attempts=())),
        "task": {"id": rollout.task.id, "fields": rollout.task.fields},
        "status": rollout.last.status,
        "reward": None if rollout.reward is None else rollout.reward.value,
        "attempts": [_attempt_record(attempt) for attempt in rollout.attempts],
    }


def _attempt_record(attempt: Attempt) -> JSON:
    calls = [_call_record(call) for call in attempt.calls]
    return {**asdict(replace(attempt, calls=())), "calls": calls}


def _call_record(call: Call) -> JSON:
    record = asdict(call)
    sampled = record.pop("sampled")
    return {
        **record,
        **sampled,
        "messages": [m.to_dict(extra=True) for m in call.messages],
        "reply": call.reply.to_dict(),
        "tools": [tool.to_dict() for tool in call.tools],
    }


def sft_rows(
    store: Store,
    run_id: str,
    *,
    mode: Mode = Mode.TRAIN,
    min_reward: float = SUCCESS,
    tools: Sequence[ToolSpec] | None = (),
) -> Iterator[JSON]:
    """Chat rows of the rollouts that succeeded with at least `min_reward`.

    A row has `messages`, which end with what the model said, `tools`, and where it came from.
    Evaluations are left out unless `mode` names them: tuning on test tasks spoils the test.
    """
    records = None if tools is None else [tool.to_dict() for tool in tools]
    chosen = store.rollouts(
        run_id, mode=mode, status=RolloutStatus.SUCCEEDED, min_reward=min_reward
    )
    return (
        {
            "messages": [_chat_message(m) for m in messages],
            "tools": _told(rollout.last.calls) if records is None else records,
            "task_id": rollout.task.id,
            "rollout_id": rollout.id,
            "agent": agent,
            "reward": rollout.reward.value,
        }
        for rollout in chosen
        if rollout.reward is not None
        for agent, messages in conversations(rollout.last.calls)
    )


def _chat_message(message: Message) -> JSON:
    """The OpenAI form, with the reasoning that a server sent beside the content."""
    return message.to_dict() | {n: message.extra[n] for n in THOUGHTS if message.extra.get(n)}


def _told(calls: Sequence[Call]) -> list[JSON]:
    """The tools of all requests, by name."""
    return [*{tool.name: tool.to_dict() for call in calls for tool in call.tools}.values()]


def conversations(calls: Sequence[Call]) -> list[tuple[str, tuple[Message, ...]]]:
    """The longest conversations in some calls, with the agent that had each, in order of start.

    A call continues a conversation of the same agent when its messages begin with all of it. What
    the model said stands as it was sampled, not as a client repeated it.
    """
    pairs: list[tuple[str, tuple[Message, ...]]] = []
    for call in calls:
        for i, (agent, before) in enumerate(pairs):
            if agent == call.agent and _continues(before, call.messages):
                pairs[i] = (agent, (*before, *call.messages[len(before) :], call.reply))
                break
        else:
            pairs.append((call.agent, (*call.messages, call.reply)))
    return pairs


def _continues(before: Sequence[Message], now: Sequence[Message]) -> bool:
    return len(now) >= len(before) and all(map(_same, before, now))


def _same(sampled: Message, repeated: Message) -> bool:
    """Equal, or the same tool calls by id: some clients write the arguments again."""
    if sampled == repeated:
        return True
    ids = [call.id for call in sampled.tool_calls]
    return bool(ids) and ids == [call.id for call in repeated.tool_calls]
