"""What chat completions answer: the object, and the chunks of a stream.

A stream begins with the first text that can no longer change; tool calls and the finish reason
follow when sampling has ended, but those of another server come as they do there.
`chat_completions.py` reads the requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from tutelage.gateway.errors import ApiError
from tutelage.gateway.reply import (
    DONE,
    ChatReply,
    Piece,
    event,
    finish_reason,
    shown_content,
    stopped_by,
)
from tutelage.types import JSON, Call


def written(reply: ChatReply) -> JSON:
    """The `chat.completion` object."""
    with_ids = reply.request.token_ids
    out: JSON = {
        **_head(reply, "chat.completion"),
        "choices": [
            {
                "index": i,
                "message": _written_message(reply, choice),
                **_ending(reply, choice, reply.logprobs(choice)),
                **({"token_ids": choice.sampled.token_ids} if with_ids else {}),
            }
            for i, choice in enumerate(reply.choices)
        ],
        **(_told(reply) if reply.answered() else {"usage": usage(reply)}),
    }
    if with_ids:
        out["prompt_token_ids"] = reply.choices[0].prompt_ids
    return out


def _head(reply: ChatReply, of: str) -> JSON:
    return {
        "id": reply.answer.id,
        "object": of,
        "created": reply.answer.created,
        "model": reply.request.model,
    }


def usage(reply: ChatReply) -> JSON:
    """The tokens that a reply used, in OpenAI's words."""
    prompt, sampled = reply.usage
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def _told(reply: ChatReply) -> JSON:
    """What another server counted, and further fields of its answer."""
    counted = {} if reply.uncounted else {"usage": reply.counted | usage(reply)}
    return {**counted, **_more(reply)}


def _more(reply: ChatReply) -> JSON:
    """Further fields of another server's answer."""
    return dict(next((told.more for told in reply.answered()), {}))


def _written_message(reply: ChatReply, choice: Call) -> JSON:
    told = choice.reply.to_dict(extra=True)
    # Who refuses says nothing else.
    content = told["content"] if "refusal" in choice.reply.extra else shown_content(reply, choice)
    return {"refusal": None, **told, "content": content}


def _ending(reply: ChatReply, choice: Call, entries: Sequence[JSON] | None) -> JSON:
    """The end of a choice; `stop_reason` is vLLM's field for the stop string that matched."""
    reason = finish_reason(choice)
    stop = stopped_by(reply, choice) if reason == "stop" else None
    stopped = {} if stop is None else {"stop_reason": stop}
    return {"logprobs": _logprobs(entries), "finish_reason": reason, **stopped}


def _logprobs(entries: Sequence[JSON] | None) -> JSON | None:
    return None if entries is None else {"content": entries, "refusal": None}


class Chunks:
    """The chunks of a stream; see `Writer`."""

    tells_fields = True

    def __init__(self, reply: ChatReply) -> None:
        self._head = _head(reply, "chat.completion.chunk")
        self._include_usage = reply.request.include_usage
        self._begun = [False] * reply.request.n
        self._told: list[set[str]] = [set() for _ in self._begun]
        """Fields of each choice that went out before its end."""

    def text(self, index: int, new: Piece) -> bytes:
        """More text of a choice, or of its thought or tool calls."""
        said = {"logprobs": _logprobs(new.logprobs), "finish_reason": None}
        self._told[index].update(new.fields)
        return self._begin(index) + self._chunk(index, new.fields or {"content": new.text}, said)

    def finish(self, reply: ChatReply, rests: Sequence[Piece]) -> bytes:
        """What is left of each choice, its tool calls and its end; then what was used."""
        out = b""
        for i, (choice, rest) in enumerate(zip(reply.choices, rests, strict=True)):
            out += self.text(i, rest) if rest.text else self._begin(i)
            told = self._told[i]
            if more := {k: v for k, v in choice.reply.extra.items() if k not in told}:
                out += self._chunk(i, more)
            calls = () if "tool_calls" in told else choice.reply.to_dict().get("tool_calls", ())
            for at, call in enumerate(calls):
                head = {**call, "function": {**call["function"], "arguments": ""}, "index": at}
                out += self._chunk(i, {"tool_calls": [head]})
                fields = {"index": at, "function": {"arguments": call["function"]["arguments"]}}
                out += self._chunk(i, {"tool_calls": [fields]})
            # Where no text is left, the tokens that are none are told with the end.
            out += self._last(i, reply, choice, None if rest.text else rest.logprobs or None)
        if self._include_usage and not reply.uncounted:
            out += event({**self._head, "choices": [], "usage": reply.counted | usage(reply)})
        return out + DONE

    def failed(self, error: ApiError) -> bytes:
        """What a stream that breaks ends with."""
        return event(error.body())

    def _begin(self, index: int) -> bytes:
        if self._begun[index]:
            return b""
        self._begun[index] = True
        return self._chunk(index, {"role": "assistant", "content": ""})

    def _last(
        self, index: int, reply: ChatReply, choice: Call, entries: Sequence[JSON] | None
    ) -> bytes:
        more = _more(reply)
        if not reply.request.token_ids:
            return self._chunk(index, {}, _ending(reply, choice, entries), **more)
        ending = {**_ending(reply, choice, entries), "token_ids": choice.sampled.token_ids}
        return self._chunk(index, {}, ending, prompt_token_ids=choice.prompt_ids, **more)

    def _chunk(
        self, index: int, delta: JSON, ending: JSON | None = None, **further: object
    ) -> bytes:
        more = ending or {"logprobs": None, "finish_reason": None}
        usage = {"usage": None} if self._include_usage else {}
        choice = {"index": index, "delta": delta, **more}
        return event({**self._head, "choices": [choice], **further, **usage})
