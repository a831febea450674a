"""The interpreter inside a sandbox: runs pieces of code one after another in one namespace.

It works like a notebook: the output is the printed text and the value of a final expression.
`answer` does not raise; errors are returned as text. The process is confined before this code runs
(`confine.py`) and killed from outside on a timeout, so nothing here is a security measure.
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
    """A persistent namespace for running code, with the file descriptor of its output."""

    def __init__(self, output: int, limit: int) -> None:
        self._output, self._limit = output, limit
        self._names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        self._count = 0

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run the code of a request and return the reply.

        `cell` prints the value of a final expression, `program` does not, `value` evaluates an
        expression to plain data. `fresh` clears the namespace and sets the name of the module.
        """
        if request.get("fresh"):
            self._names = {"__name__": str(request["fresh"]), "__builtins__": __builtins__}
        self._count += 1
        name = f"<cell {self._count}>"
        source = str(request["code"])
        # Register the source, so that tracebacks show its lines.
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
                reply["value"] = _format_literal(value)
            else:
                self._run(source, name, show=request.get("op") == "cell")
        except BaseException as error:
            reply["error"] = type(error).__name__
            message = _truncate(_format_traceback(error, name), self._limit)
        reply["output"] = self._read_output(out) + message
        return reply

    def _run(self, source: str, name: str, *, show: bool) -> None:
        tree = ast.parse(source, name)
        show_last = show and tree.body and isinstance(tree.body[-1], ast.Expr)
        last = tree.body.pop() if show_last else None
        exec(compile(tree, name, "exec"), self._names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), self._names)
            if value is not None:
                sys.stdout.write(f"{value!r}\n")

    def _read_output(self, out: io.TextIOBase) -> str:
        """Return the output since the last call, with its middle cut if it is too long."""
        # Output above the file size limit is lost; the code received the error.
        with contextlib.suppress(OSError, ValueError):
            out.close()
        size = os.fstat(self._output).st_size
        room = 4 * self._limit
        head = os.pread(self._output, room, 0)
        tail = os.pread(self._output, room, max(room, size - room)) if size > room else b""
        os.ftruncate(self._output, 0)
        if not tail:
            return _truncate(head.decode("utf-8", "replace"), self._limit)
        half = self._limit // 2
        first, rest = head.decode("utf-8", "replace")[:half], tail.decode("utf-8", "replace")
        missing = size - len(first.encode()) - len(rest[-half:].encode())
        return f"{first}\n[{missing} bytes cut]\n{rest[-half:]}"


def _truncate(text: str, limit: int) -> str:
    """Cut out the middle of a text that is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters cut]\n{text[-half:]}"


def _format_literal(value: object, depth: int = 0) -> str | None:
    """Format plain data as a Python literal, or return None for other types and subclasses."""
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
            (_format_literal(k, depth + 1), _format_literal(v, depth + 1))
            for k, v in value.items()  # pyright: ignore[reportAttributeAccessIssue]
        ]
        parts = [None if k is None or v is None else f"{k}: {v}" for k, v in pairs]
        return _join_parts("{", parts, "}")
    if kind in (list, tuple, set, frozenset):
        items = [_format_literal(v, depth + 1) for v in value]  # pyright: ignore[reportGeneralTypeIssues]
        if kind is list:
            return _join_parts("[", items, "]")
        if kind is tuple:
            return _join_parts("(", items, ",)" if len(items) == 1 else ")")
        return _join_parts("{", items, "}") if items else "set()"
    return None


def _join_parts(start: str, parts: list[str | None], end: str) -> str | None:
    if any(part is None for part in parts):
        return None
    text = start + ", ".join(part for part in parts if part is not None) + end
    return text if len(text) <= MAX_VALUE else None


def _format_traceback(error: BaseException, name: str) -> str:
    """Format the traceback frames in the user's code."""
    if isinstance(error, SystemExit):
        return ""
    try:
        lines = traceback.TracebackException.from_exception(error, limit=None, compact=True)
        frames = [f for f in lines.stack if f.filename.startswith("<cell ")]
        # Of a deep recursion, keep only the first and last frames.
        lines.stack = traceback.StackSummary.from_list(
            frames if len(frames) <= 8 else [*frames[:4], *frames[-4:]]
        )
        return "".join(lines.format(chain=False))
    except BaseException:
        # The exception's __str__ fails, or there is no memory left to format it.
        return f"{type(error).__name__}\n"
