"""Scripts: what is said instead of a model, so that agents are tested without one.

A script is a file of replies, one JSON object a line: `content`, `tool_calls`, `delay` in seconds,
`error`, `match`. A request takes the first line that has not been used and whose `match`, if it has
one, occurs in what is new in the conversation; when no line is left that fits, all count as unused
again. `scripted.py` has the client and the engine that say it; `tutelage serve --scripted` serves
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from tutelage.errors import DataError, RemoteError
from tutelage.types import Message

_FIELDS = ("content", "tool_calls", "delay", "error", "match")


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
        calls = "".join(
            f'<tool_call>\n{{"name": {_quoted(name)}, "arguments": {arguments}}}\n</tool_call>'
            for name, arguments in self.tool_calls
        )
        return (self.content or "") + calls


class Script:
    """The lines of a script, which several clients may play, each from the top."""

    def __init__(self, replies: Iterable[ScriptedReply | str], source: str = "the script") -> None:
        """A text stands for a reply of that content. Raises `DataError` when there is none."""
        self.replies = tuple(ScriptedReply(r) if isinstance(r, str) else r for r in replies)
        self.source = source
        if not self.replies:
            raise DataError(f"{source} has no replies; write one JSON object a line")

    @staticmethod
    def load(path: str | Path) -> Script:
        """Read a file. Raises `DataError` with the line of the first mistake."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {str(path)!r}: {error.strerror}") from error
        replies = [
            _read(line, f"{path}:{number}")
            for number, line in enumerate(data.splitlines(), 1)
            if line.strip()
        ]
        return Script(replies, repr(str(path)))

    def player(self) -> Callable[[Sequence[Message]], ScriptedReply]:
        """A function from a conversation to its reply, beginning at the top.

        It raises `RemoteError` 404 when no line fits.
        """
        used: set[int] = set()

        def take(new: str) -> ScriptedReply | None:
            for i, reply in enumerate(self.replies):
                if i not in used and (reply.match is None or reply.match in new):
                    used.add(i)
                    return reply
            return None

        def play(messages: Sequence[Message]) -> ScriptedReply:
            new = _new_text(messages)
            found = take(new)
            if found is None:
                used.clear()
                found = take(new)
            if found is None:
                raise RemoteError(f"no line of {self.source} fits the request", 404)
            return found

        return play


def _new_text(messages: Sequence[Message]) -> str:
    """What was said since the assistant's last turn."""
    new: list[str] = []
    for message in reversed(messages):
        if message.role == "assistant":
            break
        new.append(message.content or "")
    return "\n".join(reversed(new))


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def _read(line: bytes, place: str) -> ScriptedReply:
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise DataError(f"{place}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise DataError(f"{place}: a line must be a JSON object, not {data!r}")
    fields = cast("dict[str, Any]", data)
    for key in fields:
        if key not in _FIELDS:
            raise DataError(f"{place}: unknown field {key!r}; there are {', '.join(_FIELDS)}")
    content, match = (_optional(fields, key, str, "a string", place) for key in _TEXTS)
    delay = _optional(fields, "delay", int | float, "seconds of at least 0", place)
    if isinstance(delay, bool) or (delay is not None and not 0 <= delay < 1e6):
        raise DataError(f"{place}: `delay` = {delay!r} must be seconds of at least 0")
    calls = _tool_calls(fields, place)
    error = _error(fields, place)
    if content is None and not calls and error is None:
        raise DataError(f"{place}: a line needs `content`, `tool_calls` or `error`")
    return ScriptedReply(content, calls, float(delay or 0), error, match)


_TEXTS = ("content", "match")


def _optional(fields: Mapping[str, Any], key: str, of: Any, words: str, place: str) -> Any:
    value = fields.get(key)
    if value is not None and not isinstance(value, of):
        raise DataError(f"{place}: `{key}` = {value!r} must be {words}")
    return value


def _tool_calls(fields: Mapping[str, Any], place: str) -> tuple[tuple[str, str], ...]:
    given = _optional(fields, "tool_calls", list, "a list", place) or []
    found: list[tuple[str, str]] = []
    for i, call in enumerate(given):
        where = f"{place}: `tool_calls[{i}]`"
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise DataError(f'{where} needs the form {{"name": ..., "arguments": {{...}}}}')
        known = cast("dict[str, Any]", call)
        extra = sorted(set(known) - {"name", "arguments"})
        if extra:
            raise DataError(f"{where} has an unknown field {extra[0]!r}")
        arguments = known.get("arguments", {})
        if isinstance(arguments, dict):
            arguments = orjson.dumps(arguments).decode()
        if not isinstance(arguments, str):
            raise DataError(f"{where}: `arguments` must be an object, or JSON as text")
        found.append((known["name"], arguments))
    return tuple(found)


def _error(fields: Mapping[str, Any], place: str) -> tuple[int, str] | None:
    given = _optional(fields, "error", dict, "an object", place)
    if given is None:
        return None
    status, message = given.get("status", 500), given.get("message", "a scripted error")
    if isinstance(status, bool) or not isinstance(status, int) or not 400 <= status <= 599:
        raise DataError(f"{place}: `error.status` = {status!r} must be from 400 to 599")
    if not isinstance(message, str):
        raise DataError(f"{place}: `error.message` = {message!r} must be a string")
    extra = sorted(set(given) - {"status", "message"})
    if extra:
        raise DataError(f"{place}: `error` has an unknown field {extra[0]!r}")
    return status, message
