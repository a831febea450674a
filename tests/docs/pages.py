"""What the documents hold: fenced blocks, links, inline code. Read without any Markdown library."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
                    re.DOTALL | re.MULTILINE)  # fmt: skip
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def pages() -> list[Path]:
    """The documents that are checked."""
    front = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    below = [ROOT / "docs", ROOT / "examples"]
    found = [page for folder in below for page in sorted(folder.rglob("*.md"))]
    return [*front, ROOT / "benchmarks" / "README.md", *found]


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; `line` is where its text begins."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("text")) + 1
        yield Block(page, line, found["language"], found["text"])


def write_files(page: Path, folder: Path) -> list[str]:
    """Write the files that a page shows: blocks that begin with `# NAME.py`. Returns names."""
    names: list[str] = []
    for block in blocks(page):
        name = re.match(r"# (\w+\.py)\n", block.text)
        if name is not None and block.language == "python":
            folder.joinpath(name[1]).write_text(block.text, encoding="utf-8")
            names.append(name[1])
    return names


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """The targets of its links."""
    return _LINK.findall(prose(page))


def inline_code(page: Path) -> list[str]:
    """What stands between single backticks."""
    return _CODE.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The names by which GitHub links to the headings of a page."""
    titles = _HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command of a bash block, without comments, pipes and redirections."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            end = next((i for i, word in enumerate(words) if word in ("|", ">")), len(words))
            yield words[:end]
