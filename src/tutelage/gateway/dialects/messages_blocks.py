"""The turns of messages, which are lists of blocks, as messages of the internal request.

A document with text in it and a search result are text here, and anywhere the request goes on to;
pictures and files are only another server's to see. `messages.py` reads the rest of a request.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, StrictStr
from pydantic_core import PydanticCustomError

from tutelage.engine.asked import PARTS
from tutelage.gateway.dialects.messages_written import sampled_text
from tutelage.gateway.dialects.parts import call_fields
from tutelage.gateway.dialects.reading import Items, MessageObject
from tutelage.gateway.errors import invalid
from tutelage.types import JSON, THOUGHTS, Message, ToolCall

_APART = "\n\n"
"""Between a document and what is next to it."""
_FILE = "document.pdf"


def as_blocks(content: Any) -> Any:
    """Content as a list of blocks: a string is one text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ValueError("must be a string or an array of content blocks")
    return cast("list[Any]", content)


def _only_text() -> PydanticCustomError:
    words = "this model accepts text only, not images or files"
    return PydanticCustomError("unsupported_value", words, {"name": "type"})


class _Shown(MessageObject):
    """What may stand in the turn of a user, and in the result of a tool."""

    def said(self) -> str:
        """Its text."""
        return ""

    def parts(self) -> list[JSON]:
        """It as parts of a chat completion, with what nobody reads of it."""
        return [{"type": "text", "text": self.said(), **(self.model_extra or {})}]


class Text(_Shown):
    """A text."""

    type: Literal["text"]
    text: StrictStr

    def said(self) -> str:
        """See `_Shown`."""
        return self.text


def _address(source: Any) -> str:
    """Where an image is, or what it is, as a URL."""
    match source:
        case {"type": "url", "url": str(url)}:
            return url
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            return f"data:{kind};base64,{data}"
        case _:
            raise ValueError("an image source must be of type `base64` or `url`")


class _Image(_Shown):
    type: Literal["image"]
    source: Annotated[StrictStr, BeforeValidator(_address)]

    @classmethod
    def prepared(cls, values: JSON, passing: bool) -> JSON:
        """Only another server's model sees it."""
        if not passing:
            raise _only_text()
        return values

    def parts(self) -> list[JSON]:
        """See `_Shown`."""
        image = {"type": "image_url", "image_url": {"url": self.source}}
        return [image | (self.model_extra or {})]


_TextOrImage = Annotated[Text | _Image, Field(discriminator="type")]


class _PlainText(MessageObject):
    type: Literal["text"]
    data: StrictStr


class _Content(MessageObject):
    type: Literal["content"]
    content: Annotated[Items[_TextOrImage], BeforeValidator(as_blocks)]


class _Data(MessageObject):
    type: Literal["base64"]
    media_type: StrictStr
    data: StrictStr

    @classmethod
    def prepared(cls, values: JSON, passing: bool) -> JSON:
        """Only another server's model reads it."""
        if not passing:
            raise _only_text()
        return values


class _Elsewhere(MessageObject):
    type: Literal["url", "file"]

    @classmethod
    def prepared(cls, values: JSON, passing: bool) -> JSON:
        """Nobody reads it."""
        if not passing:
            raise _only_text()
        words = (
            "the upstream chat completions API does not support documents by URL or file id; "
            "send the document as `base64`, `text` or `content`"
        )
        raise PydanticCustomError("unsupported_value", words, {"name": "type"})


class _Document(_Shown):
    type: Literal["document"]
    source: Annotated[
        _PlainText | _Content | _Data | _Elsewhere,
        Field(discriminator="type"),
    ]
    title: StrictStr = ""
    context: StrictStr = ""

    def said(self) -> str:
        """See `_Shown`."""
        match self.source:
            case _PlainText(data=text):
                return _lines(self.title, self.context, text)
            case _Content(content=blocks):
                return _lines(self.title, self.context, "".join(b.said() for b in blocks))
            case _:
                return self.context

    def parts(self) -> list[JSON]:
        """See `_Shown`. Images of a document follow its text."""
        more = self.model_extra or {}
        if isinstance(self.source, _Data):
            data = f"data:{self.source.media_type};base64,{self.source.data}"
            file = {"filename": self.title or _FILE, "file_data": data}
            context = [{"type": "text", "text": self.context}] if self.context else []
            return [*context, {"type": "file", "file": file, **more}]
        inner = self.source.content if isinstance(self.source, _Content) else []
        images = [part for each in inner if isinstance(each, _Image) for part in each.parts()]
        return [{"type": "text", "text": self.said(), **more}, *images]


class _SearchResult(_Shown):
    type: Literal["search_result"]
    source: StrictStr
    title: StrictStr
    content: Items[Text]

    def said(self) -> str:
        """See `_Shown`."""
        return _lines(self.title, self.source, "".join(each.text for each in self.content))


def _lines(*texts: str) -> str:
    return "\n".join(text for text in texts if text)


_ANY_SHOWN = Text | _Image | _Document | _SearchResult
_KINDS = ("text", "image", "document", "search_result")


class _ToolUse(MessageObject):
    type: Literal["tool_use"]
    id: StrictStr
    name: StrictStr
    input: JSON


class _ToolResult(MessageObject):
    type: Literal["tool_result"]
    tool_use_id: StrictStr
    content: Annotated[
        Items[Annotated[_ANY_SHOWN, Field(discriminator="type")]], BeforeValidator(as_blocks)
    ] = Field(default_factory=list[_ANY_SHOWN])


class _Thinking(MessageObject):
    type: Literal["thinking", "redacted_thinking"]
    thinking: StrictStr = ""
    signature: StrictStr = ""


_Block = _ANY_SHOWN | _ToolUse | _ToolResult | _Thinking


class MessageTurn(MessageObject):
    """One of the `messages`."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Items[Annotated[_Block, Field(discriminator="type")]], BeforeValidator(as_blocks)
    ]


def read_turns(turns: Iterable[MessageTurn]) -> Iterator[Message]:
    """The messages: a user's tool results each are one, before or after what the user says."""
    for i, turn in enumerate(turns):
        at = f"messages[{i}]"
        if turn.role == "assistant":
            yield _assistant(turn, at)
        elif turn.role == "system":
            yield _message("system", turn, turn.content, ("text",), at)
        elif not turn.content:
            empty = f"{at}.content"
            raise invalid(f"`{empty}` is empty: at least one block is required", empty)
        else:
            for result, group in groupby(turn.content, lambda block: block.type == "tool_result"):
                if result:
                    yield from (_result(b) for b in group if isinstance(b, _ToolResult))
                else:
                    yield _message("user", turn, list(group), _KINDS, at)


def system_message(blocks: Sequence[Text]) -> Message | None:
    """The field `system`, None where it says nothing."""
    text = "\n\n".join(block.text for block in blocks)
    return Message("system", text, extra=_parts(blocks)) if text else None


def _message(
    role: Literal["user", "system"],
    turn: MessageTurn,
    blocks: Sequence[_Block],
    allowed: Sequence[str],
    at: str,
) -> Message:
    extra = {**(turn.model_extra or {}), **_parts(blocks)}
    return Message(role, _text(blocks, allowed, at), extra=extra)


def _result(block: _ToolResult) -> Message:
    extra = {**(block.model_extra or {}), **_parts(block.content)}
    text = _text(block.content, _KINDS, "content")
    return Message("tool", text, tool_call_id=block.tool_use_id, extra=extra)


def _text(blocks: Iterable[_Block], allowed: Sequence[str], at: str) -> str:
    """The text of blocks, all of a kind that may stand here."""
    text, before = "", ""
    for block in blocks:
        if block.type not in allowed:
            raise invalid(f"`{at}` has a block {block.type!r}, which its role does not allow", at)
        said = block.said() if isinstance(block, _Shown) else ""
        if not said:
            continue
        if text and not before == block.type == "text":
            text += _APART
        text, before = text + said, block.type
    return text


def _parts(blocks: Sequence[_Block]) -> JSON:
    """What is shown as parts of a chat completion, where they say more than their text."""
    parts = [part for block in blocks if isinstance(block, _Shown) for part in block.parts()]
    plain = all(part["type"] == "text" and len(part) == 2 for part in parts)
    return {} if plain else {PARTS: parts}


def _assistant(turn: MessageTurn, at: str) -> Message:
    """An assistant's turn. Thoughts of this server are put back as they were sampled, those of a
    server behind go back to it; another model's are left out, since none here has a place for
    them."""
    blocks = turn.content
    uses = [b for b in blocks if isinstance(b, _ToolUse)]
    calls = tuple(ToolCall(b.id, b.name, json.dumps(b.input, ensure_ascii=False)) for b in uses)
    thoughts = [b for b in blocks if isinstance(b, _Thinking)]
    extra = {
        **(turn.model_extra or {}),
        **_parts(blocks),
        **call_fields([(b.id, b.model_extra) for b in uses]),
    }
    for thought in thoughts:
        if thought.signature in THOUGHTS:
            before = extra.get(thought.signature)
            more = thought.thinking
            extra[thought.signature] = before + more if isinstance(before, str) else more
    kinds = ("text", "tool_use", "thinking", "redacted_thinking")
    text = "".join(sampled_text(b.signature) for b in thoughts) + _text(blocks, kinds, at)
    return Message("assistant", (text or None) if calls else text, calls, extra=extra)
