"""What another server answered: the reply and its tokens, and what it says beside them.

`remote.py` is the client that asks; the gateway tells its clients what is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tutelage.engine.reply_forms import called_by_tools, entries_of, plain, readable
from tutelage.seeds import SeedTree
from tutelage.types import JSON, Message, Sampled, StopReason, ToolCall

_OURS = frozenset({"role", "content", "tool_calls"})
"""Fields of a reply that are read; others stay with it."""
_HEAD = frozenset({"id", "object", "created", "model", "choices", "usage", "prompt_token_ids"})
"""Fields of a completion that are the gateway's own to its clients, or read here."""
_ENDS = {"length": StopReason.LENGTH, "content_filter": StopReason.CONTENT_FILTER}


@dataclass(frozen=True, slots=True)
class Answered:
    """What a server says of a call beside the message."""

    sent: JSON = field(default_factory=lambda: {})
    """The request as the server took it, without its messages and function tools."""
    usage: JSON = field(default_factory=lambda: {})
    """What it counted, in its words."""
    logprobs: list[JSON] | None = None
    """The log-probabilities of the tokens, in its words."""
    more: JSON = field(default_factory=lambda: {})
    """Further fields of the completion, such as `system_fingerprint`."""
    stop: str | None = None
    """The stop string that ended it, where the server says so, as vLLM does."""
    model: str | None = None
    """The name that the server has for its model."""
    finish_reason: str | None = None
    """Why it ended, in the server's words; None where it does not say."""

    @property
    def tokens(self) -> tuple[int, int] | None:
        """Prompt and completion tokens, where both were counted."""
        prompt = whole_number(self.usage.get("prompt_tokens"))
        new = whole_number(self.usage.get("completion_tokens"))
        return None if prompt is None or new is None else (prompt, new)

    @property
    def counts(self) -> bool:
        """Whether it counted anything that can be read."""
        names = ("prompt_tokens", "completion_tokens")
        return any(whole_number(self.usage.get(name)) is not None for name in names)

    def to_dict(self) -> JSON:
        """All but the log-probabilities, as the record of `tutelage serve` has it."""
        told = {"model": self.model, "finish_reason": self.finish_reason, "usage": self.usage}
        return {"sent": self.sent, "answered": {**told, **self.more}}


def whole_number(value: Any) -> int | None:
    """A count as a server may tell it, 7.0 for 7 too; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value >= 0 and value % 1 == 0 else None


def sent_sampling(sent: Mapping[str, Any]) -> JSON:
    """How a server was asked to sample: null where the request left it to the server."""
    limit = sent.get("max_completion_tokens", sent.get("max_tokens"))
    said = {name: sent.get(name) for name in ("temperature", "top_p", "top_k", "stop")}
    return {**said, "max_tokens": limit}


def answered(data: JSON, sent: Mapping[str, Any], *, logprobs: bool = True) -> Answered:
    """What a completion says beside its message, in answer to what was sent. `logprobs` is false
    where those were asked for with the ids alone, which a call has too."""
    usage, choice = data.get("usage"), data["choices"][0]
    said = {name: value for name, value in sent.items() if name not in ("messages", "tools")}
    others = [tool for tool in sent.get("tools") or () if tool.get("type") != "function"]
    stop, model, end = choice.get("stop_reason"), data.get("model"), choice.get("finish_reason")
    return Answered(
        said | ({"tools": others} if others else {}),
        cast("JSON", usage) if isinstance(usage, dict) else {},
        (readable(entries_of(choice)) or None) if logprobs else None,
        {name: value for name, value in data.items() if name not in _HEAD and value is not None},
        stop if isinstance(stop, str) else None,
        model if isinstance(model, str) else None,
        end if isinstance(end, str) else None,
    )


def call_id_of(seeds: SeedTree, place: int) -> str:
    """The id of a tool call that its server gives none."""
    return seeds.child("tool", place).id("call")


def read_completion(
    data: JSON, seeds: SeedTree, *, functions: bool = False
) -> tuple[Message, Sampled, tuple[int, ...]]:
    """The reply, its tokens, and the prompt's; ids are empty where the server gives none.
    `functions` says that the request was of the time before there were tools, as its reply is."""
    choice = data["choices"][0]
    message = choice["message"]
    plain(message)
    if not functions:
        called_by_tools(message)
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise TypeError(f"content is {type(content).__name__}")
    made = [ToolCall.from_dict(_with_arguments(c)) for c in message.get("tool_calls") or ()]
    calls = tuple(
        ToolCall(str(c.id or call_id_of(seeds, i)), str(c.name), str(c.arguments), c.custom)
        for i, c in enumerate(made)
    )
    ids = tuple(int(i) for i in choice.get("token_ids") or ())
    entries = entries_of(choice)
    logprobs = tuple(float(e["logprob"]) for e in readable(entries))
    prompt = tuple(int(i) for i in data.get("prompt_token_ids") or ())
    # A server may leave the end-of-turn token out of the log-probabilities: it is no text. Those
    # that cannot be read cost no reply: perhaps nobody but the record has asked for them.
    if len(logprobs) != len(ids) or len(entries) != len(ids):
        ids, logprobs, prompt = (), (), ()
    reason = _ENDS.get(choice.get("finish_reason"), StopReason.STOP)
    more = {k: v for k, v in message.items() if k not in _OURS and v is not None}
    reply = Message("assistant", content, calls, extra=more)
    return reply, Sampled(ids, logprobs, logprobs, reason, 0), prompt


def _with_arguments(call: JSON) -> JSON:
    """A tool call, with an empty object where a function is called without arguments."""
    made = call.get("function")
    if not isinstance(made, dict) or cast("JSON", made).get("arguments") not in (None, ""):
        return call
    return {**call, "function": {**made, "arguments": "{}"}}
