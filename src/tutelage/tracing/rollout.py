"""The spans of a rollout, computed from its record: one trace per attempt, no orphans.

A `Rollout` already holds every call, tool result, reward and failure, so its spans are computed
from it only when they are viewed or exported, at no cost to the rollout. Spans that the record does
not contain, opened by user code or sent by other programs, are stored and joined in `tree.py`.
Training tokens never come from spans.

    invoke_agent {agent}     the root, with the events of the reward
    ├── chat {model}         one for each call
    └── execute_tool {name}  one for each tool result

With several agents the root is `invoke_workflow rollout` and each agent has its own span below it,
so that there is one `invoke_agent` for each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tutelage.tracing import names
from tutelage.tracing.records import (
    Identity,
    SpanEvent,
    SpanRecord,
    Status,
    make_span_id,
    make_trace_id,
)
from tutelage.types import UNBOUNDED, Attempt, Call, Message, Rollout, RolloutStatus, ToolResult

PROVIDER = "tutelage"
"""Also the service, and the scope of our spans."""
MODEL, OTHER_MODEL = "policy", "other"
"""Names of the trained policy, and of an unknown model that answered calls."""
TEAM = "rollout"
"""Workflow of the root if several agents made calls."""


def rollout_spans(rollout: Rollout, *, content: bool = False) -> list[SpanRecord]:
    """Return the spans of all attempts of a rollout. The root of each attempt comes first.

    `content` adds messages, arguments and results; otherwise a trace contains none of them.
    """
    return [
        span for attempt in rollout.attempts for span in attempt_spans(rollout, attempt, content)
    ]


def attempt_spans(rollout: Rollout, attempt: Attempt, content: bool = False) -> list[SpanRecord]:
    """Return the spans of one attempt, the root first."""
    return _SpanBuilder(rollout, attempt, content).build()


def to_workflow(root: SpanRecord) -> SpanRecord:
    """Rename an attempt's root span as a workflow, because several agents ran in it."""
    attributes = {k: v for k, v in root.attributes.items() if k != names.AGENT}
    attributes |= {names.OPERATION: names.INVOKE_WORKFLOW, names.WORKFLOW: TEAM}
    return replace(root, name=f"{names.INVOKE_WORKFLOW} {TEAM}", attributes=attributes)


class _SpanBuilder:
    """Builder of the spans of one attempt."""

    def __init__(self, rollout: Rollout, attempt: Attempt, content: bool) -> None:
        self._rollout, self._attempt, self._content = rollout, attempt, content
        self._trace = make_trace_id(Identity(rollout.run_id, rollout.id, attempt.id))
        self._root = make_span_id(self._trace)
        first = next((c.started for c in attempt.calls if c.started), 0.0)
        self._start = _to_ns(attempt.started or first)

    def build(self) -> list[SpanRecord]:
        attempt = self._attempt
        agents = list(dict.fromkeys(call.agent for call in attempt.calls))
        team = len(agents) > 1
        calls = {tool.id: (call, tool) for call in attempt.calls for tool in call.reply.tool_calls}
        results = {result.call_id: result for result in attempt.tool_results}
        for call in attempt.calls:
            # A framework runs its tools itself: their results are in its next request.
            for message in call.messages:
                call_id, text = message.tool_call_id or "", message.content or ""
                if message.role == "tool" and call_id in calls and call_id not in results:
                    source, tool = calls[call_id]
                    start = source.started and source.started + source.seconds
                    time = max(0.0, call.started - start)
                    result = ToolResult(call_id, tool.name, tool.arguments, text, None, time, start)
                    results[call_id] = result
        parents = {a: make_span_id(self._trace, "agent", a) if team else self._root for a in agents}
        spans: list[SpanRecord] = []
        for i, call in enumerate(attempt.calls):
            spans.append(self._chat_span(i, call, parents[call.agent]))
            for tool in call.reply.tool_calls:
                if tool.id in results:
                    result = results.pop(tool.id)
                    spans.append(self._tool_span(tool.id, result, parents[call.agent]))
        unmatched = [(i, r) for i, r in enumerate(attempt.tool_results) if r.call_id in results]
        spans += [self._tool_span(f"{i}", result, self._root) for i, result in unmatched]
        groups = [self._agent_span(a, parents[a], spans) for a in agents] if team else []
        top = self._root_span((agents or ["main"])[0], spans)
        return [to_workflow(top) if team else top, *groups, *spans]

    def _make_span(self, attributes: Mapping[str, Any], **fields: Any) -> SpanRecord:
        """Build a span of the attempt, without the attributes that are None."""
        rollout, attempt = self._rollout, self._attempt
        own = {names.ROLLOUT_ID: rollout.id, names.ATTEMPT_ID: attempt.id}
        return SpanRecord(
            trace_id=self._trace,
            attributes={k: v for k, v in attributes.items() if v is not None} | own,
            resource={names.SERVICE: PROVIDER, names.RUN_ID: rollout.run_id},
            scope=PROVIDER,
            rollout_id=rollout.id,
            attempt_id=attempt.id,
            **fields,
        )

    def _root_span(self, agent: str, spans: Sequence[SpanRecord]) -> SpanRecord:
        rollout, attempt, failure = self._rollout, self._attempt, self._attempt.failure
        start = min([self._start, *(s.start_ns for s in spans)])
        end = max([self._start + _to_ns(attempt.seconds), *(s.end_ns for s in spans)])
        request = text = None
        if self._content:
            sent: Sequence[Message] = ()
            with suppress(KeyError, TypeError, ValueError):  # the task may not have messages
                sent = rollout.task.messages()
            request = _dump_messages(sent)
            if attempt.answer is not None:
                text = _dump_messages([Message("assistant", attempt.answer)], attempt.stop)
        attributes = {
            names.OPERATION: names.INVOKE_AGENT,
            names.PROVIDER: PROVIDER,
            names.AGENT: agent,
            names.CONVERSATION: rollout.id,
            names.INPUT_TOKENS: sum(_count_tokens(call)[0] for call in attempt.calls),
            names.OUTPUT_TOKENS: sum(_count_tokens(call)[1] for call in attempt.calls),
            names.TASK_ID: rollout.task.id,
            names.MODE: rollout.mode.value,
            names.STEP: rollout.step,
            names.LABEL: rollout.label or None,
            names.ERROR_TYPE: None if failure is None else failure.cause.value,
            names.INPUT_MESSAGES: request,
            names.OUTPUT_MESSAGES: text,
        }
        events: list[tuple[str, dict[str, Any]]] = []
        if attempt.reward is not None:  # followed by its parts
            scores = {"reward": attempt.reward.value}
            scores |= {f"reward.{name}": value for name, value in attempt.reward.parts.items()}
            for name, value in scores.items():
                score = {names.EVALUATION_NAME: name, names.SCORE: float(value)}
                events.append((names.EVALUATION, score))
        if failure is not None:
            cause = {names.EXCEPTION_TYPE: failure.cause.value}
            message = {names.EXCEPTION_MESSAGE: failure.message}
            trace = {names.EXCEPTION_STACKTRACE: failure.traceback} if failure.traceback else {}
            events.append((names.EXCEPTION, cause | message | trace))
        status: Status = "ok" if attempt.status is RolloutStatus.SUCCEEDED else "unset"
        return self._make_span(
            attributes,
            span_id=self._root,
            parent_id=None,
            name=f"{names.INVOKE_AGENT} {agent}",
            start_ns=start,
            end_ns=end,
            events=tuple(SpanEvent(name, end, values) for name, values in events),
            status=status if failure is None else "error",
            status_message="" if failure is None else failure.message,
        )

    def _agent_span(self, agent: str, span_id: str, spans: Sequence[SpanRecord]) -> SpanRecord:
        own = [s for s in spans if s.parent_id == span_id]
        attributes = {
            names.OPERATION: names.INVOKE_AGENT,
            names.PROVIDER: PROVIDER,
            names.AGENT: agent,
        }
        return self._make_span(
            attributes,
            span_id=span_id,
            parent_id=self._root,
            name=f"{names.INVOKE_AGENT} {agent}",
            start_ns=min(s.start_ns for s in own),
            end_ns=max(s.end_ns for s in own),
        )

    def _chat_span(self, position: int, call: Call, parent: str) -> SpanRecord:
        sampled, sampling = call.sampled, call.sampling
        model = call.model or (MODEL if call.policy == "main" else call.policy or OTHER_MODEL)
        prompt_tokens, sampled_tokens = _count_tokens(call)
        reason = "tool_calls" if call.reply.tool_calls else sampled.stop_reason.value
        attributes = {
            names.OPERATION: names.CHAT,
            names.PROVIDER: PROVIDER,
            names.AGENT: call.agent,
            names.REQUEST_MODEL: model,
            names.RESPONSE_MODEL: call.answered_by or model,
            names.TEMPERATURE: sampling.temperature,
            names.TOP_P: sampling.top_p,
            names.MAX_TOKENS: None if sampling.max_tokens == UNBOUNDED else sampling.max_tokens,
            names.RESPONSE_ID: call.id,
            names.FINISH_REASONS: [reason],
            names.INPUT_TOKENS: prompt_tokens,
            names.OUTPUT_TOKENS: sampled_tokens,
            names.POLICY_VERSION: sampled.policy_version,
            names.TOP_K: sampling.top_k or None,
            names.STOP_SEQUENCES: list(sampling.stop) or None,
            names.TURN_REWARD: call.reward,
            names.TURN_INFO: json.dumps(call.info) if self._content and call.info else None,
            names.INPUT_MESSAGES: _dump_messages(call.messages) if self._content else None,
            names.OUTPUT_MESSAGES: _dump_messages([call.reply], reason) if self._content else None,
        }
        start = _to_ns(call.started) or self._start
        return self._make_span(
            attributes,
            span_id=make_span_id(self._trace, "chat", position),
            parent_id=parent,
            name=f"{names.CHAT} {model}",
            start_ns=start,
            end_ns=start + _to_ns(call.seconds),
            kind="client",
        )

    def _tool_span(self, key: str, result: ToolResult, parent: str) -> SpanRecord:
        attributes = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL: result.name,
            names.TOOL_CALL_ID: result.call_id,
            names.ERROR_TYPE: result.error,
            names.TOOL_ARGUMENTS: result.arguments if self._content else None,
            names.TOOL_RESULT: result.text if self._content else None,
        }
        start = _to_ns(result.started) or self._start
        return self._make_span(
            attributes,
            span_id=make_span_id(self._trace, "tool", key),
            parent_id=parent,
            name=f"{names.EXECUTE_TOOL} {result.name}",
            start_ns=start,
            end_ns=start + _to_ns(result.seconds),
            status="unset" if result.error is None else "error",
            status_message=result.error or "",
        )


def _count_tokens(call: Call) -> tuple[int, int]:
    """Return the numbers of prompt and completion tokens of a call."""
    return call.usage or (len(call.prompt_ids), len(call.sampled.token_ids))


def _dump_messages(messages: Sequence[Message], finish_reason: str | None = None) -> str:
    """Encode messages as JSON in the format of OpenTelemetry's GenAI conventions."""
    out: list[dict[str, Any]] = []
    for message in messages:
        item: dict[str, Any] = {"role": message.role, "parts": _message_parts(message)}
        if finish_reason is not None:
            item["finish_reason"] = finish_reason
        out.append(item)
    return json.dumps(out, ensure_ascii=False)


def _message_parts(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        response = message.content or ""
        return [{"type": "tool_call_response", "id": message.tool_call_id, "response": response}]
    parts: list[dict[str, Any]] = []
    if message.content:
        parts.append({"type": "text", "content": message.content})
    for call in message.tool_calls:
        part = {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
        parts.append(part)
    return parts


def _to_ns(seconds: float) -> int:
    return int(seconds * 1e9)
