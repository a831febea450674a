"""Call log of `tutelage serve --record`: a line of JSON for each choice and each agent's span.

The line of a call has its messages (or prompt), tools, sampling parameters, constraint, token ids,
log-probabilities and reply; for a forwarded call, also the other fields of the upstream request and
reply. A reply that failed or was abandoned by its client is recorded up to that point, with the
reason and without tokens. `record.py` delivers the calls.
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
    """Log file of calls and spans, with one line of JSON for each."""

    def __init__(self, path: Path) -> None:
        """Open the log file. Raises `StoreError` if it cannot be written."""
        self.path, self._lock = path, threading.Lock()
        try:
            self._file = path.open("ab", buffering=0)
            self._line_open = False
            if path.is_file() and path.stat().st_size and os.access(path, os.R_OK):
                with path.open("rb") as file:
                    file.seek(-1, os.SEEK_END)
                    self._line_open = file.read(1) != b"\n"  # left by a killed process
            self._write(b"")
        except OSError as error:
            raise StoreError(f"cannot write {str(path)!r}: {error.strerror}") from error

    def __call__(self, request: RecordedRequest) -> None:
        """Log a request, one line per choice. For failed requests, only choices with output are
        logged."""
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
            sized = call.usage is not None or bool(call.prompt_ids)
            lines.append({
                "reply": call.reply.to_dict(extra=True),
                "finish_reason": request.finish_reasons[i],
                "prompt_ids": call.prompt_ids,
                "token_ids": call.sampled.token_ids,
                "logprobs": call.sampled.logprobs,
                "parse_errors": call.parse_errors,
                "usage": {"input_tokens": counts[0], "output_tokens": counts[1]} if sized else None,
            })  # fmt: skip
        for reply in request.partial_replies:
            lines.append({
                "reply": {"role": "assistant", **reply},
                "finish_reason": "cancelled" if request.disconnected else "error",
                "error": "the client disconnected" if request.disconnected else request.error,
            })  # fmt: skip
        for i, line in enumerate(lines):
            if request.calls or any(v for name, v in line["reply"].items() if name != "role"):
                record = {**head, "choice": i, **request.describe_choice(i), **line}
                self._write(orjson.dumps(record) + b"\n")

    def log_spans(self, run_id: str, spans: Sequence[SpanRecord]) -> None:
        """Log the spans that an agent sent. Thread-safe."""
        self._write(b"".join(orjson.dumps({"span": span}) + b"\n" for span in spans))

    def _write(self, lines: bytes) -> None:
        """Append lines to the log. An incomplete last line is ended first. Raises `OSError`."""
        with self._lock:
            rest = memoryview(b"\n" + lines if self._line_open else lines)
            while rest:
                written = self._file.write(rest)
                rest = rest[written:]
                self._line_open = bool(rest)  # if the rest cannot be written

    def close(self) -> None:
        """Close the log file. Write errors are ignored, since earlier calls have reported them."""
        with suppress(OSError):
            self._file.close()
