"""Export the rollouts of a run: whole records, chat data for supervised tuning, or traces.

`jsonl` has one complete rollout per line. `sft` is the chat format that `tutelage train sft` and
other trainers read: the turns of successful training rollouts with their tool calls and
observations. Calls are joined in one row only while each extends the previous conversation; a
rewritten context starts a new row, so that no row is a conversation that never took place. `otlp`
has the traces of a rollout as one OTLP-JSON request per line, as collectors read them from a file.
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
    """Yield the exported rows of a run in one of `FORMATS`, reading lazily.

    `tools` are the tools of the agent, or None for those in its requests, and `mode` selects
    rollouts (tuning on test tasks invalidates the test); both apply only to `sft`. `content` adds
    messages to `otlp` rows. `successful` omits rollouts with less than the full reward, as `sft`
    does. Raises `StoreError` for an unknown format or run. Write rows with `dump_json`, which
    preserves all numbers.
    """
    if fmt not in FORMATS:
        raise StoreError(f"unknown export format {fmt!r}: choose one of {', '.join(FORMATS)}")
    filters = RolloutFilter(status=RolloutStatus.SUCCEEDED, min_reward=SUCCESS)
    if fmt == "sft":
        filters["mode"] = mode
        rollouts = store.rollouts(run_id, **filters)
        return (row for rollout in rollouts for row in chat_rows(rollout, tools))
    rollouts = store.rollouts(run_id, **(filters if successful else RolloutFilter()))
    if fmt == "jsonl":
        return map(rollout_record, rollouts)
    from tutelage.tracing.content import remove_content
    from tutelage.tracing.otlp import encode_json

    traces = (whole_trace(r, store.spans(run_id, r.id), content=content) for r in rollouts)
    spans = traces if content else (list(map(remove_content, spans)) for spans in traces)
    return map(encode_json, spans)


def rollout_record(rollout: Rollout) -> JSON:
    """Convert a rollout to JSON data, with OpenAI messages, and tokens and logprobs as lists."""
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
    """Yield the conversations of a rollout that has a reward, with their tools and ids.

    If `tools` is None, each conversation has the tools of its requests.
    """
    if rollout.reward is None:
        return
    for agent, messages, sent_tools in conversations(rollout.last.calls):
        yield {
            "messages": [_chat_message(m) for m in messages],
            "tools": [tool.to_dict() for tool in (sent_tools if tools is None else tools)],
            "task_id": rollout.task.id,
            "rollout_id": rollout.id,
            "agent": agent,
            "reward": rollout.reward.value,
        }


def _chat_message(message: Message) -> JSON:
    """Convert a message to the OpenAI format, with its reasoning, and with weight 0 if it is not
    trained on."""
    extra = {name: message.extra[name] for name in THOUGHTS if message.extra.get(name)}
    return message.to_dict() | extra | ({"weight": 0} if message.extra.get("weight") == 0 else {})


def _mask_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Set weight 0 on the assistant messages of a request, which its call did not sample."""
    return tuple(
        replace(m, extra={**m.extra, "weight": 0}) if m.role == "assistant" else m for m in messages
    )


def conversations(
    calls: Sequence[Call],
) -> list[tuple[str, tuple[Message, ...], tuple[ToolSpec, ...]]]:
    """Join calls to conversations. Return the agent, messages and tools of each conversation.

    A call continues a conversation of the same agent with the same tools if its messages begin with
    the whole conversation. Replies are kept as sampled, not as repeated by the client; assistant
    messages that no call sampled have `weight` 0 in their `extra`.
    """
    results: list[tuple[str, tuple[Message, ...], tuple[ToolSpec, ...]]] = []
    for call in calls:
        for i, (agent, earlier, tools) in enumerate(results):
            sent, is_same = call.messages, (agent, tools) == (call.agent, call.tools)
            if is_same and len(sent) >= len(earlier) and all(map(_is_same_message, earlier, sent)):
                new = _mask_messages(call.messages[len(earlier) :])
                results[i] = (agent, (*earlier, *new, call.reply), tools)
                break
        else:
            results.append((call.agent, (*_mask_messages(call.messages), call.reply), call.tools))
    return results


def _is_same_message(sampled: Message, sent: Message) -> bool:
    """Return True if two messages are equal or have the same tool call ids.

    Some clients reformat the arguments of tool calls.
    """
    if sampled == sent:
        return True
    ids = [call.id for call in sampled.tool_calls]
    return bool(ids) and ids == [call.id for call in sent.tool_calls]
