"""A request that goes on to another server as it came.

Behind `--upstream` a request of chat completions goes on whole. The dialect reads what it can of
it, which is what is recorded and what refuses nonsense here; images stay on record with their
message. `engine/remote.py` is the client that sends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tutelage.gateway.dialects.reading import RequestObject
from tutelage.types import JSON

_TEXTS = (None, "text", "input_text", "output_text", "refusal")
_LOGPROBS = frozenset({"logprobs", "top_logprobs"})
"""What an upstream tells in its own words, which go back as they are."""
_OURS = frozenset({"model", "n", "stream", "stream_options"})
"""What the gateway decides: the model's name there, one request for each choice, and how its
answer comes."""
KEPT_PARTS = "content_parts"
"""The name under which a message on record has the parts that are no text."""


def split(request: type[RequestObject], body: JSON) -> tuple[JSON, JSON]:
    """What of a body is read here, and what is passed on."""
    read = {
        name: value
        for name, value in body.items()
        if name not in _LOGPROBS and _read_here(request, name, value)
    }
    match body.get("tool_choice"):
        case {"type": "allowed_tools"}:
            read.pop("tool_choice")
        case _:
            pass
    messages = body.get("messages")
    if isinstance(messages, list):
        read["messages"] = [_text_of(each) for each in cast("list[Any]", messages)]
    return read, {name: value for name, value in body.items() if name not in _OURS}


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
