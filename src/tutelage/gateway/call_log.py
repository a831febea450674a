"""The record of `tutelage serve --record`: a line of JSON for each call, and for each span that an
agent sends.

A call's line has messages, tools, token ids, log-probabilities and the reply, and what another
server was sent and said beside them. What had come of a reply that broke off, or that its client
left, is a line too, with the reason and without tokens. `record.py` has the spans of calls that
this is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from tutelage.engine.answered import sent_sampling
from tutelage.errors import StoreError
from tutelage.gateway.record import CallSpan
from tutelage.tracing import SpanRecord
from tutelage.types import JSON


class CallLog:
    """Appends to a file."""

    def __init__(self, path: Path, defaults: Mapping[str, Any] | None = None) -> None:
        """`defaults` is what another server is asked where a request is silent. Raises `StoreError`
        when the file cannot be written."""
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise StoreError(f"cannot write {str(path)!r}: {error.strerror}") from error
        self._defaults = dict(defaults or {})

    def __call__(self, span: CallSpan) -> None:
        """Write the calls of one response, or what had come of one that failed."""
        head = {
            "response_id": span.response_id,
            "agent": span.agent,
            "model": span.model,
            "api": span.api,
            **({"unused": span.unused} if span.unused else {}),
        }
        for line in _whole(span) if span.error is None else self._broken(span):
            self._file.write(orjson.dumps(head | line) + b"\n")
        self._file.flush()

    def spans(self, run_id: str, spans: Sequence[SpanRecord]) -> None:
        """Write the spans that an agent sent; threads may call it at once."""
        self._file.write(b"".join(orjson.dumps({"span": span}) + b"\n" for span in spans))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _broken(self, span: CallSpan) -> Iterator[JSON]:
        """Choices of which something had come."""
        asked = span.request
        for i, reply in enumerate(span.partial):
            if asked is None or not any(value for name, value in reply.items() if name != "role"):
                continue
            passed = None if asked.passed is None else self._defaults | asked.passed
            yield {
                "choice": i,
                "messages": [m.to_dict(extra=True) for m in asked.messages],
                "tools": [t.to_dict() for t in asked.tools],
                "sampling": asked.sampling if passed is None else sent_sampling(passed),
                "reply": reply,
                "finish_reason": "cancelled" if span.left else "error",
                "error": span.error,
            }


def _whole(span: CallSpan) -> Iterator[JSON]:
    for i, call in enumerate(span.calls):
        told = span.answered[i]
        yield {
            "choice": i,
            "messages": [m.to_dict(extra=True) for m in call.messages],
            "tools": [t.to_dict() for t in call.tools],
            "sampling": call.sampling if told is None else sent_sampling(told.sent),
            "reply": call.reply.to_dict(extra=True),
            "finish_reason": span.finish_reasons[i],
            "prompt_ids": call.prompt_ids,
            "token_ids": call.sampled.token_ids,
            "logprobs": call.sampled.logprobs,
            "parse_errors": call.parse_errors,
            "usage": {"input_tokens": span.input_tokens, "output_tokens": span.output_tokens},
            **({} if told is None else told.to_dict()),
        }
