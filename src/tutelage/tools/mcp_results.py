"""What is observed of the result of an MCP server's tool, and of what a server says beside it.

A result has blocks, mostly of text, and may have structured content, of which the protocol wants
the text to be the serialisation. Where they are the same, one is kept. Where they are not, a tool
that declares an output schema promised the structured content, and of another both are kept.
`mcp.py` calls the tools.
"""

from __future__ import annotations

import json
import logging
import warnings
from typing import Any, cast

from mcp_types import CallToolResult
from pydantic import ValidationError

from tutelage.bounded import parse_json
from tutelage.types import JSON


class SentText(str):
    """A result that came as text whatever it is: what `execute.py` takes for no text of its own."""


def result_text(result: CallToolResult, name: str, typed: bool) -> str:
    """What the model observes: the texts and a word for what is no text, or the structured content
    as JSON; a plain text only where a tool of a schema (`typed`) gave a text.

    Warns where such a tool gave a text beside its structured content, which is lost.
    """
    parts = [_block(block) for block in result.content]
    text, given = "\n".join(parts), cast("object", result.structured_content)
    if given is None:
        return SentText(text)
    value, unlike = given, False
    # Servers wrap what is no object, and tell each item of a list in a block of its own.
    if isinstance(given, dict) and list(cast("JSON", given)) == ["result"]:
        inner = cast("JSON", given)["result"]
        value = given if parts and _tells(text, given) else inner
    items = _items(value)  # of a list, and of the lists in it
    listed = value is not given and isinstance(value, list) and len(parts) == len(items)
    listed = listed and all(map(_tells, parts, items))
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if parts and not listed:
        unlike = not _tells(text, value)
        written = written if unlike or isinstance(value, str) else text
    if unlike and not typed:
        return SentText(f"{text}\n{written}")
    if unlike:
        warnings.warn(
            f"the MCP tool {name!r} returned text beside its structured result; text ignored",
            stacklevel=2,
        )
    return written if typed and isinstance(value, str) else SentText(written)


def _items(value: object) -> list[object]:
    if not isinstance(value, list):
        return [value]
    return [item for each in cast("list[object]", value) for item in _items(each)]


def _tells(text: str, value: object) -> bool:
    """Whether a text is the serialisation of a value, or the value itself."""
    if text == value:
        return True
    try:
        return parse_json(text) == value
    except ValueError:
        return False


def _block(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    resource = getattr(block, "resource", None)
    if resource is not None and getattr(resource, "text", None) is not None:
        return str(resource.text)
    kind = getattr(block, "mime_type", None) or getattr(resource, "mime_type", None) or ""
    return f"[{block.type} {kind}]".replace(" ]", "]")


def on_one_line(record: logging.LogRecord) -> bool:
    """Have the library say on one line that a server printed what is no message."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ValidationError):
        printed = str(error.errors(include_url=False)[0]["input"])[:80]
        record.msg = f"{record.msg}: {printed!r} (logs belong on standard error)"
        record.exc_info = None
    return True


logging.getLogger("mcp.client.stdio").addFilter(on_one_line)
