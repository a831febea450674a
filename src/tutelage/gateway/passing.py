"""What a request says to another server alone.

Behind `--upstream` a request of chat completions goes on whole: what nobody here reads or honours
goes there as it came, and images stay on record with their message. The dialect reads the rest.
`engine/remote.py` is the client that sends both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tutelage.gateway.dialects.reading import RequestObject
from tutelage.types import JSON

_TEXTS = (None, "text", "input_text", "output_text", "refusal")
_LOGPROBS = frozenset({"logprobs", "top_logprobs"})
"""What an upstream tells in its own words, which go back as they are."""
KEPT_PARTS = "content_parts"
"""The name under which a message on record has the parts that are no text."""


def split(request: type[RequestObject], body: JSON) -> tuple[JSON, JSON]:
    """The fields of a body that are read here, and those that are passed on as they are."""
    passed = {
        name: value
        for name, value in body.items()
        if name in _LOGPROBS or not _read_here(request, name, value)
    }
    match body.get("tool_choice"):
        case {"type": "allowed_tools"} as allowed:
            passed["tool_choice"] = allowed
        case _:
            pass
    read = {name: value for name, value in body.items() if name not in passed}
    messages = body.get("messages")
    if isinstance(messages, list):
        given = cast("list[Any]", messages)
        read["messages"] = [_text_of(each) for each in given]
        if read["messages"] != given:
            passed["messages"] = given
    return read, passed


def _read_here(request: type[RequestObject], name: str, value: Any) -> bool:
    return name in request.known or value is None or value in request.neutral.get(name, ())


def _text_of(message: Any) -> Any:
    """A message without the parts that are no text, which stay beside it."""
    if not isinstance(message, Mapping):
        return message
    given = cast("Mapping[str, Any]", message)
    parts = given.get("content")
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        return given
    texts = [part for part in cast("Sequence[Any]", parts) if _is_text(part)]
    return given if len(texts) == len(parts) else {**given, "content": texts, KEPT_PARTS: parts}


def _is_text(part: Any) -> bool:
    return not isinstance(part, Mapping) or cast("JSON", part).get("type") in _TEXTS
