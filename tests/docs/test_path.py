"""The way of `docs/start.md`, from an agent's file to its rollouts, typed with a tiny model."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from pages import ROOT, Block, blocks, commands, write_files
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.testing import tiny_policy

PAGE = ROOT / "docs" / "start.md"
SMALL = ("--steps", "1", "data.train_batch_size=2", "num_chains=2", "agent.max_tokens_per_turn=4",
         "rollout.max_len=1024")  # fmt: skip
"""A training that tiny models end in a second."""


def typed() -> list[Block]:
    """The blocks of commands between the agent's file and the section that changes something."""
    text = PAGE.read_text(encoding="utf-8")
    first, last = (text.count("\n", 0, text.index(f"\n## {h}")) for h in ("2. ", "Change"))
    return [b for b in blocks(PAGE) if b.language == "bash" and first < b.line < last]


def quick(words: list[str]) -> list[str]:
    """A command with less to do: fewer steps; a search that plays one task."""
    if "screen" in words:
        return [*words[1:], "--model", "runs/first/policy", "--dry-run"]
    more = {"train": SMALL, "eval": ("--max-tokens", "4")}
    return [*words[1:], *more.get(words[1], ())]


@pytest.mark.full
def test_each_command_of_the_way_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in write_files(PAGE, tmp_path):
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    tiny_policy(max_positions=1024).save(tmp_path / "runs" / "first" / "policy")
    done: list[str] = []
    for words in (words for block in typed() for words in commands(block)):
        if words[0] == "python":
            runpy.run_path(words[1])
            for name in ("train", "val", "test"):
                lines = (tmp_path / f"{name}.jsonl").read_text().splitlines(keepends=True)
                (tmp_path / f"{name}.jsonl").write_text("".join(lines[:4]))
            continue
        ended = CliRunner().invoke(build_app(), quick(words), prog_name="tutelage")
        assert ended.exit_code == 0, f"{' '.join(words)}\n{ended.output}"
        done.append(words[1])
    assert done == [
        "eval",
        "eval",
        "train",
        "eval",
        "train",
        "ask",
        "show",
        "runs",
        "train",
        "init",
    ]
