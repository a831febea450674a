"""A recorded rollout as a search sees it: reward, exactness, evidence in words, what it cost.

The evidence is what a person would want to read: each tool call with its result, what was said,
what the grader thinks. `suspected_components` says which of several components were in force where
it went wrong, from the failing tool, the failing span, named rewards, and the texts in the failing
call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from tutelage.engine.usage import Usage
from tutelage.prompts.contract import Components, Episode
from tutelage.resources import NamedResources
from tutelage.runs.report.transcripts import read_transcript
from tutelage.statistics.outcome import RewardKind, Success, succeeded
from tutelage.tools.tool import Tool
from tutelage.tracing.records import SpanRecord
from tutelage.types import EXPECTED_FIELDS, Attempt, Call, Rollout

_SLOT = re.compile(r"\{+[A-Za-z_]\w*\}+")
_SHORTEST = 12
"""Characters of a component's text that are enough to know it by."""


def episode_of(
    rollout: Rollout,
    components: Components,
    resources: NamedResources,
    spans: Sequence[SpanRecord],
    said: str,
    usage: Usage | None,
    rule: Success | None = None,
) -> Episode:
    """The episode. `said` is the grader's own feedback, `usage` what a server counted, `rule` what
    the user says is right."""
    last = rollout.last
    reward = None if last.reward is None else last.reward.value
    parts = {} if last.reward is None else last.reward.parts
    failed = last.failure is not None
    exact: bool | None = not failed and succeeded(rollout, rule)
    if not failed and not RewardKind().after([rollout], rule).has_success:
        exact = None
    wrong = failed or not exact
    return Episode(
        reward=reward,
        exact=exact,
        feedback=_feedback(rollout, parts, said),
        trace=_trace_text(rollout),
        failure=None if last.failure is None else last.failure.cause,
        usage=usage or _usage_of(rollout),
        blame=tuple(suspected_components(last, parts, components, resources, spans))
        if wrong
        else (),
    )


def _trace_text(rollout: Rollout) -> str:
    """Tool calls, their results and what was said, a line each."""
    read = read_transcript(rollout)
    words = {"call": "call {}({})", "result": "{} returned: {}", "error": "{} failed: {}"}
    lines = [
        words[step.kind].format(step.name, step.text) if step.kind in words else step.text
        for step in read.steps
    ]
    answer = rollout.last.answer
    if answer is not None and (not lines or answer.strip() not in lines[-1]):
        lines.append(f"answer: {answer}")
    return "\n".join(lines)


def _usage_of(rollout: Rollout) -> Usage:
    """What a policy of our own computed."""
    calls = [call for attempt in rollout.attempts for call in attempt.calls]
    tokens = sum(len(c.prompt_ids) + len(c.sampled.token_ids) for c in calls)
    return Usage(len(calls), tokens)


def _feedback(rollout: Rollout, parts: Mapping[str, float], said: str) -> str:
    last = rollout.last
    lines = [said] if said else []
    if last.failure is not None:
        lines.append(last.failure.message)
    elif last.stop not in (None, "answer", "terminated"):
        lines.append(f"the agent gave no answer: it ended at {last.stop}")
    if not said and last.reward is not None and last.reward.value < 1:
        expected = next((rollout.task.fields.get(n) for n in EXPECTED_FIELDS), None)
        if expected is not None:
            lines.append(f"the expected answer is {expected!r}, the agent's is {last.answer!r}")
    told = [f"{name}={value:.3g}" for name, value in parts.items() if name != "exact"]
    if told:
        lines.append("graded: " + ", ".join(told))
    return "; ".join(lines)


def suspected_components(
    attempt: Attempt,
    parts: Mapping[str, float],
    components: Components,
    resources: NamedResources,
    spans: Sequence[SpanRecord],
) -> Iterator[str]:
    """Components by suspicion: a tool that failed, a span or a reward of a component's name that
    did, then those whose text stands in the failing call. Nothing where there is one component."""
    if len(components) < 2:
        return
    broken = {result.name for result in attempt.tool_results if result.error is not None}
    tools = {n: v.name for n in components if isinstance(v := resources.get(n), Tool)}
    names = [name for name, tool in tools.items() if tool in broken]
    names += _of_spans(components, spans)
    names += [name for name in components if parts.get(name, 1.0) < 1.0 - 1e-9]
    call = _failing_call(attempt, broken)
    if call is not None:
        message = "\n".join(m.content or "" for m in call.messages)
        texts = {n: text for n, text in components.items() if n not in tools}
        named = {n for n, text in texts.items() if _stands_in(text, message)} | {call.agent}
        names += [name for name in components if name in named]
        # A tool that was offered and never called may not have been described well enough.
        called = {c.name for made in attempt.calls for c in made.reply.tool_calls}
        idle = {t.name for t in call.tools} - called
        names += [name for name, tool in tools.items() if tool in idle]
    yield from dict.fromkeys(names)


def _of_spans(components: Components, spans: Sequence[SpanRecord]) -> Iterator[str]:
    for span in spans:
        if span.status == "error":
            names = (span.name, span.attributes.get("gen_ai.agent.name"))
            yield from (str(n) for n in names if n in components)


def _failing_call(attempt: Attempt, broken: set[str]) -> Call | None:
    """The call that asked for a tool that failed; else the last one, which gave the answer."""
    for call in attempt.calls:
        if any(c.name in broken for c in call.reply.tool_calls):
            return call
    return attempt.calls[-1] if attempt.calls else None


def _stands_in(text: str, said: str) -> bool:
    """Whether the longest piece of a template between its placeholders stands in what was said."""
    piece = max((p.strip() for p in _SLOT.split(text)), key=len, default="")
    return len(piece) >= min(_SHORTEST, max(1, len(text.strip()))) and piece in said
