"""Hashes of code: equal for equal definitions, so that a run knows the code that it was begun with.

What counts of a function is its file's statements that it reaches: itself, those that define the
names that it uses, and theirs, also in files beside it that it imports. Comments, the layout and
the rest of a script do not count, so the lines that start a training may change where its agent
stays the same.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def file_mark(path: Path, name: str = "") -> str:
    """A hash of what `name` of a Python file means; of the whole file without a name."""
    message = "\0".join(_reached(path.resolve(), name, set()))
    return hashlib.blake2b(message.encode(), digest_size=16).hexdigest()


def _reached(path: Path, name: str, seen: set[tuple[Path, str]]) -> Iterator[str]:
    """The statements of a file that a name means, as text; those of all names without one."""
    if (path, name) in seen:
        return
    seen.add((path, name))
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        statements = ast.parse(text).body
    except SyntaxError:
        yield text
        return
    wanted, more = set[str](), {name, "*"}
    while more - wanted:
        wanted |= more
        used = [node for each in statements if _owned(each) & wanted for node in ast.walk(each)]
        more = {node.id for node in used if isinstance(node, ast.Name)}
    whole = not any(name in _owned(each) for each in statements)
    for statement in (each for each in statements if whole or _owned(each) & wanted):
        yield ast.dump(statement)
        for node in ast.walk(statement):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                # `from a import b` takes a name of `a.py`, or the file `a/b.py`.
                inner = f"{module}.{alias.name}".strip(".")
                for taken, own in ((inner, ""), (module, alias.name.strip("*"))):
                    place = path.parent.joinpath(*taken.split("."))
                    for file in (place.with_suffix(".py"), place / "__init__.py"):
                        if taken and file.is_file():
                            yield from _reached(file.resolve(), own, seen)


def _owned(statement: ast.stmt) -> set[str]:
    """The names that a statement at the top of a file defines."""
    if isinstance(statement, _DEFINED):
        return {statement.name}
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, _DEFINED):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names
