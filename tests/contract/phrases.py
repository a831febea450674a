"""Phrases that no docstring, message, help text or page may have: `make check` runs this file.

`phrases.txt` has them, one a line, each with what to say instead. They are found in any case, as
whole words, over the ends of lines. Texts are the strings of the package, docstrings among them,
the README and the pages of `docs/`, without blocks of code and names in backticks.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIST = HERE / "phrases.txt"
LEAST = 60
SENT = ("src/tutelage/prompts/requests.py",)
"""What is sent to models: other words there would be another algorithm."""
HOLE = "\0"
"""Stands for what is left out: no phrase goes on through it."""
_BLOCK = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"``[^`]*``|`(?:[^`\n]|\n(?!\s*\n))*`")


def phrases() -> dict[str, str]:
    """The committed list: a phrase, and what to say instead."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    pairs = (line.partition(" => ") for line in lines if " => " in line)
    return {phrase: instead for phrase, _, instead in pairs}


@cache
def _pattern() -> re.Pattern[str]:
    longest = sorted(phrases(), key=len, reverse=True)
    forms = [r"\s+".join(map(re.escape, phrase.split())) for phrase in longest]
    return re.compile(rf"(?<![\w-])(?:{'|'.join(forms)})(?![\w-])", re.IGNORECASE)


def found_in(text: str) -> Iterator[tuple[int, str]]:
    """Phrases in a text, each with the number of lines before it; names and blocks are blanked."""
    for kind in (_BLOCK, _NAME):
        text = kind.sub(lambda part: re.sub(r"[^\n]", HOLE, part[0]), text)
    for hit in _pattern().finditer(text):
        yield text.count("\n", 0, hit.start()), " ".join(hit[0].split())


def strings(source: str) -> Iterator[tuple[int, str]]:
    """The strings of a module with their first lines; the values of an f-string are left out."""
    tree = ast.parse(source)
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            parts = [p.value if isinstance(p, ast.Constant) else HOLE for p in node.values]
            yield node.lineno, "".join(map(str, parts))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
        ):
            yield node.lineno, node.value


def hits(root: Path = ROOT) -> Iterator[tuple[Path, int, str]]:
    """Every place with a phrase: file, line, phrase."""
    for path in sorted((root / "src" / "tutelage").rglob("*.py")):
        if path.relative_to(root).as_posix() in SENT:
            continue
        for line, text in strings(path.read_text(encoding="utf-8")):
            if " " in text:
                yield from ((path.relative_to(root), line + n, p) for n, p in found_in(text))
    for path in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        yield from ((path.relative_to(root), 1 + n, phrase) for n, phrase in found_in(text))


if __name__ == "__main__":
    known = phrases()
    lines = [
        f"{path}:{line}: {phrase!r}; say instead: {known[phrase.lower()]}"
        for path, line, phrase in hits()
    ]
    print(*lines, sep="\n", end="\n" if lines else "")
    if lines:
        sys.exit(f"{len(lines)} phrases that {LIST.name} refuses")
