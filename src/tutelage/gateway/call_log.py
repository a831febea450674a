"""The record of `tutelage serve --record`: a line of JSON for each call, and for each span that an
agent sends.

A call's line has messages (or the prompt), tools, how it was sampled and constrained, token ids,
log-probabilities and the reply, and what another server was sent and said beside them. What had
come of a reply that broke off, or that its client left, is a line too, with the reason and without
tokens. `record.py` says what this is told.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import orjson

from tutelage.errors import StoreError
from tutelage.gateway.record import RecordedRequest
from tutelage.tracing import SpanRecord
from tutelage.types import JSON


class CallLog:
    """Appends to a file."""

    def __init__(self, path: Path) -> None:
        """Raises `StoreError` when the file cannot be written."""
        self.path, self._lock = path, threading.Lock()
        try:
            self._file = path.open("ab", buffering=0)
            self._torn = False
            if path.is_file() and path.stat().st_size and os.access(path, os.R_OK):
                with path.open("rb") as file:
                    file.seek(-1, os.SEEK_END)
                    self._torn = file.read(1) != b"\n"  # of a process that was killed
            self._write(b"")
        except OSError as error:
            raise StoreError(f"cannot write {str(path)!r}: {error.strerror}") from error

    def __call__(self, request: RecordedRequest) -> None:
        """Write a line for each choice of a request; of one that failed, for each of which
        something had come."""
        head = {
            "response_id": request.id,
            "agent": request.agent,
            "model": request.model_name,
            "api": request.api,
            "start_ns": request.began_ns,
            "end_ns": request.ended_ns,
        }
        lines: list[JSON] = []
        for i, call in enumerate(request.calls):
            counts = call.usage or (len(call.prompt_ids), len(call.sampled.token_ids))
            known = call.usage is not None or bool(call.prompt_ids)
            lines.append({
                "reply": call.reply.to_dict(extra=True),
                "finish_reason": request.finish_reasons[i],
                "prompt_ids": call.prompt_ids,
                "token_ids": call.sampled.token_ids,
                "logprobs": call.sampled.logprobs,
                "parse_errors": call.parse_errors,
                "usage": {"input_tokens": counts[0], "output_tokens": counts[1]} if known else None,
            })  # fmt: skip
        for reply in request.said:
            lines.append({
                "reply": {"role": "assistant", **reply},
                "finish_reason": "cancelled" if request.left else "error",
                "error": "the client disconnected" if request.left else request.error,
            })  # fmt: skip
        for i, line in enumerate(lines):
            if request.calls or any(v for name, v in line["reply"].items() if name != "role"):
                whole = {**head, "choice": i, **request.asked(i), **line}
                self._write(orjson.dumps(whole) + b"\n")

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
