"""What leaves while a run goes on: a rollout with the spans others recorded of it, as one trace.

The record of a rollout and a framework's spans of it come to the exporter one after another, and
both know its calls. So spans wait for their rollout, and are joined with it as in `tree.py`, each
call once. Spans that come after it (another program sends them when it likes) are joined with what
is remembered of it, and only what is new goes out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from tutelage.tracing import names
from tutelage.tracing.content import without_content
from tutelage.tracing.records import SpanRecord
from tutelage.tracing.rollout import rollout_spans
from tutelage.tracing.tree import whole_trace
from tutelage.types import Rollout

MAX_WAITING = 4096
"""Spans that may wait for their rollouts; the first ones then go without."""
MAX_REMEMBERED = 256
"""Rollouts whose late spans can be joined."""


class LiveTraces:
    """Takes rollouts and spans in the order in which they came; one thread at a time."""

    def __init__(self, content: bool) -> None:
        self._content = content
        self._waiting: OrderedDict[str, list[SpanRecord]] = OrderedDict()
        self._count = 0
        self._sent: OrderedDict[str, Rollout] = OrderedDict()

    def take(self, items: Iterable[Rollout | SpanRecord]) -> list[SpanRecord]:
        """The spans to send now."""
        out: list[SpanRecord] = []
        late: dict[str, list[SpanRecord]] = {}
        for item in items:
            if isinstance(item, Rollout):
                out += self._whole(item)
            elif item.rollout_id in self._sent:
                late.setdefault(item.rollout_id, []).append(item)
            elif item.rollout_id:
                self._waiting.setdefault(item.rollout_id, []).append(item)
                self._count += 1
            else:
                out.append(item)
        for rollout_id, spans in late.items():
            out += self._new(self._sent[rollout_id], spans)
        while self._count > MAX_WAITING:
            spans = self._waiting.popitem(last=False)[1]
            self._count -= len(spans)
            out += spans
        return self._allowed(out)

    def rest(self) -> list[SpanRecord]:
        """Spans whose rollout never came."""
        out = [span for spans in self._waiting.values() for span in spans]
        self._waiting.clear()
        self._count = 0
        return self._allowed(out)

    def _whole(self, rollout: Rollout) -> list[SpanRecord]:
        spans = self._waiting.pop(rollout.id, [])
        self._count -= len(spans)
        self._sent[rollout.id] = rollout
        while len(self._sent) > MAX_REMEMBERED:
            self._sent.popitem(last=False)
        return whole_trace(rollout, spans, content=self._content)

    def _new(self, rollout: Rollout, spans: Sequence[SpanRecord]) -> list[SpanRecord]:
        """Without the calls and agents that were sent with the rollout."""
        sent = {span.span_id for span in rollout_spans(rollout)}
        return [
            span
            for span in whole_trace(rollout, spans, content=self._content)
            if span.span_id not in sent
            and span.attributes.get(names.OPERATION) != names.INVOKE_AGENT
        ]

    def _allowed(self, spans: list[SpanRecord]) -> list[SpanRecord]:
        return spans if self._content else [without_content(span) for span in spans]
