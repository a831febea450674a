"""A run's rollouts as rows for other programs: whole records, or chat data for supervised tuning.

`jsonl` is one rollout a line with everything that was recorded. `sft` is chat format, as `tutelage
train sft` and other trainers read it: the turns of successful training rollouts with their tool
calls and observations. Calls become one row only while each extends the conversation before it, so
a context that was rewritten on the way starts a new row instead of inventing a conversation that
never was. `otlp` is a rollout's traces, one request of OTLP-JSON a line, as collectors read them
from a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from tutelage.errors import StoreError
from tutelage.store.fetch import RolloutFilter
from tutelage.store.store import Store
from tutelage.tracing.tree import whole_trace
from tutelage.types import (
    JSON,
    THOUGHTS,
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
    mode: Mode | None = Mode.TRAIN,
    content: bool = False,
    successful: bool = False,
) -> Iterator[JSON]:
    """The rows of a run in one of `FORMATS`, read as the iteration goes.

    `tools` are what the agent was given, None for those in its requests, and `mode` is that of the
    rollouts (tuning on test tasks spoils the test); both are for `sft` rows alone. `content` puts
    messages into `otlp` rows. `successful` leaves out what earned less than the full reward, as
    `sft` does. Raises `StoreError` for another format or an unknown run. Write a row with
    `dump_json`, which keeps every number.
    """
    if fmt not in FORMATS:
        raise StoreError(f"unknown export format {fmt!r}: choose one of {', '.join(FORMATS)}")
    won = RolloutFilter(status=RolloutStatus.SUCCEEDED, min_reward=SUCCESS)
    if fmt == "sft":
        won["mode"] = mode
        earned = store.rollouts(run_id, **won)
        return (row for rollout in earned for row in chat_rows(rollout, tools))
    chosen = store.rollouts(run_id, **(won if successful else RolloutFilter()))
    if fmt == "jsonl":
        return map(rollout_record, chosen)
    from tutelage.tracing.content import without_content
    from tutelage.tracing.otlp import encode_json

    traces = (whole_trace(r, store.spans(run_id, r.id), content=content) for r in chosen)
    shown = traces if content else (list(map(without_content, spans)) for spans in traces)
    return map(encode_json, shown)


def rollout_record(rollout: Rollout) -> JSON:
    """A whole rollout as JSON: messages in the OpenAI form, tokens and logprobs as lists."""
    attempts: list[JSON] = []
    for attempt in rollout.attempts:
        calls: list[JSON] = []
        for call in attempt.calls:
            record = asdict(call)
            sampled = record.pop("sampled")
            calls.append(
                {
                    **record,
                    **sampled,
                    "messages": [m.to_dict(extra=True) for m in call.messages],
                    "reply": call.reply.to_dict(),
                    "tools": [tool.to_dict() for tool in call.tools],
                }
            )
        attempts.append({**asdict(replace(attempt, calls=())), "calls": calls})
    return {
        **asdict(replace(rollout, attempts=())),
        "task": {"id": rollout.task.id, "fields": rollout.task.fields},
        "status": rollout.last.status,
        "reward": None if rollout.reward is None else rollout.reward.value,
        "attempts": attempts,
    }


def chat_rows(rollout: Rollout, tools: Sequence[ToolSpec] | None = None) -> Iterator[JSON]:
    """Yield the conversations of a rollout that has a reward, each with its tools and where it came
    from; `tools` None are those in its requests."""
    if rollout.reward is None:
        return
    for agent, messages, told in conversations(rollout.last.calls):
        yield {
            "messages": [_chat_message(m) for m in messages],
            "tools": [tool.to_dict() for tool in (told if tools is None else tools)],
            "task_id": rollout.task.id,
            "rollout_id": rollout.id,
            "agent": agent,
            "reward": rollout.reward.value,
        }


def _chat_message(message: Message) -> JSON:
    """The OpenAI form, with the reasoning that a server sent beside the content, and the weight 0
    of what is not trained."""
    extra = {name: message.extra[name] for name in THOUGHTS if message.extra.get(name)}
    return message.to_dict() | extra | ({"weight": 0} if message.extra.get("weight") == 0 else {})


def _as_context(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages of a request: what they have of the assistant was not sampled by this call."""
    return tuple(
        replace(m, extra={**m.extra, "weight": 0}) if m.role == "assistant" else m for m in messages
    )


def conversations(
    calls: Sequence[Call],
) -> list[tuple[str, tuple[Message, ...], tuple[ToolSpec, ...]]]:
    """The longest conversations in some calls, with the agent that had each and the tools of its
    requests, in order of start.

    A call continues a conversation of the same agent with the same tools when its messages begin
    with all of it. What the model said stands as it was sampled, not as a client repeated it; turns
    of the assistant that no call sampled have a `weight` of 0 in their `extra`.
    """
    found: list[tuple[str, tuple[Message, ...], tuple[ToolSpec, ...]]] = []
    for call in calls:
        for i, (agent, before, tools) in enumerate(found):
            now, same = call.messages, (agent, tools) == (call.agent, call.tools)
            if same and len(now) >= len(before) and all(map(_same, before, now)):
                after = _as_context(call.messages[len(before) :])
                found[i] = (agent, (*before, *after, call.reply), tools)
                break
        else:
            found.append((call.agent, (*_as_context(call.messages), call.reply), call.tools))
    return found


def _same(sampled: Message, repeated: Message) -> bool:
    """Equal, or the same tool calls by id: some clients write the arguments again."""
    if sampled == repeated:
        return True
    ids = [call.id for call in sampled.tool_calls]
    return bool(ids) and ids == [call.id for call in repeated.tool_calls]
