"""What a reply says, whichever API it goes out through.

A `PendingCompletion` is there from the start, with its id and its request; its choices come when
sampling has ended. `ReplyStream` finds out what of it may be sent before that, and has a dialect's
`Writer` say so (`dialects/`). `request.py` is the other direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Protocol

import orjson

from tutelage.gateway.completions import PendingCompletion, Piece
from tutelage.gateway.errors import ApiError
from tutelage.gateway.text import TextStream, TokenEnds, cut, first_stop
from tutelage.types import Call, StopReason


def finish_reason(call: Call) -> str:
    """Why a choice ended, in OpenAI's words."""
    reason = call.sampled.stop_reason
    if reason in (StopReason.CONTENT_FILTER, StopReason.LENGTH):
        return reason
    if call.reply.tool_calls:
        return "tool_calls"
    return "stop"


def cut_by(call: Call) -> str | None:
    """What cut a choice short, in the words of responses; None where nothing did."""
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    return reasons.get(call.sampled.stop_reason)


def stopped_by(reply: PendingCompletion, call: Call) -> str | None:
    """The stop string that ended a choice, None where none did."""
    if not call.sampling.stop:
        return None
    found = first_stop(_sampled_text(reply, call) or call.reply.content or "", call.sampling.stop)
    return None if found is None else found[1]


def _sampled_text(reply: PendingCompletion, call: Call) -> str:
    """The text in which the engine looked for stop strings, where the content is without the white
    space at its ends; empty where it has that, or nothing was to stop it."""
    decoder = reply.model.decoder
    if decoder is None or not (decoder.strips and call.messages and call.sampling.stop):
        return ""
    return decoder.decode([i for i in call.sampled.token_ids if i not in decoder.eos_ids])


def shown_content(reply: PendingCompletion, call: Call) -> str | None:
    """The text of a choice as the client sees it; None only beside tool calls."""
    content = call.reply.content
    if call.sampling.stop:
        exact, sampled = not call.messages, _sampled_text(reply, call)
        content = cut(content, call.sampling.stop, exact=exact, sampled=sampled)
    if not content:
        return None if call.reply.tool_calls else ""
    return content


DONE = b"data: [DONE]\n\n"
"""What ends a stream of OpenAI's APIs."""


def event(data: Any, name: str | None = None) -> bytes:
    """Return one server-sent event."""
    line = b"data: " + orjson.dumps(data) + b"\n\n"
    return line if name is None else b"event: " + name.encode() + b"\n" + line


class Writer(Protocol):
    """The events of one streamed answer, as bytes to send, in one dialect."""

    def text(self, index: int, new: Piece) -> bytes:
        """More text of a choice, or of its thought."""
        ...

    def finish(self, rests: Sequence[Piece]) -> bytes:
        """What is left to say of the whole reply; `rests` is what of each choice has not gone
        out."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """The end of a stream that breaks."""
        ...


class _ChoiceStream:
    """One choice of a streamed answer: what of it can be sent."""

    def __init__(self, reply: PendingCompletion, index: int) -> None:
        self._answer, self._index = reply, index
        request, decoder = reply.request, reply.model.decoder
        self._read = self._told = self._entries = self._parts = 0
        """Tokens (or characters, from a client that hands out text) that were read, tokens whose
        log-probabilities went out, the entries that they made, and parts that were read."""
        self._ends = TokenEnds()
        self._text: TextStream | None = None
        """None without a decoder: what goes out before the end is the text that the client hands
        out itself, if it does."""
        # Where it is not known how a model writes its tool calls, they cannot be held back.
        if decoder is not None and decoder.call_format in ("hermes", "llama"):
            stops, exact = request.sampling.stop, bool(request.prompts)
            self._text = TextStream(decoder, stops, exact=exact)

    def feed(self) -> Iterator[Piece]:
        """What may go out now, in its order."""
        if self._text is not None:
            if (piece := self._sampled(self._text)) is not None:
                yield piece
            return
        parts = self._answer.parts[self._index][self._parts :]
        self._parts += len(parts)
        for thought, group in groupby(parts, lambda part: part.thought):
            text = "".join(part.text for part in group)  # what came at once goes out at once
            self._read += 0 if thought else len(text)
            yield Piece(text, thought=thought)

    def _sampled(self, stream: TextStream) -> Piece | None:
        """What new tokens let go out."""
        ids = self._answer.tokens[self._index]
        new, self._read = ids[self._read :], len(ids)
        if not self._answer.request.logprobs:
            text = stream.feed(new) if new else ""
            return Piece(text) if text else None
        text = ""
        for token in new:
            text += stream.feed((token,))
            self._ends.add(stream.length)
        if not text:
            return None
        known = self._answer.token_logprobs[self._index]
        end = min(self._ends.within(len(stream.sent)), len(known))
        begin, self._told = self._told, max(self._told, end)
        entries = self._answer.entries(ids[begin:end], known[begin:end])
        self._entries += len(entries)
        return Piece(text, entries)

    def finish(self, choice: Call) -> Piece:
        """The rest, once sampling has ended."""
        whole = shown_content(self._answer, choice) or ""
        rest = whole[self._read :] if self._text is None else self._text.finish(whole)
        entries = self._answer.logprobs(choice)
        return Piece(rest, None if entries is None else entries[self._entries :])


class ReplyStream:
    """Hands what can be sent of an answer to its writer."""

    def __init__(self, answer: PendingCompletion, writer: Writer) -> None:
        self._writer = writer
        self._answer = answer
        self._choices = [_ChoiceStream(answer, i) for i in range(answer.request.choices)]

    def feed(self) -> bytes:
        """What the tokens that came since the last call allow to be sent."""
        return b"".join(
            self._writer.text(i, piece)
            for i, choice in enumerate(self._choices)
            for piece in choice.feed()
        )

    def finish(self) -> bytes:
        """The rest, once sampling has ended."""
        pairs = zip(self._choices, self._answer.calls, strict=True)
        return self._writer.finish([stream.finish(choice) for stream, choice in pairs])
