"""What errors and help tell people to type exists: commands, options, algorithms, extras.

The texts are those of the source, f-strings with their values left out, and the documents' own
words outside of blocks (`test_docs.py` runs those).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT, inline_code, pages
from typer.main import get_command

from tutelage.cli import build_app
from tutelage.cli.app import command

VALUE = "\0"
"""Stands where an f-string has a value."""
OTHERS = {
    *("--no-index", "--no-deps", "--only-binary", "--no-input", "--retries", "--dest"),  # pip's
    "--no-cache-dir",
    "--progress-bar",
    "--upgrade",
    "--index-url",
    "--install",  # of wsl
    *("--standalone", "--nnodes", "--nproc-per-node", "--max-restarts"),  # torchrun's
    "--rdzv-conf",  # torchrun's
    *("--head", "--address", "--num-cpus", "--num-gpus", "--working-dir"),  # Ray's
    *("--max-model-len", "--max-lora-rank", "--max-num-batched-tokens", "--dtype"),  # vLLM's
    *("--weight-transfer-config", "--logprobs-mode", "--enable-lora", "--enable-scale-out"),
    *("--no-enable-chunked-prefill", "--enforce-eager", "--served-model-name", "--max-num-seqs"),
    *("--gpu-memory-utilization", "--tensor-parallel-size"),
    "--lr",  # what people write who mean the key
}  # fmt: skip
"""Options of other programs that a text may name."""
SOURCES = sorted((ROOT / "src" / "tutelage").rglob("*.py"))


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Every string of a module with its line; of an f-string the whole."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(v.value) if isinstance(v, ast.Constant) else VALUE for v in node.values]
            inside |= {id(v) for v in ast.walk(node)}
            yield node.lineno, "".join(parts)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
        ):
            yield node.lineno, node.value


@cache
def every_text() -> list[tuple[str, str]]:
    """Place and text, of the source and of what documents write as code within a sentence."""
    return list(_every_text())


def _every_text() -> Iterator[tuple[str, str]]:
    for path in SOURCES:
        for line, text in texts(path):
            yield f"{path.relative_to(ROOT)}:{line}", text
    for page in pages():
        for text in inline_code(page):
            yield str(page.relative_to(ROOT)), text


def verbs(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every verb of the command line."""
    yield path, command
    for name in getattr(command, "commands", {}):
        yield from verbs(command.get_command(None, name), (*path, name))


TREE = dict(verbs(get_command(build_app())))
TREE["train", "planner"] = command("planner:train_planner")
OPTIONS = {
    option
    for command in TREE.values()
    for param in command.params
    for option in (*param.opts, *param.secondary_opts)
}
SCRIPTS = {
    option
    for folder in ("examples", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    for option in re.findall(r"add_argument\(\s*\"(--[\w-]+)", path.read_text(encoding="utf-8"))
}
"""Options of examples and benchmarks, which documents name too."""


@pytest.mark.full
def test_every_command_that_is_named_exists() -> None:
    wrong: list[str] = []
    for place, text in every_text():
        for found in re.finditer(r"(?<![\w./-])tutelage ((?:[a-z]+ ?)+)", text):
            quoted = text[: found.start()].endswith(("`", ": ", "with ", "\n", "    "))
            words = found[1].split()
            if quoted and (words[0],) not in TREE:
                wrong.append(f"{place}: tutelage {found[1]}")
            below = hasattr(TREE.get((words[0],)), "commands") and len(words) > 1
            if below and tuple(words[:2]) not in TREE:
                wrong.append(f"{place}: tutelage {found[1]}")
    assert not wrong, "\n".join(wrong)


def test_every_option_that_is_named_exists() -> None:
    known = OPTIONS | OTHERS | {"--help", "--version"}
    wrong = [
        f"{place}: {option}"
        for place, text in every_text()
        if "var(--" not in text  # a style sheet
        for option in re.findall(r"(?<![\w-])(--[a-z][a-z0-9_-]*[a-z0-9])", text)
        # The command takes an underscore for a dash.
        if not {option, option.replace("_", "-")}
        & (known if place.startswith("src/") else known | SCRIPTS)
    ]
    assert not wrong, "\n".join(wrong)
