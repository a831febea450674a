"""Error messages for invalid request fields: the full path, the value, the reason and a hint.

`reading.py` parses the requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, cast

from pydantic_core import ErrorDetails

from tutelage.gateway.errors import ApiError, bad_request
from tutelage.types import JSON

_CODES = {
    "missing": "missing_required_parameter",
    "literal_error": "unsupported_value",
    "token_id": None,
}
_WORDS = {
    "model_type": "Input should be a valid object",
    "dict_type": "Input should be a valid object",
    "list_type": "Input should be a valid array",
}
_HINTS = {("top_p", "greater_than"): "; for greedy sampling use `temperature`: 0"}
"""Hints to append to the reason, by path and error type."""
_KINDS: dict[str, str] = {
    **dict.fromkeys(("image", "image_url", "input_image"), "images"),
    **dict.fromkeys(("file", "input_file", "document"), "files"),
    "input_audio": "audio",
}
"""Types of message parts that only multimodal models can read."""


def to_api_error(error: ErrorDetails, data: Any, path: str) -> ApiError:
    """Convert a pydantic error in the data at `path` to a 400 response."""
    value: Any = error["input"]
    name = error.get("ctx", {}).get("name")
    for part in (*_error_path(error, data), *(() if name is None else (name,))):
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    if error["type"] in ("missing", "union_tag_not_found"):
        return missing_field(path)
    reason = _WORDS.get(error["type"], error["msg"].removeprefix("Value error, "))
    if error["type"] == "union_tag_invalid":
        reason = f"Input should be one of {error.get('ctx', {})['expected_tags']}"
        value = value["type"]
    if error["type"].startswith(("literal", "union")) and (kind := _KINDS.get(str(value))):
        reason = f"this model accepts text only, not {kind}"
    if error["type"] == "int_type" and value.__class__ is float and abs(value) >= 1 << 63:
        reason = "Input should be an integer of at most 64 bits"
    reason += _HINTS.get((path, error["type"]), "")
    code = _CODES.get(error["type"], None if name is None else error["type"])
    return bad_request(
        f"`{path}` = {format_value(value if name is None else value[name])}: {reason}", path, code
    )


def _error_path(error: ErrorDetails, data: Any) -> Iterator[str | int]:
    """Yield the keys and indices at which a validation error occurred in the data.

    Parts of its location that the data lacks are left out, such as the tag of a union member, or
    the index in a list made from a single value.
    """
    location, absent = error["loc"], error["type"] == "missing"
    for part, next_part in zip_longest(location[:-1] if absent else location, location[1:]):
        if data is error["input"] or part is None:
            break
        if isinstance(data, list) and isinstance(part, int):
            data = data[part]
            yield part
        elif isinstance(data, dict) and part in data:
            # It may be the type of an object instead of a field with that name.
            if cast("JSON", data).get("type") == part and next_part in data:
                continue
            data = data[part]
            yield part
    if absent:
        yield location[-1]
    if error["type"].startswith("union_tag"):
        yield "type"


def missing_field(path: str) -> ApiError:
    """Return a 400 error for a missing request field."""
    return bad_request(f"`{path}` is missing", path, _CODES["missing"])


def format_value(value: Any) -> str:
    """Format a value for an error message; long values are shortened in the middle."""
    if isinstance(value, str | bytes | list) and len(cast("str", value)) > 200:
        # Only the ends are formatted, since a body may have megabytes.
        text = repr(value[:100])[:50] + repr(value[-100:])[-50:]
    else:
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:47]} ... {text[-28:]}"
