"""The content of messages: its text, which is read here, and its parts, which are kept.

A policy reads text. What else a part has (annotations, citations, cache control) stays on record
with its message, in the words of chat completions. So do images, sounds and files of a request that
is passed on, and `engine/asked.py` sends them from there; of any other request they are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    GetPydanticSchema,
    StrictStr,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from tutelage.bounded import parse_json
from tutelage.engine.asked import CALL_FIELDS, PARTS
from tutelage.gateway.dialects.reading import Items
from tutelage.types import JSON

MAX_PARTS = 10_000
"""Messages of a request together with the parts of their content and their tool calls."""
_LISTS = frozenset(("content", "output", "tool_calls", "summary"))
_TEXTS = (None, "text", "input_text", "output_text", "refusal")
_READ = frozenset({"type", "text", "refusal"})


def counted(items: Any) -> Any:
    """Messages or input items, of which there are not too many. They are counted before any is
    read: what would be refused at the end has held up every other client by then."""
    if items.__class__ is list:
        left = MAX_PARTS
        for i, item in enumerate(cast("list[Any]", items)):
            left -= 1 + _parts_of(item)
            if left < 0:
                words = "a request can have at most {most} messages and message parts in total"
                raise PydanticCustomError("too_many", words, {"name": i, "most": MAX_PARTS})
    return items


def _parts_of(item: Any) -> int:
    """How many parts a message has, those of a tool result among them too."""
    if item.__class__ is not dict:
        return 0
    count = 0
    for name, parts in cast("JSON", item).items():
        if parts.__class__ is list and name in _LISTS:
            listed = cast("list[Any]", parts)
            count += len(listed)
            if count > MAX_PARTS:
                break
            count += sum(map(_parts_of, listed))
    return count


class _Part(BaseModel):
    type: Literal["text", "input_text", "output_text", "refusal"] | None = None
    text: StrictStr = Field(validation_alias=AliasChoices("text", "refusal"))


def _joined(value: Any, parts: ValidatorFunctionWrapHandler) -> str:
    """The text of a message: a string, or a list of text parts, which are joined."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or an array of parts")
    listed = [{"text": v} if isinstance(v, str) else v for v in cast("list[Any]", value)]
    return "".join(part.text for part in parts(listed))


def _readable(text: str) -> str:
    """A tool call's arguments: text, of JSON where the model wrote it so, that can be rendered.

    A model may write what is no JSON, and gets it back unchanged.
    """
    try:
        parse_json(text)
    except json.JSONDecodeError:
        return text
    except ValueError as error:
        raise ValueError(f"cannot be parsed: {error}") from None
    return text


Content = Annotated[
    str,
    GetPydanticSchema(lambda _, schema: schema(Annotated[Items[_Part], WrapValidator(_joined)])),
]
Arguments = Annotated[StrictStr, AfterValidator(_readable)]


def with_parts(values: JSON, field: str, passing: bool) -> JSON:
    """The fields of a message with the text parts of its content in `field`, and all of them beside
    it where they say more. What is no text may be there only where the request is passed on.

    Raises `ValueError` for a part that chat completions have no words for.
    """
    content = values.get(field)
    if content.__class__ is not list or all(map(_is_plain, parts := cast("list[Any]", content))):
        return values
    texts = [part for part in parts if _is_text(part)]
    if len(texts) < len(parts) and not passing:
        return values
    kept = [chat_part(part) for part in parts]
    return {**values, field: texts, PARTS: kept}


def _is_text(part: Any) -> bool:
    return not isinstance(part, Mapping) or cast("JSON", part).get("type") in _TEXTS


def _is_plain(part: Any) -> bool:
    """Whether nothing but its text is said by a part."""
    if not isinstance(part, Mapping):
        return True
    fields = cast("JSON", part)
    if not _is_text(part):
        return False
    return fields.keys() <= _READ or not any(v for k, v in fields.items() if k not in _READ)


def chat_part(part: Any) -> JSON:
    """A part in the words of chat completions. Raises `ValueError` where they have none."""
    match part:
        case str():
            return {"type": "text", "text": part}
        case {"type": "input_text" | "output_text", **rest}:
            return {"type": "text", **rest}
        case {"type": "input_image", "image_url": str(url), **rest}:
            detail = {"detail": rest.pop("detail")} if rest.get("detail") else {}
            return {"type": "image_url", "image_url": {"url": url, **detail}, **rest}
        case {"type": "input_image"}:
            raise ValueError("images by file id are not supported; use `image_url`")
        case {"type": "input_file", **rest}:
            if rest.get("file_url"):
                raise ValueError("files by URL are not supported; use `file_data` or `file_id`")
            return {"type": "file", "file": {k: v for k, v in rest.items() if v is not None}}
        case Mapping():
            return dict(cast("JSON", part))
        case _:
            raise ValueError("must be an array of parts")


class CallObject(BaseModel):
    """A tool call; what nobody reads of it stays with its message."""

    model_config = ConfigDict(extra="allow")


def call_fields(calls: Sequence[tuple[str, Mapping[str, Any] | None]]) -> JSON:
    """What came beside tool calls, as their message keeps it; nothing where nothing did."""
    found = {id: dict(fields) for id, fields in calls if fields}
    return {CALL_FIELDS: found} if found else {}
