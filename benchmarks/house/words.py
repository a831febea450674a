"""Draw docstrings, messages and names for readers, mixed with those of two peers and unmarked.

    python -m benchmarks.house.words PEERS [--paths src/tutelage/orchestration] > sheet.txt

PEERS is a folder with the unpacked wheels of trl and verl. The seed is the first 8 digits of the
commit. Ours are 60 docstrings, 40 messages and 60 names of public functions, classes and
parameters; 40 of each are the peers'. The sheet has numbered lines; `--key` prints whose each is.
"""

from __future__ import annotations

import argparse
import ast
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

OURS, PEERS = {"docstring": 60, "message": 40, "name": 60}, 40


def lines_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of a module: first lines of docstrings, texts of raised errors, names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            text = ast.get_docstring(node)
            if text:
                yield "docstring", " ".join(text.split("\n\n")[0].split())[:200]
            if isinstance(node, ast.ClassDef):
                yield "name", node.name
            else:
                arguments = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
                listed = [name for name in arguments if name not in ("self", "cls")]
                yield "name", f"{node.name}({', '.join(listed)})"
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            yield "message", ast.unparse(node.exc.args[0])[:200]


def drawn(paths: list[Path], many: dict[str, int], rng: random.Random) -> list[tuple[str, str]]:
    """Draw as many texts of each kind as `many` says, or all that there are."""
    found = [
        line
        for path in paths
        for file in sorted(path.rglob("*.py"))
        if "tests" not in file.parts
        for line in lines_of(file)
    ]
    chosen: list[tuple[str, str]] = []
    for kind, number in many.items():
        texts = sorted({text for k, text in found if k == kind and len(text) > 3})
        chosen += [(kind, text) for text in rng.sample(texts, min(number, len(texts)))]
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peers", type=Path, help="folder with the unpacked wheels of trl and verl")
    parser.add_argument("--paths", type=Path, nargs="+", default=[Path("src/tutelage")])
    parser.add_argument("--key", action="store_true", help="print whose each line is")
    args = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout
    rng = random.Random(int(commit[:8], 16))
    sheet = [("ours", *line) for line in drawn(args.paths, OURS, rng)]
    peers = [args.peers / "trl", args.peers / "verl"]
    sheet += [("peer", *line) for line in drawn(peers, dict.fromkeys(OURS, PEERS), rng)]
    rng.shuffle(sheet)
    for number, (whose, kind, text) in enumerate(sheet, 1):
        print(f"{number} {whose}" if args.key else f"{number}. {kind}: {text}")


if __name__ == "__main__":
    main()
