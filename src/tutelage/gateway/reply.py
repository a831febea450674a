"""The content of a reply, independent of the API through which it is sent.

A `PendingCompletion` exists from the start with its id and request; its choices follow when
sampling has ended. A dialect's `Writer` (`dialects/`) streams what cannot change before that.
`request.py` is the other direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import orjson

from tutelage.gateway.completions import Delta, PendingCompletion
from tutelage.gateway.errors import ApiError
from tutelage.gateway.text import TextStream, find_stop, truncate_at_stop
from tutelage.types import Call, StopReason


def finish_reason(call: Call) -> str:
    """Return the finish reason of a choice, as in OpenAI's API."""
    reason = call.sampled.stop_reason
    if reason in (StopReason.CONTENT_FILTER, StopReason.LENGTH):
        return reason
    if call.reply.tool_calls:
        return "tool_calls"
    return "stop"


def truncation_reason(call: Call) -> str | None:
    """Return the truncation reason of a choice, as in the Responses API, or None if it is
    complete."""
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    return reasons.get(call.sampled.stop_reason)


def stop_sequence(reply: PendingCompletion, call: Call) -> str | None:
    """Return the stop string that ended a choice, or None."""
    if not call.sampling.stop:
        return None
    match = find_stop(_sampled_text(reply, call) or call.reply.content or "", call.sampling.stop)
    return None if match is None else match[1]


def _sampled_text(reply: PendingCompletion, call: Call) -> str:
    """Return the sampled text of a choice with its leading and trailing white space.

    It is empty if the content was not stripped or the request has no stop strings.
    """
    decoder = reply.model.decoder
    if decoder is None or not (decoder.strips and call.messages and call.sampling.stop):
        return ""
    return decoder.decode([i for i in call.sampled.token_ids if i not in decoder.eos_ids])


def visible_content(reply: PendingCompletion, call: Call) -> str | None:
    """Return the text of a choice for the client, or None if it has only tool calls."""
    content = call.reply.content
    if call.sampling.stop:
        exact, sampled = not call.messages, _sampled_text(reply, call)
        content = truncate_at_stop(content, call.sampling.stop, exact=exact, raw_text=sampled)
    if not content:
        return None if call.reply.tool_calls else ""
    return content


DONE = b"data: [DONE]\n\n"
"""The end of a stream of OpenAI's APIs."""


def event(data: Any, name: str | None = None) -> bytes:
    """Format data as a server-sent event."""
    line = b"data: " + orjson.dumps(data) + b"\n\n"
    return line if name is None else b"event: " + name.encode() + b"\n" + line


class _ChoiceStream:
    """Stream of the text of one choice, which is sent once no later token can change it."""

    def __init__(self, reply: PendingCompletion, index: int) -> None:
        self._answer, self._index = reply, index
        request, decoder = reply.request, reply.model.decoder
        self._read = self._parts = 0
        """Tokens (or characters, if the client streams text) and text parts that were read."""
        self._text: TextStream | None = None
        """None without a decoder; then only text that the client itself streams is sent early."""
        # Tool calls of an unknown format cannot be held back, so their text is not streamed. Text
        # with log-probabilities is sent as a whole, since its tokens end within characters.
        if decoder is None or request.logprobs:
            return
        if decoder.call_format in ("hermes", "llama"):
            stops, exact = request.sampling.stop, bool(request.prompts)
            self._text = TextStream(decoder, stops, exact=exact)

    def read_deltas(self) -> Iterator[Delta]:
        """Yield the new text deltas that are ready to stream, in order."""
        if self._text is not None:
            ids = self._answer.tokens[self._index]
            new, self._read = ids[self._read :], len(ids)
            if new and (text := self._text.feed(new)):
                yield Delta(text)
            return
        parts = self._answer.parts[self._index][self._parts :]
        self._parts += len(parts)
        for thought, group in groupby(parts, lambda part: part.thought):
            text = "".join(part.text for part in group)  # send parts that arrived together as one
            self._read += 0 if thought else len(text)
            yield Delta(text, thought=thought)

    def finish(self, choice: Call) -> Delta:
        """Return the unsent text, once sampling has ended."""
        content = visible_content(self._answer, choice) or ""
        rest = content[self._read :] if self._text is None else self._text.finish(content)
        return Delta(rest, self._answer.logprobs(choice))


class Writer:
    """Base class of writers that encode a streamed reply in the format of a dialect."""

    def __init__(self, reply: PendingCompletion) -> None:
        self._reply = reply
        self._choices = [_ChoiceStream(reply, i) for i in range(reply.request.num_choices)]

    def drain(self) -> bytes:
        """Return the stream events that are new since the last call."""
        return b"".join(
            self.write(i, d) for i, choice in enumerate(self._choices) for d in choice.read_deltas()
        )

    def finish(self) -> bytes:
        """Return the remaining stream events, once sampling has ended."""
        pairs = zip(self._choices, self._reply.calls, strict=True)
        return self.write_end([stream.finish(choice) for stream, choice in pairs])

    def write(self, index: int, delta: Delta) -> bytes:
        """Return the events for a text or thinking delta of a choice."""
        raise NotImplementedError

    def write_end(self, deltas: Sequence[Delta]) -> bytes:
        """Return the final stream events, given the unsent text of each choice."""
        raise NotImplementedError

    def write_error(self, error: ApiError) -> bytes:
        """Return the last events of a failed stream."""
        return event(error.body())
