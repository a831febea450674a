"""Marks of code: equal for equal definitions, so that a run knows the code that it was begun with.

What counts of a function is its file's definitions that it reaches: itself, the names that it uses,
and theirs, also in files beside it that it imports. Comments, the layout and the rest of a script
do not count, so the lines that start a training may change where its agent stays the same.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def file_mark(path: Path, name: str = "") -> str:
    """A mark of what `name` of a Python file means; of the whole file without a name."""
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
    owners = [_owned(statement) for statement in statements]
    if not any(name in names for names in owners):
        chosen = set(range(len(statements)))
    else:
        chosen = _closure(name, statements, owners)
    for index in sorted(chosen):
        yield ast.dump(statements[index])
        for file, imported in _imports(statements[index], path.parent):
            yield from _reached(file, imported, seen)


def _closure(name: str, statements: list[ast.stmt], owners: list[set[str]]) -> set[int]:
    """The statements that define a name, and all names that those use."""
    chosen: set[int] = set()
    names, known = [name, "*"], {name, "*"}
    while names:
        wanted = names.pop()
        for index, statement in enumerate(statements):
            if wanted not in owners[index] or index in chosen:
                continue
            chosen.add(index)
            used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            names += sorted(used - known)
            known |= used
    return chosen


def _owned(statement: ast.stmt) -> set[str]:
    """The names that a statement at the top of a file defines or changes."""
    if isinstance(statement, _DEFINED):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(a.asname or a.name).partition(".")[0] for a in statement.names}
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return {_root(statement.value.func)} - {""}  # such as TABLE.update(...)
    stored = [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
        and isinstance(node.ctx, ast.Store | ast.Del)
    ]
    inner = [node.name for node in ast.walk(statement) if isinstance(node, _DEFINED)]
    return {_root(node) for node in stored} | set(inner) - {""}


def _root(node: ast.expr) -> str:
    """`TABLE` of `TABLE["a"].b`; empty where it begins with no name."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _imports(statement: ast.stmt, beside: Path) -> Iterator[tuple[Path, str]]:
    """The files beside this one that a statement imports, each with the name that it takes."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            wanted = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            front = f"{node.module}." if node.module else ""
            wanted = [(f"{front}{a.name}", "") for a in node.names]
            wanted += [(node.module, a.name) for a in node.names if node.module]
        else:
            continue
        for module, name in wanted:
            place = beside.joinpath(*module.split("."))
            for file in (place.with_suffix(".py"), place / "__init__.py"):
                if file.is_file():
                    yield file.resolve(), "" if name == "*" else name
