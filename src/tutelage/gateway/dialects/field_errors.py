"""What a 400 says of the field of a request that does not fit: its whole path, its value, the
reason, and what helps. `reading.py` reads the requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, cast

from pydantic_core import ErrorDetails

from tutelage.gateway.errors import ApiError, invalid
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
"""What helps beside the reason, by path and kind of error."""
_KINDS: dict[str, str] = {
    **dict.fromkeys(("image", "image_url", "input_image"), "images"),
    **dict.fromkeys(("file", "input_file", "document"), "files"),
    "input_audio": "audio",
}
"""Parts of a message that other models can read."""


def refusal(error: ErrorDetails, data: Any, path: str) -> ApiError:
    """The 400 for an error in the data at a path."""
    value: Any = error["input"]
    name = error.get("ctx", {}).get("name")
    for part in (*_located(error, data), *(() if name is None else (name,))):
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    if error["type"] in ("missing", "union_tag_not_found"):
        return missing(path)
    reason = _WORDS.get(error["type"], error["msg"].removeprefix("Value error, "))
    if error["type"] == "union_tag_invalid":
        reason = f"Input should be one of {error.get('ctx', {})['expected_tags']}"
        value = value["type"]
    if error["type"].startswith(("literal", "union")) and (kind := _KINDS.get(str(value))):
        reason = f"this model accepts text only, not {kind}"
    if error["type"] == "int_type" and isinstance(value, float) and abs(value) >= 1 << 63:
        reason = "Input should be an integer of at most 64 bits"
    reason += _HINTS.get((path, error["type"]), "")
    code = _CODES.get(error["type"], None if name is None else error["type"])
    return invalid(
        f"`{path}` = {shown(value if name is None else value[name])}: {reason}", path, code
    )


def _located(error: ErrorDetails, data: Any) -> Iterator[str | int]:
    """Where an error lies in the data: its location without what is not there, such as the tag of
    a union's member, or the place in a list that was made of one value."""
    place, absent = error["loc"], error["type"] == "missing"
    for part, following in zip_longest(place[:-1] if absent else place, place[1:]):
        if data is error["input"] or part is None:
            break
        if isinstance(data, list) and isinstance(part, int):
            data = data[part]
            yield part
        elif isinstance(data, dict) and part in data:
            # It may name the kind of an object instead, and not a field of that name.
            if cast("JSON", data).get("type") == part and following in data:
                continue
            data = data[part]
            yield part
    if absent:
        yield place[-1]
    if error["type"].startswith("union_tag"):
        yield "type"


def missing(path: str) -> ApiError:
    """A 400 for a field that has to be there."""
    return invalid(f"`{path}` is missing", path, _CODES["missing"])


def shown(value: Any) -> str:
    """A value in an error message, not longer than a line: of a long one both ends."""
    if isinstance(value, str | bytes | list) and len(cast("str", value)) > 200:
        # What is not shown of a body of megabytes is not written.
        text = repr(value[:100])[:50] + repr(value[-100:])[-50:]
    else:
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:47]} ... {text[-28:]}"
