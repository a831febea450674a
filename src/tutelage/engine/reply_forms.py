"""What other servers write otherwise than OpenAI does, read as one form.

A reply may carry an error where a good one has its end, tool arguments as an object, content as a
list of parts, half of a surrogate pair. It is the same in a completion that comes at once and in a
chunk of a stream, so both are read through here: `remote.py` and `streamed.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, cast

from tutelage.bounded import LONGEST_REPLY, HTTPResponse, parse_json, whole_characters
from tutelage.errors import RemoteError
from tutelage.types import JSON

FAILED = frozenset({
    "abort", "aborted", "cancelled", "canceled", "error", "failed", "insufficient_system_resource",
    "internal_error", "network_error", "server_error", "timeout",
})  # fmt: skip
"""Finish reasons by which a server says that a reply broke off; others that are not OpenAI's are
ends. docs/gateway.md has the list too."""
_STATUSES = {
    400: ("bad_request", "content_filter", "content_policy_violation", "invalid_argument",
          "invalid_prompt", "invalid_request", "unsupported_parameter", "unsupported_value"),
    401: ("authentication", "invalid_api_key", "unauthenticated", "unauthorized"),
    402: ("billing",),
    403: ("forbidden", "permission", "permission_denied"),
    404: ("model_not_found", "not_found"),
    413: ("request_too_large",),
    422: ("unprocessable_entity",),
    429: ("insufficient_quota", "rate_limit", "rate_limit_exceeded", "too_many_requests"),
    500: ("internal_server", "server"),
    503: ("overloaded", "service_unavailable"),
    504: ("gateway_timeout", "timeout"),
}  # fmt: skip
_STATUS_OF = {name.replace("_", ""): at for at, names in _STATUSES.items() for name in names}
"""The status of an error that servers name so, as a `code`, `type` or `status`."""
_NAMES = ("code", "status", "type")
_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error"})
"""What servers name a prompt that the context does not hold."""
_TOO_LONG_WORDS = (
    "maximum context length", "exceeds the available context size", "prompt is too long:",
)  # fmt: skip
"""What they say of one: OpenAI and vLLM, llama.cpp, Anthropic."""
_SAID = {"function": "arguments", "function_call": "arguments", "custom": "input"}


def parsed(content: bytes) -> Any:
    """The value of a server's JSON. Half of a surrogate pair, which could be neither sent on nor
    recorded, is U+FFFD. Raises `ValueError`."""
    value = parse_json(content, longest=LONGEST_REPLY)
    return whole_characters(value) if has_halves(content) else value


def has_halves(content: bytes) -> bool:
    """Whether there may be halves of surrogate pairs in a text of JSON."""
    return b"\\ud" in content or b"\\uD" in content or b"\xed" in content


class HalfCharacters:
    """Texts that come in pieces, of which one may end with half of a surrogate pair: it is kept
    until the other half comes with the next piece of the same text."""

    def __init__(self) -> None:
        self._held: dict[tuple[str | int, ...], str] = {}
        """Halves by the place of their text in a delta; a tool call is placed by its index."""

    def __bool__(self) -> bool:
        return bool(self._held)

    def joined(self, value: Any, place: tuple[str | int, ...] = ()) -> Any:
        """A delta, or what is at a place of it, in whole characters."""
        if isinstance(value, str):
            text = self._held.pop(place, "") + value
            if "\ud800" <= text[-1:] <= "\udbff":
                self._held[place], text = text[-1], text[:-1]
            return whole_characters(text)
        if isinstance(value, dict):
            fields = cast("JSON", value).items()
            return {whole_characters(k): self.joined(v, (*place, k)) for k, v in fields}
        if isinstance(value, list) and place == ("tool_calls",):
            calls = cast("list[Any]", value)
            return [self.joined(each, (*place, _index(each, i))) for i, each in enumerate(calls)]
        return whole_characters(value)

    def rest(self) -> list[JSON]:
        """At the end, a delta for each half that is left alone."""
        deltas = list[JSON]()
        for place in self._held:
            value: Any = "\ufffd"
            for name in reversed(place):
                value = {name: value} if isinstance(name, str) else [{"index": name, **value}]
            deltas.append(value)
        self._held.clear()
        return deltas


def _index(call: Any, at: int) -> int:
    given = cast("JSON", call).get("index") if isinstance(call, dict) else None
    return given if isinstance(given, int) else at


def entries_of(choice: JSON) -> list[Any]:
    """What a choice says of its tokens, as it came; empty where that is no list."""
    told: Any = choice.get("logprobs")
    entries = cast("JSON", told).get("content") if isinstance(told, dict) else None
    return cast("list[Any]", entries) if isinstance(entries, list) else []


def readable(entries: Any) -> list[JSON]:
    """Those of the entries that name a token and its log-probability."""
    listed = cast("list[Any]", entries) if isinstance(entries, list) else []
    return [entry for entry in listed if _is_entry(entry)]


def _is_entry(entry: Any) -> bool:
    match entry:
        case {"token": str(), "logprob": int() | float() as value}:
            return math.isfinite(value)
        case _:
            return False


def failure(data: JSON) -> JSON | None:
    """The error that a completion or a chunk reports, in OpenAI's form; None where it is good."""
    for each in (data, *_choices(data)):
        if error := each.get("error"):
            return error_of(error)
    for choice in _choices(data):
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason.lower() in FAILED:
            return error_of(f"the reply ended with the finish reason {reason!r}")
    return None


def error_of(error: Any) -> JSON:
    """A server's error in OpenAI's form."""
    known = cast("JSON", error) if isinstance(error, dict) else {}
    message = known.get("message")
    words = error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
    names = {name: known.get(name) for name in (*_NAMES, "param")}
    return {"message": message if isinstance(message, str) else words, **names}


def too_long(error: JSON) -> bool:
    """Whether an error means a prompt that the context does not hold."""
    said = str(error["message"]).lower()
    named = _TOO_LONG & {error.get(name) for name in _NAMES if isinstance(error.get(name), str)}
    return bool(named) or any(words in said for words in _TOO_LONG_WORDS)


def as_status(error: JSON, response: HTTPResponse) -> HTTPResponse:
    """An error that came with a good status, as the answer that it should have been: with the
    status that it names, else 502."""
    named = (_named_status(error[name]) for name in _NAMES)
    status = 400 if too_long(error) else next(filter(None, named), 502)
    return HTTPResponse(status, response.headers, json.dumps({"error": error}).encode())


def _named_status(name: Any) -> int | None:
    """The status that a name or a number of an error means, None for others."""
    said = str(name).lower()
    if said.isascii() and said.isdecimal():
        return int(said) if 400 <= int(said) < 600 else None
    letters = "".join(filter(str.isalpha, said))
    return _STATUS_OF.get(letters.removesuffix("exception").removesuffix("error"))


def plain(message: JSON) -> None:
    """Write a message, or a delta, as OpenAI would: text parts of its content are its text and
    thinking parts its `reasoning_content`, arguments are JSON text. Raises `RemoteError` for parts
    that are neither."""
    if isinstance(content := message.get("content"), list):
        texts, thoughts = list[str](), list[str]()
        for kind, text in _parts(cast("list[Any]", content)):
            (thoughts if kind == "thinking" else texts).append(text)
        message["content"] = "".join(texts) if texts else None
        if thoughts:
            known = message.get("reasoning_content") or ""
            message["reasoning_content"] = "".join([known, *thoughts])
    calls = message.get("tool_calls")
    for call in (message, *(cast("list[Any]", calls) if isinstance(calls, list) else ())):
        for kind, name in _SAID.items():
            made = cast("JSON", call).get(kind) if isinstance(call, dict) else None
            if isinstance(made, dict) and isinstance(made.get(name), (dict, list)):
                made[name] = json.dumps(made[name], ensure_ascii=False)


def called_by_tools(message: JSON) -> None:
    """Write the `function_call` of a message, or a delta, as the tool call that it is."""
    made = message.pop("function_call", None)
    if isinstance(made, dict) and made:
        message["tool_calls"] = [
            *(message.get("tool_calls") or ()),
            {"index": 0, "type": "function", "function": made},
        ]


def _parts(parts: list[Any]) -> Iterator[tuple[str, str]]:
    """The kind and the text of each part of a content."""
    for part in parts:
        match part:
            case str() | {"type": "text", "text": str()}:
                yield "text", part if isinstance(part, str) else part["text"]
            case {"type": "thinking", "thinking": str(text)}:
                yield "thinking", text
            case {"type": "thinking", "thinking": list(thoughts)}:
                yield "thinking", "".join(t for _, t in _parts(cast("list[Any]", thoughts)))
            case _:
                kind = cast("JSON", part).get("type") if isinstance(part, dict) else part
                words = f"the server returned a content part of unsupported type {kind!r}"
                refused = RemoteError(f"{words}; supported: text, thinking", 502)
                refused.final = True
                raise refused


def _choices(data: JSON) -> Iterator[JSON]:
    choices = data.get("choices")
    for choice in cast("list[Any]", choices) if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            yield cast("JSON", choice)
