"""The size and the shape of the package, counted from its source; `make check` runs this file.

It prints the totals, and fails for what must not come back: a function above 100 lines, a file
above 800, an import between weights, prompts and orchestration, and code that asks a run for its
kind by name. A line of code carries a token that is no comment, and belongs to no docstring, no
other bare string and no import.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from source_tree import ROOT

MOST_LINES_OF_A_FUNCTION, MOST_LINES_OF_A_FILE = 100, 800
APART = ("weights", "prompts", "orchestration")
KINDS = ("weights", "supervised", "prompt", "planner", "execution", "evaluation")
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def code_lines(text: str) -> int:
    """Lines of a module that carry code."""
    apart: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        constant = node.value if isinstance(node, ast.Expr) else None
        bare = isinstance(constant, ast.Constant) and isinstance(constant.value, str)
        if bare or isinstance(node, ast.Import | ast.ImportFrom):
            apart.update(_lines_of(node))
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            used.update(range(token.start[0], token.end[0] + 1))
    return len(used - apart)


def long_functions(text: str) -> Iterator[str]:
    """Functions, methods and inner functions that do not fit a page."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = len(_lines_of(node))
            if length > MOST_LINES_OF_A_FUNCTION:
                yield f"line {node.lineno}: {node.name} has {length} lines"


def imports_across(text: str, room: str) -> Iterator[str]:
    """Imports of another trained room, inside functions and in hints too."""
    others = {f"tutelage.{name}" for name in APART if name != room} if room in APART else set()
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if ".".join(name.split(".")[:2]) in others:
                yield f"line {node.lineno}: imports {name}"
                break


def questions_for_a_kind(text: str) -> Iterator[str]:
    """Names such as `is_prompt`, and comparisons of something called kind with a kind's name."""
    for node in ast.walk(ast.parse(text)):
        name = getattr(node, "name", None) or getattr(node, "attr", None) or getattr(node, "id", "")
        if isinstance(name, str) and name.startswith(("is_prompt", "is_planner", "is_weights")):
            yield f"line {getattr(node, 'lineno', 0)}: {name}"
        if isinstance(node, ast.Compare) and _asks_kind(node):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def _asks_kind(node: ast.Compare) -> bool:
    sides = [node.left, *node.comparators]
    words = [ast.unparse(side).rpartition(".")[2] for side in sides]
    constants = {
        inner.value for side in sides for inner in ast.walk(side) if isinstance(inner, ast.Constant)
    }
    return any(w in ("kind", "run_kind") for w in words) and bool(constants & {*KINDS})


def faults(root: Path) -> list[str]:
    """What must not be in the package, a line each."""
    found: list[str] = []
    for path in sorted(root.rglob("*.py")):
        text, place = path.read_text(encoding="utf-8"), path.relative_to(root)
        lines = text.count("\n")
        if lines > MOST_LINES_OF_A_FILE:
            found.append(f"{place}: {lines} lines")
        for fault in (
            *long_functions(text),
            *imports_across(text, place.parts[0]),
            *questions_for_a_kind(text),
        ):
            found.append(f"{place}, {fault}")
    return found


def totals(root: Path) -> str:
    """What the package adds up to, in a line."""
    files = code = classes = functions = 0
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        public = [node for node in ast.parse(text).body if _is_public(node)]
        files += 1
        code += code_lines(text)
        classes += sum(isinstance(node, ast.ClassDef) for node in public)
        functions += sum(not isinstance(node, ast.ClassDef) for node in public)
    return (
        f"{files} files, {code} lines of code, {classes} public classes, "
        f"{functions} public functions"
    )


def _is_public(node: ast.stmt) -> bool:
    definition = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return definition and not node.name.startswith("_")


def _lines_of(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


if __name__ == "__main__":
    print(totals(ROOT))
    wrong = faults(ROOT)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.exit(f"{len(wrong)} places are too long or ask what they must not" if wrong else 0)
