"""Writing of chat completions: the object, and the chunks of a stream.

A stream begins with the first text that can no longer change (`text.py`); tool calls, log-probs and
the finish reason follow when sampling has ended. `responses_reply.py` is the other API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tutelage.gateway.answers import Answer
from tutelage.gateway.door import Model, finish_reason, usage
from tutelage.gateway.http import event
from tutelage.gateway.text import Decoder, TextStream, can_stream, cut
from tutelage.types import JSON, Call

DONE = b"data: [DONE]\n\n"


def completion(answer: Answer, model: Model) -> JSON:
    """The `chat.completion` object of an answer that has ended."""
    ask, calls = answer.ask, answer.calls
    out: JSON = {
        "id": answer.id,
        "object": "chat.completion",
        "created": answer.created,
        "model": ask.model,
        "choices": [
            {
                "index": i,
                "message": _message(call),
                "logprobs": logprobs(call, model, ask.token_ids) if ask.logprobs else None,
                "finish_reason": finish_reason(call),
                **({"token_ids": call.sampled.token_ids} if ask.token_ids else {}),
            }
            for i, call in enumerate(calls)
        ],
        "usage": usage_of(model, calls),
    }
    if ask.token_ids:
        out["prompt_token_ids"] = calls[0].prompt_ids
    return out


def usage_of(model: Model, calls: Sequence[Call]) -> JSON:
    """Tokens as OpenAI counts them."""
    prompt, sampled = usage(model.client, calls)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def logprobs(call: Call, model: Model, ends: bool) -> JSON | None:
    """Log-probabilities of the sampled tokens at temperature 1; see `token_entries`."""
    if model.decoder is None:
        return None
    return {"content": token_entries(call, model.decoder, ends), "refusal": None}


def token_entries(call: Call, decoder: Decoder, ends: bool = False) -> list[JSON]:
    """One entry for each sampled token; the end-of-turn token, which is no text, only if `ends`."""
    sampled = call.sampled
    found: list[JSON] = []
    for token, value in zip(sampled.token_ids, sampled.raw_logprobs, strict=True):
        if token in decoder.eos_ids and not ends:
            continue
        text = decoder.decode([token])
        # A token may be part of a character: its bytes are not known then.
        exact = None if "\ufffd" in text else list(text.encode())
        found.append({"token": text, "logprob": value, "bytes": exact, "top_logprobs": []})
    return found


def _message(call: Call) -> JSON:
    out: JSON = {
        "role": "assistant",
        "content": shown_content(call),
        "refusal": None,
    }
    if call.reply.tool_calls:
        out["tool_calls"] = _tool_calls(call)
    return out


def shown_content(call: Call) -> str | None:
    """The content as the client sees it; null only beside tool calls."""
    content = cut(call.reply.content, call.sampling.stop)
    if not content:
        return None if call.reply.tool_calls else ""
    return content


def _tool_calls(call: Call) -> list[JSON]:
    return [
        {
            "id": c.id,
            "type": "function",
            "function": {"name": c.name, "arguments": c.arguments},
        }
        for c in call.reply.tool_calls
    ]


class ChatStream:
    """The chunks of one streamed answer, as bytes to send."""

    def __init__(self, answer: Answer, model: Model) -> None:
        self._answer, self._model = answer, model
        self._begun = [False] * answer.ask.n
        self._read = [0] * answer.ask.n
        decoder = model.decoder
        # Without a decoder nothing goes out before the end.
        self._texts = [
            TextStream(decoder, answer.ask.sampling.stop)
            if decoder is not None and can_stream(decoder)
            else None
            for _ in range(answer.ask.n)
        ]

    def feed(self) -> bytes:
        """What the tokens that came since the last call allow to be sent."""
        out = b""
        for i, (ids, text) in enumerate(zip(self._answer.tokens, self._texts, strict=True)):
            if text is None or len(ids) == self._read[i]:
                continue
            new = text.feed(ids[self._read[i] :])
            self._read[i] = len(ids)
            if new:
                out += self._begin(i) + self._chunk(i, {"content": new})
        return out

    def finish(self) -> bytes:
        """The rest, once sampling has ended. Raises what sampling raised."""
        out = b""
        calls = self._answer.calls
        for i, call in enumerate(calls):
            out += self._begin(i)
            text, content = self._texts[i], shown_content(call)
            rest = content or "" if text is None else text.finish(content)
            if rest:
                out += self._chunk(i, {"content": rest})
            for at, tool in enumerate(_tool_calls(call)):
                function = tool["function"]
                head = {**tool, "index": at, "function": {**function, "arguments": ""}}
                out += self._chunk(i, {"tool_calls": [head]})
                said = {"index": at, "function": {"arguments": function["arguments"]}}
                out += self._chunk(i, {"tool_calls": [said]})
            out += self._chunk(i, {}, call)
        if self._answer.ask.include_usage:
            out += event({**self._head(), "choices": [], "usage": usage_of(self._model, calls)})
        return out + DONE

    def failed(self, error: JSON) -> bytes:
        """What a stream that breaks ends with."""
        return event(error)

    def _begin(self, index: int) -> bytes:
        if self._begun[index]:
            return b""
        self._begun[index] = True
        return self._chunk(index, {"role": "assistant", "content": ""})

    def _chunk(self, index: int, delta: JSON, ended: Call | None = None) -> bytes:
        choice: JSON = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        out: JSON = {**self._head(), "choices": [choice]}
        if ended is not None:
            choice["finish_reason"] = finish_reason(ended)
            if self._answer.ask.logprobs:
                choice["logprobs"] = logprobs(ended, self._model, self._answer.ask.token_ids)
            if self._answer.ask.token_ids:
                choice["token_ids"] = ended.sampled.token_ids
                out["prompt_token_ids"] = ended.prompt_ids
        if self._answer.ask.include_usage:
            out["usage"] = None
        return event(out)

    def _head(self) -> dict[str, Any]:
        return {
            "id": self._answer.id,
            "object": "chat.completion.chunk",
            "created": self._answer.created,
            "model": self._answer.ask.model,
        }
