"""The modules of the package, read from the source without importing anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import tutelage

ROOT = Path(tutelage.__file__).parent
ELSEWHERE = {ROOT / "distributed" / "vllm_plugin", ROOT / "cli" / "starter"}
"""Folders whose files run in other programs: a plugin that vLLM loads, and what `tutelage init`
copies."""


@cache
def modules() -> dict[str, Path]:
    """Dotted names to files, packages under their own name; nothing that other programs load."""
    found: dict[str, Path] = {}
    for path in sorted(ROOT.rglob("*.py")):
        if path.parent in ELSEWHERE:
            continue
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(name: str) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(modules()[name].read_text(encoding="utf-8"))


def imported(name: str) -> Iterator[str]:
    """Full names that a module imports from this package, wherever the import stands."""
    for node in ast.walk(tree(name)):
        yield from _names(name, node)


def loaded(name: str) -> Iterator[str]:
    """The modules that a module imports when it runs: at its top or in a function, no hints."""
    for node in _without_hints(tree(name)):
        for target in _names(name, node):
            yield target if target in modules() else target.rpartition(".")[0]


def named(name: str) -> Iterator[str]:
    """The modules that a module names in strings, alone or with something in them after `:`."""
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            target = node.value.partition(":")[0]
            if target in modules() and target != "tutelage":
                yield target


def _without_hints(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _without_hints(child)


def _names(name: str, node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (a.name for a in node.names if a.name.split(".")[0] == "tutelage")
    elif isinstance(node, ast.ImportFrom):
        base = _base(name, node)
        if base.split(".")[0] == "tutelage":
            yield from (f"{base}.{a.name}" for a in node.names)


def _base(name: str, node: ast.ImportFrom) -> str:
    """The module that `from ... import` names, relative ones resolved."""
    if not node.level:
        return node.module or ""
    is_package = modules()[name].name == "__init__.py"
    parts = name.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, node.module] if node.module else parts)
