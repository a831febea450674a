"""Scripts: what is said instead of a model, so that agents are tested without one.

A script is a file of replies, one JSON object a line: `content`, `tool_calls`, `delay` in seconds,
`error`, `match`. A request takes the first line that has not been used and fits: its `match`, if it
has one, occurs in what is new in the conversation, and it is what `tool_choice` and a schema of the
request demand (`script_fit.py`). When no line is left that fits, all count as unused again.
`scripted.py` has the client and the engine that say it; `tutelage serve --scripted` serves
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tutelage.bounded import json_lines
from tutelage.engine.script_fit import Wanted, summary
from tutelage.errors import DataError, RemoteError
from tutelage.types import Constraint, Message, ToolSpec


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One line of a script. `tool_calls` are names with their arguments as JSON text."""

    content: str | None = None
    tool_calls: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0
    error: tuple[int, str] | None = None
    """An HTTP status and a message instead of a reply."""
    match: str | None = None

    def text(self) -> str:
        """The reply as a model of the Hermes format writes it; for engines of tokens."""
        named = [(orjson.dumps(name).decode(), arguments) for name, arguments in self.tool_calls]
        calls = "".join(
            f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
            for name, arguments in named
        )
        return (self.content or "") + calls


class Player(Protocol):
    """The reply to a conversation."""

    def __call__(
        self,
        messages: Sequence[Message],
        constraint: Constraint | None = None,
        tools: Sequence[ToolSpec] = (),
    ) -> ScriptedReply:
        """Raises `RemoteError` 404 when no line fits, `ConstraintError` if the schema is not a
        valid JSON Schema."""
        ...


class Script:
    """The lines of a script, which several clients may play, each from the top."""

    def __init__(self, replies: Iterable[ScriptedReply | str], source: str = "the script") -> None:
        """A text is a reply of that content. Raises `DataError` when there is none."""
        self.replies = tuple(ScriptedReply(r) if isinstance(r, str) else r for r in replies)
        self.source = source
        if not self.replies:
            raise DataError(f"{source} has no replies; write one JSON object per line")

    @staticmethod
    def load(path: str | Path) -> Script:
        """Read a file. Raises `DataError` with the line of the first mistake."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {str(path)!r}: {error.strerror}") from error
        replies = [_read(line, f"{path}:{number}") for number, line in json_lines(data)]
        return Script(replies, repr(str(path)))

    def player(self) -> Player:
        """A function from a conversation to its reply, beginning at the top."""
        used: set[int] = set()

        def take(wanted: Wanted) -> ScriptedReply | None:
            for i, reply in enumerate(self.replies):
                if i not in used and wanted.fits(reply):
                    used.add(i)
                    return reply
            return None

        def play(
            messages: Sequence[Message],
            constraint: Constraint | None = None,
            tools: Sequence[ToolSpec] = (),
        ) -> ScriptedReply:
            wanted = Wanted(constraint, tools, _new_text(messages))
            scripted_reply = take(wanted)
            if scripted_reply is None and any(map(wanted.fits, self.replies)):
                used.clear()
                scripted_reply = take(wanted)
            if scripted_reply is None:
                raise RemoteError(
                    f"no reply in {self.source} matches the request, which needs "
                    f"{wanted.described()}; the script has {summary(self.replies)}",
                    404,
                )
            return scripted_reply

        return play


def _new_text(messages: Sequence[Message]) -> str:
    """What was said since the assistant's last turn."""
    new: list[str] = []
    for message in reversed(messages):
        if message.role == "assistant":
            break
        new.append(message.content or "")
    return "\n".join(reversed(new))


class _Line(BaseModel):
    """A part of a script as a file has it."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _ScriptedCall(_Line):
    name: str
    arguments: dict[str, Any] | str = {}

    def written(self) -> tuple[str, str]:
        """The name, and the arguments as text."""
        known = self.arguments
        return self.name, known if isinstance(known, str) else orjson.dumps(known).decode()


class _Error(_Line):
    status: Annotated[int, Field(ge=400, le=599)] = 500
    message: str = "scripted error"


class _Reply(_Line):
    content: str | None = None
    tool_calls: tuple[_ScriptedCall, ...] | None = None
    delay: Annotated[float, Field(ge=0, lt=1e6)] | None = None
    error: _Error | None = None
    match: str | None = None


def _read(line: bytes, place: str) -> ScriptedReply:
    try:
        reply = _Reply.model_validate_json(line)
    except ValidationError as error:
        wrong = error.errors()[0]
        field = ".".join(map(str, wrong["loc"]))
        raise DataError(f"{place}: {f'`{field}`: ' if field else ''}{wrong['msg']}") from None
    calls = tuple(call.written() for call in reply.tool_calls or ())
    if reply.content is None and not calls and reply.error is None:
        raise DataError(f"{place}: a line needs `content`, `tool_calls` or `error`")
    error = None if reply.error is None else (reply.error.status, reply.error.message)
    return ScriptedReply(reply.content, calls, reply.delay or 0.0, error, reply.match)
