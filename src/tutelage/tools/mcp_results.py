"""Convert results of MCP tools to observations.

A result has blocks, mostly of text, and may have structured content; by the protocol the text
should be its serialisation. If both agree, one is kept. If they differ, the structured content is
kept for a tool that declares an output schema, and both for other tools. `mcp.py` calls the tools.
"""

from __future__ import annotations

import json
import warnings
from typing import Any, cast

from mcp_types import CallToolResult

from tutelage.bounded import parse_json
from tutelage.types import JSON


def result_text(result: CallToolResult, name: str, has_schema: bool) -> str:
    """Convert the result of an MCP tool to the observation for the model.

    It is the result's text with placeholders for other blocks, or its structured content as JSON.

    Warns if the tool has an output schema and the text differs from its structured content; the
    text is then dropped.
    """
    parts = [_block_text(block) for block in result.content]
    text, content = "\n".join(parts), cast("object", result.structured_content)
    if content is None:
        return text
    value, differs = content, False
    # Servers wrap values that are not objects, and send each item of a list as a separate block.
    if isinstance(content, dict) and list(cast("JSON", content)) == ["result"]:
        inner = cast("JSON", content)["result"]
        value = content if parts and _is_serialisation(text, content) else inner
    items = _flatten(value)  # nested lists are flattened
    listed = value is not content and isinstance(value, list) and len(parts) == len(items)
    listed = listed and all(map(_is_serialisation, parts, items))
    serialised = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if parts and not listed:
        differs = not _is_serialisation(text, value)
        serialised = serialised if differs or isinstance(value, str) else text
    if differs and not has_schema:
        return f"{text}\n{serialised}"
    if differs:
        warnings.warn(
            f"the MCP tool {name!r} returned text beside its structured result; text ignored",
            stacklevel=2,
        )
    return serialised


def _flatten(value: object) -> list[object]:
    if not isinstance(value, list):
        return [value]
    return [item for each in cast("list[object]", value) for item in _flatten(each)]


def _is_serialisation(text: str, value: object) -> bool:
    """Return True if a text equals a value or is its JSON serialisation."""
    if text == value:
        return True
    try:
        return parse_json(text) == value
    except ValueError:
        return False


def _block_text(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    resource = getattr(block, "resource", None)
    if resource is not None and getattr(resource, "text", None) is not None:
        return str(resource.text)
    kind = getattr(block, "mime_type", None) or getattr(resource, "mime_type", None) or ""
    return f"[{block.type} {kind}]".replace(" ]", "]")
