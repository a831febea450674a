"""The interpreter inside a sandbox: runs one piece of code after another, in one namespace.

It works like a notebook: what is printed, and the value of a last line that is an expression, is
the output. `run` never raises; whatever the code does comes back as text. The process was confined
before any of this runs (`confine.py`), and is killed from outside when it takes too long, so
nothing here is a defence.
"""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from tutelage.tools.sandbox.limits import MAX_VALUE

_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_MAX_DEPTH = 50


class Interpreter:
    """A namespace in which code runs; `output` is a file that stands behind stdout and stderr."""

    def __init__(self, output: int, kept: int) -> None:
        self._output, self._kept = output, kept
        self._names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        self._count = 0

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run `code` of a request, by its `op`.

        `cell` shows the value of a last line that is an expression, `program` does not, `value`
        evaluates an expression to plain data. With `fresh` the code begins without names, as a
        module of that name.
        """
        if request.get("fresh"):
            self._names = {"__name__": str(request["fresh"]), "__builtins__": __builtins__}
        self._count += 1
        name = f"<cell {self._count}>"
        source = str(request["code"])
        # Tracebacks show the lines of the code.
        lines = [line + "\n" for line in source.split("\n")]
        linecache.cache[name] = (len(source), None, lines, name)
        sys.stdin = io.StringIO(str(request.get("stdin", "")))
        out = os.fdopen(os.dup(self._output), "w", encoding="utf-8", errors="backslashreplace")
        sys.stdout = sys.stderr = out
        reply: dict[str, Any] = {"error": None}
        message = ""
        try:
            if request.get("op") == "value":
                value = eval(compile(source, name, "eval"), self._names)
                reply["value"] = _literal(value)
            else:
                self._run(source, name, show=request.get("op") == "cell")
        except BaseException as error:
            reply["error"] = type(error).__name__
            message = _cut(_told(error, name), self._kept)
        reply["output"] = self._collect(out) + message
        return reply

    def _run(self, source: str, name: str, *, show: bool) -> None:
        tree = ast.parse(source, name)
        shown = show and tree.body and isinstance(tree.body[-1], ast.Expr)
        last = tree.body.pop() if shown else None
        exec(compile(tree, name, "exec"), self._names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), self._names)
            if value is not None:
                sys.stdout.write(f"{value!r}\n")

    def _collect(self, out: io.TextIOBase) -> str:
        """What was written since the last time: beginning and end, and how much is missing."""
        # What did not fit under the limit of a file is lost, and the code was told.
        with contextlib.suppress(OSError, ValueError):
            out.close()
        size = os.fstat(self._output).st_size
        room = 4 * self._kept
        head = os.pread(self._output, room, 0)
        tail = os.pread(self._output, room, max(room, size - room)) if size > room else b""
        os.ftruncate(self._output, 0)
        if not tail:
            return _cut(head.decode("utf-8", "replace"), self._kept)
        half = self._kept // 2
        first, rest = head.decode("utf-8", "replace")[:half], tail.decode("utf-8", "replace")
        missing = size - len(first.encode()) - len(rest[-half:].encode())
        return f"{first}\n[{missing} bytes cut]\n{rest[-half:]}"


def _cut(text: str, limit: int) -> str:
    """`text`, of which the middle is left out where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters cut]\n{text[-half:]}"


def _literal(value: object, depth: int = 0) -> str | None:
    """Plain data as Python writes it; None for anything else, however it pretends."""
    kind = type(value)
    if kind is float and value in (float("inf"), -float("inf")):
        return "1e999" if value == float("inf") else "-1e999"
    if kind in _PLAIN:
        text = repr(value)
        return text if len(text) <= MAX_VALUE else None
    if depth >= _MAX_DEPTH:
        return None
    if kind is dict:
        pairs = [
            (_literal(k, depth + 1), _literal(v, depth + 1))
            for k, v in value.items()  # pyright: ignore[reportAttributeAccessIssue]
        ]
        parts = [None if k is None or v is None else f"{k}: {v}" for k, v in pairs]
        return _joined("{", parts, "}")
    if kind in (list, tuple, set, frozenset):
        items = [_literal(v, depth + 1) for v in value]  # pyright: ignore[reportGeneralTypeIssues]
        if kind is list:
            return _joined("[", items, "]")
        if kind is tuple:
            return _joined("(", items, ",)" if len(items) == 1 else ")")
        return _joined("{", items, "}") if items else "set()"
    return None


def _joined(start: str, parts: list[str | None], end: str) -> str | None:
    if any(part is None for part in parts):
        return None
    text = start + ", ".join(part for part in parts if part is not None) + end
    return text if len(text) <= MAX_VALUE else None


def _told(error: BaseException, name: str) -> str:
    """The traceback as far as it runs through the user's code."""
    if isinstance(error, SystemExit):
        return ""
    try:
        lines = traceback.TracebackException.from_exception(error, limit=None, compact=True)
        mine = [f for f in lines.stack if f.filename.startswith("<cell ")]
        # A recursion of a thousand frames says no more than its ends.
        lines.stack = traceback.StackSummary.from_list(
            mine if len(mine) <= 8 else [*mine[:4], *mine[-4:]]
        )
        return "".join(lines.format(chain=False))
    except BaseException:
        # An exception whose own __str__ fails, or no memory left to word it.
        return f"{type(error).__name__}\n"
