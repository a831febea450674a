"""Hash the source of user functions, so that a resumed run can detect changed code.

The hash of a function covers its own statement, the statements that define the names it uses, and
so on recursively, also in imported files of the same folder. Comments, layout and the rest of the
script are not included, so the lines that start a training may change while the agent's hash stays
the same.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def hash_source(path: Path, name: str = "") -> str:
    """Hash the definition of `name` in a Python file, or the whole file."""
    message = "\0".join(_collect_source(path.resolve(), name, set()))
    return hashlib.blake2b(message.encode(), digest_size=16).hexdigest()


def _collect_source(path: Path, name: str, visited: set[tuple[Path, str]]) -> Iterator[str]:
    """Yield the dumped statements that define `name` and its dependencies, or all statements if
    `name` is empty."""
    if (path, name) in visited:
        return
    visited.add((path, name))
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        statements = ast.parse(text).body
    except SyntaxError:
        yield text
        return
    needed, used_names = set[str](), {name, "*"}
    while used_names - needed:
        needed |= used_names
        nodes = [node for s in statements if _defined_names(s) & needed for node in ast.walk(s)]
        used_names = {node.id for node in nodes if isinstance(node, ast.Name)}
    whole = not any(name in _defined_names(each) for each in statements)
    for statement in (each for each in statements if whole or _defined_names(each) & needed):
        yield ast.dump(statement)
        for node in ast.walk(statement):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                # `from a import b` imports a name of `a.py` or the file `a/b.py`.
                inner = f"{module}.{alias.name}".strip(".")
                for dotted, attribute in ((inner, ""), (module, alias.name.strip("*"))):
                    base = path.parent.joinpath(*dotted.split("."))
                    for file in (base.with_suffix(".py"), base / "__init__.py"):
                        if dotted and file.is_file():
                            yield from _collect_source(file.resolve(), attribute, visited)


def _defined_names(statement: ast.stmt) -> set[str]:
    """Return the names defined by a top-level statement."""
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
