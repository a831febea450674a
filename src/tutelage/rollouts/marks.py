"""Which calls are trained once an agent of the rollout is marked, by its name.

A call is known by the name that it carries (`rollout.agent(...)`, a key, a path), else by the one
that a framework's own spans give it: the span of the call stands below that of the agent, and names
the response that our gateway gave. Where a framework's spans name no response, the one agent that
was at work for the whole of the call is taken. `runner.py` asks at the end of each attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tutelage.resources import MAIN_AGENT
from tutelage.tracing import SpanRecord, names
from tutelage.types import Call


def trained(
    calls: Sequence[Call], marked: Collection[str], spans: Sequence[SpanRecord]
) -> list[Call]:
    """The calls, with no policy where the agent that made them is not marked, and with the name
    that a framework gives its agent where they have none of their own."""
    if not marked:
        return list(calls)
    frameworks = _Agents(spans)
    out: list[Call] = []
    for call in calls:
        if call.agent == MAIN_AGENT and call.agent not in marked:
            call = replace(call, agent=frameworks.of(call) or call.agent)
        out.append(call if call.agent in marked else replace(call, policy=None))
    return out


class _Agents:
    """The agents of an attempt's spans."""

    def __init__(self, spans: Sequence[SpanRecord]) -> None:
        self._by_id: Mapping[str, SpanRecord] = {span.span_id: span for span in spans}
        self._of_response: dict[str, SpanRecord] = {}
        for span in spans:
            response = span.attributes.get(names.RESPONSE_ID)
            if isinstance(response, str):
                self._of_response[response] = span
        self._agents = [span for span in spans if _name(span) is not None]

    def of(self, call: Call) -> str | None:
        """The agent of a call; None where its spans do not tell."""
        span = self._of_response.get(call.id)
        if span is not None:
            return next((n for s in self._upward(span) if (n := _name(s)) is not None), None)
        began = call.started * 1e9
        ended = began + call.seconds * 1e9
        around = [s for s in self._agents if s.start_ns <= began and ended <= s.end_ns]
        outer = {above.span_id for s in around for above in self._upward(s)[1:]}
        inner = {_name(s) for s in around if s.span_id not in outer}
        return inner.pop() if len(inner) == 1 else None

    def _upward(self, span: SpanRecord) -> list[SpanRecord]:
        """A span and those above it, the nearest first."""
        out, seen = [span], {span.span_id}
        while (above := self._by_id.get(out[-1].parent_id or "")) is not None:
            if above.span_id in seen:
                break
            seen.add(above.span_id)
            out.append(above)
        return out


def _name(span: SpanRecord) -> str | None:
    found = span.attributes.get(names.AGENT)
    return found if isinstance(found, str) and found else None
