"""What a reply says, whichever API it goes out through.

A `ChatReply` is there from the start, with its id and its request; its choices come when sampling
has ended. `ReplyStream` finds out what of it may be sent before that, and has a dialect's `Writer`
say so (`dialects/`). `request.py` is the other direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tutelage.gateway.completions import PendingCompletion
from tutelage.gateway.errors import ApiError
from tutelage.gateway.request import ChatRequest
from tutelage.gateway.text import TextDecoder, TextStream, cut
from tutelage.types import JSON, Call, StopReason


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The answer to a request. While it is sampled, `choices` is empty and nothing is counted."""

    answer: PendingCompletion
    choices: tuple[Call, ...] = ()

    @property
    def request(self) -> ChatRequest:
        """What was asked."""
        return self.answer.request

    @property
    def usage(self) -> tuple[int, int]:
        """Prompt and completion tokens."""
        return self.answer.usage

    def logprobs(
        self, choice: Call, *, ends: bool = False, unknown: list[int] | None = None
    ) -> list[JSON] | None:
        """Log-probabilities of the sampled tokens at temperature 1, None where none were asked for.

        One entry for each token; the end-of-turn token, which is no text, only if `ends`. A token
        that is part of a character has the bytes `unknown`.
        """
        if self.request.passed.get("logprobs"):
            told = getattr(self.answer.model.client, "logprobs", None)
            return None if told is None else told(choice)
        decoder, sampled = self.answer.model.decoder, choice.sampled
        if decoder is None or not self.request.logprobs:
            return None
        records: list[JSON] = []
        pairs = zip(sampled.token_ids, sampled.raw_logprobs, strict=True)
        for i, (token, value) in enumerate(pairs):
            if token in decoder.eos_ids and not ends:
                continue
            others = sampled.top[i] if i < len(sampled.top) else ()
            top = [_entry(decoder, *pair, unknown) for pair in others]
            records.append({**_entry(decoder, token, value, unknown), "top_logprobs": top})
        return records


def _entry(decoder: TextDecoder, token: int, value: float, unknown: list[int] | None) -> JSON:
    """A token with its log-probability."""
    text = decoder.decode([token])
    exact = unknown if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": value, "bytes": exact}


def finish_reason(call: Call) -> str:
    """Why a choice ended, in OpenAI's words."""
    if call.reply.tool_calls:
        return "tool_calls"
    return "length" if call.sampled.stop_reason is StopReason.LENGTH else "stop"


def stopped_by(call: Call) -> str | None:
    """The stop string that ended a choice, None where none did."""
    content = call.reply.content or ""
    places = [(at, stop) for stop in call.sampling.stop if (at := content.find(stop)) >= 0]
    return min(places)[1] if places else None


def shown_content(call: Call) -> str | None:
    """The text of a choice as the client sees it; None only beside tool calls."""
    content = cut(call.reply.content, call.sampling.stop, exact=not call.messages)
    if not content:
        return None if call.reply.tool_calls else ""
    return content


class Writer(Protocol):
    """The events of one streamed answer, as bytes to send, in one dialect."""

    def text(self, index: int, new: str) -> bytes:
        """More text of a choice."""
        ...

    def finish(self, reply: ChatReply, rests: Sequence[str]) -> bytes:
        """What is left to say of the whole reply; `rests` is the text of each choice that has not
        gone out."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """The end of a stream that breaks."""
        ...


class ReplyStream:
    """Hands what can be sent of an answer to its writer."""

    def __init__(self, answer: PendingCompletion, writer: Writer) -> None:
        self._answer, self._writer = answer, writer
        request, decoder = answer.request, answer.model.decoder
        self._read = [0] * request.choices
        self._texts: list[TextStream] = []
        """Of each choice; empty without a decoder: what goes out before the end is the text that
        the client hands out itself, if it does."""
        if decoder is not None and _can_stream(decoder):
            stops = request.sampling.stop
            exact = bool(request.prompts)
            self._texts = [TextStream(decoder, stops, exact=exact) for _ in range(request.choices)]

    def feed(self) -> bytes:
        """What the tokens that came since the last call allow to be sent."""
        out = b""
        for i, text in enumerate(self._texts):
            ids, read = self._answer.tokens[i], self._read[i]
            if len(ids) > read:
                self._read[i] = len(ids)
                new = text.feed(ids[read:])
                out += self._writer.text(i, new) if new else b""
        for i, text in enumerate(() if self._texts else self._answer.texts):
            if new := text[self._read[i] :]:
                self._read[i] = len(text)
                out += self._writer.text(i, new)
        return out

    def finish(self, reply: ChatReply) -> bytes:
        """The rest, once sampling has ended."""
        rests = [shown_content(choice) or "" for choice in reply.choices]
        if not self._texts:
            rests = [rest[read:] for rest, read in zip(rests, self._read, strict=True)]
        else:
            rests = [text.finish(rest) for text, rest in zip(self._texts, rests, strict=True)]
        return self._writer.finish(reply, rests)


def _can_stream(decoder: TextDecoder | None) -> bool:
    """Whether it is known how this model writes its tool calls, so that they can be held back."""
    return decoder is not None and decoder.call_format in ("hermes", "llama")
