"""Scripts: what is said instead of a model, so that agents are tested without one.

A script is a file of replies, one JSON object a line: `content`, `tool_calls`, `delay` in seconds,
`error`, `match`. A request takes the first line that has not been used and fits: its `match`, if it
has one, occurs in what is new in the conversation, and it is what `tool_choice` and a schema of the
request demand. When no line is left that fits, all count as unused again. `scripted.py` has the
client and the engine that say it; `tutelage serve --scripted` serves one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tutelage.bounded import json_lines, parse_json
from tutelage.errors import SCHEMA_FIELD, ConfigError, ConstraintError, DataError, RemoteError
from tutelage.tools.schema import schema_validator
from tutelage.types import JSON, Constraint, Message, ToolSpec

_SHOWN, _SHOWN_LINE = 10, 120
"""Lines of a script, and characters of one, that an error shows."""


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
        """Return the reply as a model of the Hermes format writes it; for engines of tokens."""
        named = [(orjson.dumps(name).decode(), arguments) for name, arguments in self.tool_calls]
        calls = "".join(
            f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
            for name, arguments in named
        )
        return (self.content or "") + calls

    def shown(self) -> str:
        """Return the beginning of the line, without what it leaves out."""
        return orjson.dumps({k: v for k, v in asdict(self).items() if v}).decode()[:_SHOWN_LINE]

    def fits(self, request: _Request) -> bool:
        """Whether the line may be the reply. An error may always be: it says how a server fails."""
        constraint, names = request.constraint, {name for name, _ in self.tool_calls}
        if self.match is not None and self.match not in request.new_text:
            return False
        if constraint is None or self.error is not None:
            return True
        if len(self.tool_calls) > 1 and not constraint.parallel_tool_calls:
            return False
        match constraint.tool_choice:
            case "auto":
                chosen = True
            case "none":
                chosen = not names
            case "required":
                chosen = bool(names) and names <= request.tools
            case name:
                chosen = names == {name}
        if not chosen or request.is_valid is None:
            return chosen
        # The content beside calls is no document; without tools there is nothing to call.
        return bool(request.tools) if names else request.is_valid(self.content)


@dataclass(frozen=True, slots=True)
class _Request:
    """What a request demands of its reply."""

    constraint: Constraint | None
    tools: frozenset[str]
    new_text: str
    """What was said since the assistant's last turn."""
    is_valid: Callable[[str | None], bool] | None
    """Whether a content is a document of the request's schema; None without a schema."""

    @staticmethod
    def of(
        messages: Sequence[Message], constraint: Constraint | None, tools: Sequence[ToolSpec]
    ) -> _Request:
        """Raises `ConstraintError` if the schema is not a valid JSON Schema, `MissingExtraError`
        where nothing can check it."""
        new = [*takewhile(lambda message: message.role != "assistant", reversed(messages))]
        text = "\n".join(message.content or "" for message in reversed(new))
        schema = None if constraint is None else constraint.json_schema
        is_valid = None if schema is None else _validator(schema)
        return _Request(constraint, frozenset(tool.name for tool in tools), text, is_valid)

    def described(self) -> str:
        """Return the demands of the request, in the words of its fields."""
        demands = {} if self.constraint is None else asdict(self.constraint)
        usual = asdict(Constraint())
        named = [f"{k}={v!r:.200}" for k, v in demands.items() if v != usual[k]]
        tools = [f"tools {', '.join(sorted(self.tools)[:_SHOWN])}"] if self.tools else []
        return "; ".join(named + tools) or "a line whose `match` occurs in the request"


def _validator(schema: JSON) -> Callable[[str | None], bool]:
    """Return a function that checks whether a text is JSON of the schema."""
    validator: Any = None
    if schema != {"type": "object"}:  # what `json_object` asks for needs no library
        try:
            validator = schema_validator(schema, "the request")
        except ConfigError as error:
            raise ConstraintError(f"`{SCHEMA_FIELD}`: {error}", SCHEMA_FIELD) from error

    def is_valid(text: str | None) -> bool:
        try:
            value = parse_json(text or "")
        except ValueError:
            return False
        return isinstance(value, dict) if validator is None else bool(validator.is_valid(value))

    return is_valid


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

    def player(self) -> ScriptPlayer:
        """Return a function from a conversation to its reply, beginning at the top."""
        return ScriptPlayer(self)


class ScriptPlayer:
    """Plays a script for one client."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._used: set[int] = set()

    def __call__(
        self,
        messages: Sequence[Message],
        constraint: Constraint | None = None,
        tools: Sequence[ToolSpec] = (),
    ) -> ScriptedReply:
        """Return the reply to a conversation. Raises `RemoteError` 404 when no line fits,
        `ConstraintError` if the schema is not a valid JSON Schema."""
        request, replies = _Request.of(messages, constraint, tools), self._script.replies
        fitting = [i for i, reply in enumerate(replies) if reply.fits(request)]
        if not fitting:
            shown = ", ".join(reply.shown() for reply in replies[:_SHOWN])
            more = " and more" if len(replies) > _SHOWN else ""
            raise RemoteError(
                f"no reply in {self._script.source} matches the request, which needs "
                f"{request.described()}; the script has {shown}{more}",
                404,
            )
        if self._used.issuperset(fitting):
            self._used.clear()
        taken = next(i for i in fitting if i not in self._used)
        self._used.add(taken)
        return replies[taken]


class _Line(BaseModel):
    """A part of a script as a file has it."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _ScriptedCall(_Line):
    name: str
    arguments: dict[str, Any] | str = {}


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
    named = [(call.name, call.arguments) for call in reply.tool_calls or ()]
    calls = tuple((n, a if isinstance(a, str) else orjson.dumps(a).decode()) for n, a in named)
    if reply.content is None and not calls and reply.error is None:
        raise DataError(f"{place}: a line needs `content`, `tool_calls` or `error`")
    error = None if reply.error is None else (reply.error.status, reply.error.message)
    return ScriptedReply(reply.content, calls, reply.delay or 0.0, error, reply.match)
