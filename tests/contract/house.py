"""The size and the shape of the package, counted from its source; `make check` runs this file.

It prints the code lines of each package beside its ceiling in `ceilings.json`, and fails above one,
and for what must not come back: a function above 100 lines, a file above 800, an import between
weights, prompts and orchestration, a comparison with the name of a kind of run, two public classes
of one name. A line of code carries a token that is no comment, and belongs to no docstring, no
other bare string and no import. Templates, style sheets, scripts and SQL count by their lines that
are not blank; data does not. A *helper of one caller* is a private, undecorated function or method
that its module uses once, in a call.

A commit may raise a ceiling where another one falls by as much (a move), or by a mend that it
names. `python tests/contract/house.py --lower` writes the ceilings down to what is there.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CEILINGS = Path(__file__).with_name("ceilings.json")
MOST_LINES_OF_A_FUNCTION, MOST_LINES_OF_A_FILE = 100, 800
APART = ("weights", "prompts", "orchestration")
KINDS = ("weights", "supervised", "prompt", "planner", "execution", "evaluation")
PAGES = {".j2", ".html", ".js", ".css", ".jinja", ".sql", ".svg", ".toml", ".yaml"}
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


@dataclass
class Figures:
    """What the files of a package add up to."""

    lines: Counter[str] = field(default_factory=Counter[str])
    """Code lines by package."""
    code: int = 0
    """Those of Python, which `tokens` stand on."""
    tokens: int = 0
    files: int = 0
    classes: int = 0
    functions: int = 0
    helpers: list[int] = field(default_factory=list[int])
    """Lengths of the helpers of one caller."""
    public: Counter[str] = field(default_factory=Counter[str])
    """How often a public class at the top of a module has a name."""
    faults: list[str] = field(default_factory=list[str])
    """What must not be there, a line each."""

    def summary(self) -> str:
        """The totals in a line."""
        return (
            f"{self.files} files, {self.lines.total()} code lines, "
            f"{self.tokens / max(1, self.code):.2f} tokens a line, {self.classes} classes, "
            f"{self.functions} functions and methods, {len(self.helpers)} helpers of one caller "
            f"({sum(self.helpers)} lines)"
        )


def count(root: Path) -> Figures:
    """Read all files of a package; `root` is its folder."""
    figures = Figures()
    for path in sorted(p for p in root.rglob("*") if p.is_file() and "vendor" not in p.parts):
        place = path.relative_to(root)
        package = place.parts[0] if len(place.parts) > 1 else "top"
        if path.suffix in PAGES:
            text = path.read_text(encoding="utf-8")
            figures.lines[package] += sum(bool(line.strip()) for line in text.splitlines())
        if path.suffix != ".py":
            continue
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        lines, tokens = code_lines(text, tree)
        figures.files += 1
        figures.lines[package] += lines
        figures.code += lines
        figures.tokens += tokens
        figures.helpers += helpers_of_one_caller(tree)
        for node in ast.walk(tree):
            figures.classes += isinstance(node, ast.ClassDef)
            figures.functions += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        top = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        figures.public.update(name for name in top if not name.startswith("_"))
        if (length := text.count("\n")) > MOST_LINES_OF_A_FILE:
            figures.faults.append(f"{place}: {length} lines")
        found = (*long_functions(tree), *imports_across(tree, package), *kinds_compared(tree))
        figures.faults += [f"{place}, {fault}" for fault in found]
    twins = [name for name, times in figures.public.items() if times > 1]
    figures.faults += [f"more than one public class is called {name}" for name in twins]
    return figures


def code_lines(text: str, tree: ast.Module) -> tuple[int, int]:
    """Lines of a module that carry code, and the tokens on them."""
    apart: set[int] = set()
    for node in ast.walk(tree):
        constant = node.value if isinstance(node, ast.Expr) else None
        bare = isinstance(constant, ast.Constant) and isinstance(constant.value, str)
        if bare or isinstance(node, ast.Import | ast.ImportFrom):
            apart.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    used: set[int] = set()
    tokens = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE and token.start[0] not in apart:
            used.update(range(token.start[0], token.end[0] + 1))
            tokens += 1
    return len(used - apart), tokens


def helpers_of_one_caller(tree: ast.Module) -> Iterator[int]:
    """Lengths of private functions and methods that the module uses once, in a call."""
    uses: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)
        uses.update([name] if isinstance(name, str) else [])
        if isinstance(node, ast.Call):
            called = node.func
            calls[called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")] += 1
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list:
            private = node.name.startswith("_") and not node.name.endswith("__")
            if private and uses[node.name] == calls[node.name] == 1:
                yield (node.end_lineno or node.lineno) - node.lineno + 1


def long_functions(tree: ast.Module) -> Iterator[str]:
    """Functions, methods and inner functions that do not fit a page."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MOST_LINES_OF_A_FUNCTION:
                yield f"line {node.lineno}: {node.name} has {length} lines"


def imports_across(tree: ast.Module, package: str) -> Iterator[str]:
    """Imports of another trained package, inside functions and in hints too."""
    others = {f"tutelage.{name}" for name in APART if name != package} if package in APART else ()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        crossing = [name for name in names if ".".join(name.split(".")[:2]) in others]
        if crossing:
            yield f"line {node.lineno}: imports {crossing[0]}"


def kinds_compared(tree: ast.Module) -> Iterator[str]:
    """Comparisons of something called kind with the name of a kind of run."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            words = {ast.unparse(side).rpartition(".")[2] for side in sides}
            inner = [part for side in sides for part in ast.walk(side)]
            texts = {part.value for part in inner if isinstance(part, ast.Constant)}
            if words & {"kind", "run_kind"} and texts & {*KINDS}:
                yield f"line {node.lineno}: {ast.unparse(node)}"


def above(lines: Counter[str], ceilings: dict[str, int]) -> Iterator[str]:
    """Packages above their ceiling, a line each; `else` is the ceiling of those without one."""
    for package, most in ceilings.items():
        here = lines[package]
        if package == "else":
            here = sum(found for name, found in lines.items() if name not in ceilings)
        print(f"{package:14} {here:6} of {most}")
        if here > most:
            yield f"{package}: {here} code lines, and the ceiling is {most}"


def main(root: Path) -> None:
    figures = count(root)
    ceilings: dict[str, int] = json.loads(CEILINGS.read_text(encoding="utf-8"))
    wrong = [*figures.faults, *above(figures.lines, ceilings)]
    print(figures.summary())
    if "--lower" in sys.argv:
        named = {name: min(most, figures.lines[name]) for name, most in ceilings.items()}
        rest = sum(found for name, found in figures.lines.items() if name not in ceilings)
        named["else"] = min(ceilings["else"], rest)
        CEILINGS.write_text(json.dumps(named, indent=2) + "\n", encoding="utf-8")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.exit(f"{len(wrong)} faults of size or shape; CONTRIBUTING.md has the rules" if wrong else 0)


if __name__ == "__main__":
    main(Path(__file__).resolve().parents[2] / "src" / "tutelage")
