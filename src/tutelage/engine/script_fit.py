"""Which lines of a script a request can take: `tool_choice` and schemas hold for what is scripted
as they do for what is sampled. `script.py` has the lines, and their order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tutelage.bounded import parse_json
from tutelage.errors import SCHEMA_FIELD, ConfigError, ConstraintError
from tutelage.tools.schema import schema_validator
from tutelage.types import JSON, Constraint, ToolSpec

if TYPE_CHECKING:
    from tutelage.engine.script import ScriptedReply

_ANYTHING = Constraint()
_SHOWN = 10


class Wanted:
    """What a request demands of its reply."""

    def __init__(
        self, constraint: Constraint | None, tools: Sequence[ToolSpec], new_text: str
    ) -> None:
        """Raises `ConstraintError` if the schema is not a valid JSON Schema, `MissingExtraError`
        where nothing can check it."""
        self._is_free, self._new_text = constraint is None, new_text
        self._constraint = constraint or _ANYTHING
        self._tools = frozenset(tool.name for tool in tools)
        schema = self._constraint.json_schema
        self._is_valid = None if schema is None else _validator(schema)

    def fits(self, reply: ScriptedReply) -> bool:
        """Whether a line may be the reply. An error may always be: it says how a server fails."""
        if reply.match is not None and reply.match not in self._new_text:
            return False
        if self._is_free or reply.error is not None:
            return True
        return self._fits_calls(reply) and self._fits_schema(reply)

    def _fits_calls(self, reply: ScriptedReply) -> bool:
        choice, names = self._constraint.tool_choice, {name for name, _ in reply.tool_calls}
        if len(reply.tool_calls) > 1 and not self._constraint.parallel_tool_calls:
            return False
        match choice:
            case "auto":
                return True
            case "none":
                return not names
            case "required":
                return bool(names) and names <= self._tools
            case _:
                return names == {choice}

    def _fits_schema(self, reply: ScriptedReply) -> bool:
        """The content beside calls is no document; without tools there is nothing to call."""
        if self._is_valid is None:
            return True
        return bool(self._tools) if reply.tool_calls else self._is_valid(reply.content)

    def described(self) -> str:
        """What was asked, in the request's words."""
        choice, said = self._constraint.tool_choice, list[str]()
        if choice == "none":
            said.append("`tool_choice` = 'none': no call")
        elif choice == "required":
            said.append(f"`tool_choice` = 'required': a call of {_listed(sorted(self._tools))}")
        elif choice != "auto":
            said.append(f"`tool_choice`: a call of {choice!r} only")
        if not self._constraint.parallel_tool_calls:
            said.append("`parallel_tool_calls` = false: at most one call")
        if self._constraint.json_schema is not None and choice in ("auto", "none"):
            said.append(
                f"content that matches the schema {_quoted(self._constraint.json_schema, 200)}"
            )
        return "; ".join(said) or "a line whose `match` occurs in the request"


def summary(replies: Sequence[ScriptedReply]) -> str:
    """What a script has, a line each."""
    shown = [_described(reply) for reply in replies[:_SHOWN]]
    more = len(replies) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _described(reply: ScriptedReply) -> str:
    names = sorted({name for name, _ in reply.tool_calls})
    if reply.error is not None:
        said = f"an error {reply.error[0]}"
    elif names:
        said = f"a call of {_listed(names)}"
    else:
        said = f"the text {_quoted(reply.content, 40)}"
    return said if reply.match is None else f"{said} for {_quoted(reply.match, 40)}"


def _quoted(value: Any, most: int) -> str:
    """A value as it is written, of one that is longer its beginning; a text keeps both quotes."""
    if isinstance(value, str):
        return repr(value if len(value) <= most else f"{value[:most]} ...")
    said = repr(value)
    return said if len(said) <= most else f"{said[:most]} ..."


def _listed(names: Sequence[str]) -> str:
    return " or ".join(map(repr, names[:_SHOWN]))


def _validator(schema: JSON) -> Callable[[str | None], bool]:
    """Whether a text is JSON of a schema."""
    checks = _is_object if schema == _OBJECT else _checker(schema)

    def is_valid(text: str | None) -> bool:
        try:
            value = parse_json(text or "")
        except ValueError:
            return False
        return checks(value)

    return is_valid


MAX_SCHEMA = 64 << 10
"""Bytes of a schema: to check a longer one takes seconds."""
_OBJECT: JSON = {"type": "object"}
"""What `json_object` asks for, which needs no library."""


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _checker(schema: JSON) -> Callable[[Any], bool]:
    size = len(json.dumps(schema))
    if size > MAX_SCHEMA:
        raise _refused(f"the schema has {size} bytes; scripts support up to {MAX_SCHEMA}")
    try:
        validator = schema_validator(schema, "the request")
    except ConfigError as error:
        raise _refused(str(error)) from error

    def is_valid(value: Any) -> bool:
        try:
            return bool(validator.is_valid(value))
        except RecursionError as error:
            raise _refused(f"the schema is nested too deeply: {error!s:.200}") from error

    return is_valid


def _refused(words: str) -> ConstraintError:
    return ConstraintError(f"`{SCHEMA_FIELD}`: {words}", SCHEMA_FIELD)
