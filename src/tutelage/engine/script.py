"""Scripts of prepared replies, to test agents without a model.

A script is a file of replies, one JSON object per line: `content`, `tool_calls`, `delay` in
seconds, `error`, `match`. A request takes the first unused line that fits: its `match`, if any,
occurs in the new text of the conversation, its calls name tools of the request, and it satisfies
`tool_choice` and `parallel_tool_calls`. When no unused line fits, all count as unused again.
`scripted.py` has the client, `testing/scripted.py` the engine that plays it; `tutelage serve
--scripted` serves one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import orjson
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from tutelage.bounded import json_lines
from tutelage.errors import DataError
from tutelage.types import JSON, Constraint

_SHOWN = 120
"""Characters of a line that an error shows."""


def _read_calls(calls: Any) -> Any:
    """Convert the tool calls of a script line to names with their arguments as JSON text."""
    try:
        pairs = [(call["name"], call.get("arguments", {})) for call in calls or ()]
    except (AttributeError, KeyError, TypeError):
        example = '{"name": "search", "arguments": {}}'
        raise ValueError(f"must be a list of tool calls such as {example}") from None
    return tuple((n, a if isinstance(a, str) else orjson.dumps(a).decode()) for n, a in pairs)


def _read_error(error: Any) -> Any:
    """Convert the error of a script line to an HTTP status and a message."""
    if not isinstance(error, dict):
        return error
    fields = cast("JSON", error)
    return fields.get("status", 500), fields.get("message", "scripted error")


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A prepared reply in a script. `tool_calls` are names with their arguments as JSON text."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    content: str | None = None
    tool_calls: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_read_calls)] = ()
    delay: Annotated[float, Field(ge=0, lt=1e6)] = 0.0
    error: Annotated[
        tuple[Annotated[int, Field(ge=400, le=599)], str] | None, BeforeValidator(_read_error)
    ] = None
    """HTTP status and message to return instead of a reply."""
    match: str | None = None

    def text(self) -> str:
        """Return the reply in the Hermes format, as a model would write it."""
        pairs = [(orjson.dumps(name).decode(), arguments) for name, arguments in self.tool_calls]
        calls = "".join(
            f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
            for name, arguments in pairs
        )
        return (self.content or "") + calls

    def to_short_json(self) -> str:
        """Return the start of the script line as JSON, without empty fields, for error messages."""
        return orjson.dumps({k: v for k, v in asdict(self).items() if v}).decode()[:_SHOWN]

    def fits(self, new_text: str, tools: Collection[str], constraint: Constraint) -> bool:
        """Return True if the scripted reply can answer a request with these tools.

        An error fits any tools, since it simulates a failing server.
        """
        if self.match is not None and self.match not in new_text:
            return False
        names = [name for name, _ in self.tool_calls]
        if self.error is not None:
            return True
        if not set(names) <= set(tools) or (names[1:] and not constraint.parallel_tool_calls):
            return False
        allowed = {"auto": True, "none": not names, "required": bool(names)}
        return allowed.get(constraint.tool_choice, set(names) == {constraint.tool_choice})


_LINE = TypeAdapter(ScriptedReply)


class Script:
    """Prepared replies of a scripted model. Several clients can replay the same script."""

    def __init__(self, replies: Iterable[ScriptedReply | str], source: str = "the script") -> None:
        """Create a script from prepared replies. A string is a reply with that content.

        Raises `DataError` if there are no replies.
        """
        self.replies = tuple(ScriptedReply(r) if isinstance(r, str) else r for r in replies)
        self.source = source
        if not self.replies:
            raise DataError(f"{source} has no replies; write one JSON object per line")

    @staticmethod
    def load(path: str | Path) -> Script:
        """Read a script file. Raises `DataError` with the line number of the first error."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {str(path)!r}: {error.strerror}") from error
        replies: list[ScriptedReply] = []
        for number, text in json_lines(data):
            try:
                reply = _LINE.validate_json(text)
            except ValidationError as error:
                detail = error.errors()[0]
                field = ".".join(map(str, detail["loc"]))
                reason = f"`{field}`: {detail['msg']}" if field else detail["msg"]
                raise DataError(f"{path}:{number}: {reason}") from None
            if reply.content is None and not reply.tool_calls and reply.error is None:
                raise DataError(f"{path}:{number}: a line needs `content`, `tool_calls` or `error`")
            replies.append(reply)
        return Script(replies, repr(str(path)))
