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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from tutelage.engine.answered import answered, sent_sampling
from tutelage.engine.asked import passed_on
from tutelage.errors import StoreError
from tutelage.gateway.record import CallSpan
from tutelage.gateway.request import ChatRequest
from tutelage.tracing import SpanRecord
from tutelage.types import JSON, UNBOUNDED, ChatOptions, Sampling, ToolSpec


class CallLog:
    """Appends to a file."""

    def __init__(self, path: Path, defaults: Mapping[str, Any] | None = None) -> None:
        """`defaults` is what another server is asked where a request is silent. Raises `StoreError`
        when the file cannot be written."""
        self.path, self._lock = path, threading.Lock()
        try:
            self._file = path.open("ab", buffering=0)
            self._torn = _ends_within_a_line(path)  # of a process that was killed
            self._write(b"")
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
            "start_ns": span.began_ns,
            "end_ns": span.ended_ns,
            **({"unused": span.unused} if span.unused else {}),
        }
        for line in _whole(span) if span.error is None else self._broken(span):
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

    def _broken(self, span: CallSpan) -> Iterator[JSON]:
        """Choices of which something had come."""
        asked = span.request
        for i, reply in enumerate(span.partial):
            if asked is None or not any(value for name, value in reply.items() if name != "role"):
                continue
            sent = self._sent(asked, i)
            yield {
                "choice": i,
                **_prompt(asked, i),
                "messages": [m.to_dict(extra=True) for m in asked.messages],
                "tools": _tools(asked.tools, asked),
                "sampling": _sampling(asked.sampling, asked.seed_of(i), sent),
                "constraint": asked.constraint,
                "reply": reply,
                "finish_reason": "cancelled" if span.left else "error",
                "error": "the client disconnected" if span.left else span.error,
                **({} if sent is None else {"sent": sent, "answered": None}),
            }

    def _sent(self, asked: ChatRequest, index: int) -> JSON | None:
        """What another server was asked for a choice, as `Answered.sent` has it; None where none
        was."""
        if asked.passed is None:
            return None
        options: ChatOptions = {"sampling": asked.sampling, "seed": asked.seed_of(index)}
        body = self._defaults | passed_on(asked.passed, asked.messages, options)
        return answered({"choices": [{}]}, body).sent


def _ends_within_a_line(path: Path) -> bool:
    if not (path.is_file() and path.stat().st_size and os.access(path, os.R_OK)):
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _whole(span: CallSpan) -> Iterator[JSON]:
    asked = span.request
    for i, call in enumerate(span.calls):
        told = span.answered[i]
        seed = None if asked is None else asked.seed_of(i)
        yield {
            "choice": i,
            **_prompt(asked, i),
            "messages": [m.to_dict(extra=True) for m in call.messages],
            "tools": _tools(call.tools, asked),
            "sampling": _sampling(call.sampling, seed, None if told is None else told.sent),
            "constraint": call.constraint,
            "reply": call.reply.to_dict(extra=True),
            "finish_reason": span.finish_reasons[i],
            "prompt_ids": call.prompt_ids,
            "token_ids": call.sampled.token_ids,
            "logprobs": call.sampled.logprobs,
            "parse_errors": call.parse_errors,
            "usage": None
            if told is not None and not (told.counts or call.prompt_ids)
            else dict(zip(("input_tokens", "output_tokens"), span.counts[i], strict=True)),
            **({} if told is None else told.to_dict()),
        }


def _prompt(asked: ChatRequest | None, index: int) -> JSON:
    """What a choice continues in place of messages."""
    prompt = None if asked is None else asked.prompt_of(index)
    return {} if prompt is None else {"prompt": prompt}


def _tools(tools: Sequence[ToolSpec], asked: ChatRequest | None) -> list[JSON]:
    """The tools, with `strict` where the request says so."""
    told = [tool.to_dict() for tool in tools]
    for tool in told:
        if asked is not None and tool["function"]["name"] in asked.strict:
            tool["function"]["strict"] = True
    return told


def _sampling(sampling: Sampling, seed: int | None, sent: JSON | None) -> JSON:
    """How it was sampled, here or by a server that was sent this; a limit that nobody named is
    null."""
    if sent is not None:
        return {**sent_sampling(sent), "seed": sent.get("seed")}
    limit = None if sampling.max_tokens == UNBOUNDED else sampling.max_tokens
    return {**asdict(sampling), "max_tokens": limit, "seed": seed}
