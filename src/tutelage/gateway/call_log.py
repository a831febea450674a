"""The record of `tutelage serve --record`: a line of JSON for each call, and for each span that an
agent sends.

A call's line has messages (or the prompt), tools, how it was sampled and constrained, token ids,
log-probabilities and the reply, and what another server was sent and said beside them. What had
come of a reply that broke off, or that its client left, is a line too, with the reason and without
tokens. `record.py` has the spans of calls that this is told.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import orjson

from tutelage.errors import StoreError
from tutelage.gateway.record import CallSpan
from tutelage.tracing import SpanRecord
from tutelage.types import JSON, UNBOUNDED, Call


class CallLog:
    """Appends to a file."""

    def __init__(self, path: Path) -> None:
        """Raises `StoreError` when the file cannot be written."""
        self.path, self._lock = path, threading.Lock()
        try:
            self._file = path.open("ab", buffering=0)
            self._torn = _ends_within_a_line(path)  # of a process that was killed
            self._write(b"")
        except OSError as error:
            raise StoreError(f"cannot write {str(path)!r}: {error.strerror}") from error

    def __call__(self, span: CallSpan) -> None:
        """Write the calls of one response, or what had come of one that failed."""
        head = {
            "response_id": span.response_id,
            "agent": span.agent,
            "model": span.model,
            "api": span.api,
            "start_ns": span.began_ns,
            "end_ns": span.ended_ns,
            **({"unused": span.unused} if span.unused else {}),
        }
        for line in _lines(span):
            self._write(orjson.dumps(head | line) + b"\n")

    def spans(self, run_id: str, spans: Sequence[SpanRecord]) -> None:
        """Write the spans that an agent sent; threads may call it at once."""
        self._write(b"".join(orjson.dumps({"span": span}) + b"\n" for span in spans))

    def _write(self, lines: bytes) -> None:
        """Append whole lines, after the end of one that was cut off. Raises `OSError`."""
        with self._lock:
            left = memoryview(b"\n" + lines if self._torn else lines)
            while left:
                written = self._file.write(left)
                left = left[written:]
                self._torn = bool(left)  # should the rest find no room

    def close(self) -> None:
        """Close the file. What it has no room for is lost, as its caller was told at that call."""
        with suppress(OSError):
            self._file.close()


def _ends_within_a_line(path: Path) -> bool:
    if not (path.is_file() and path.stat().st_size and os.access(path, os.R_OK)):
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _lines(span: CallSpan) -> Iterator[JSON]:
    """Yield a line for each choice; of a call that broke off, for each of which something had
    come."""
    for i, call in enumerate(span.calls):
        counts = span.counts[i]
        yield {
            "choice": i,
            **_asked(span, i, call),
            "reply": call.reply.to_dict(extra=True),
            "finish_reason": span.finish_reasons[i],
            "prompt_ids": call.prompt_ids,
            "token_ids": call.sampled.token_ids,
            "logprobs": call.sampled.logprobs,
            "parse_errors": call.parse_errors,
            "usage": None
            if None in counts
            else dict(zip(("input_tokens", "output_tokens"), counts, strict=True)),
        }
    for i, reply in enumerate(span.partial):
        if any(value for name, value in reply.items() if name != "role"):
            yield {
                "choice": i,
                **_asked(span, i, None),
                "reply": {"role": "assistant", **reply},
                "finish_reason": "cancelled" if span.left else "error",
                "error": "the client disconnected" if span.left else span.error,
            }


def _asked(span: CallSpan, index: int, call: Call | None) -> JSON:
    """What a choice was asked, and how it was sampled; a limit that nobody named is null."""
    if (sent := span.sent) is not None:
        limit = sent.get("max_completion_tokens", sent.get("max_tokens"))
        said = {name: sent.get(name) for name in ("temperature", "top_p", "top_k", "stop", "seed")}
        return {
            "messages": sent.get("messages"),
            "tools": sent.get("tools") or [],
            "sampling": said | {"max_tokens": limit},
            "constraint": None,
            "sent": {k: v for k, v in sent.items() if k not in ("messages", "tools")},
            "answered": span.answered,
        }
    request = span.request
    assert request is not None
    asked, prompt = call or request, request.prompt_of(index)
    tools = [tool.to_dict() for tool in asked.tools]
    for tool in tools:
        if tool["function"]["name"] in request.strict:
            tool["function"]["strict"] = True
    sampling, limit = asked.sampling, asked.sampling.max_tokens
    drawn = {"max_tokens": None if limit == UNBOUNDED else limit, "seed": request.seed_of(index)}
    return {
        **({} if prompt is None else {"prompt": prompt}),
        "messages": [m.to_dict(extra=True) for m in asked.messages],
        "tools": tools,
        "sampling": {**asdict(sampling), **drawn},
        "constraint": asked.constraint,
    }
