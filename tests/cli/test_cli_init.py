"""`tutelage init`: what it writes runs as its README says."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.engine.script import ScriptedReply
from tutelage.gateway import Gateway, ScriptedClient
from tutelage.runs.folder import RunFolder
from tutelage.testing import tiny_policy

SMALL = [
    "steps=1",
    "batch_size=2",
    "num_chains=2",
    "rollout.max_len=512",
    "trainer.threads=1",
    "agent.max_tokens_per_turn=16",
]
FEW = ["--limit", "2"]
SIZES = ["--train-size", "4", "--val-size", "2", "--test-size", "2"]


def command(*words: object, codes: tuple[int, ...] = (0,)) -> str:
    done = CliRunner().invoke(build_app(), [str(word) for word in words])
    assert done.exit_code in codes, done.output
    return " ".join(done.output.split())


@pytest.mark.full
def test_every_command_of_its_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    monkeypatch.chdir(tmp_path)
    said = command("init", "--endpoint")
    assert "agent.py, tasks.py, train.toml, README.md, .env are in ." in said
    assert "tutelage train agent.py --algorithm auto" in said
    assert "OPENAI_API_KEY=" in (tmp_path / ".env").read_text()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "agent", raising=False)
    tiny_policy(max_positions=1024).save(tmp_path / "model")
    found = re.findall(r"```bash\n(.*?)```", (tmp_path / "README.md").read_text(), re.DOTALL)
    lines = [shlex.split(line) for block in found for line in block.splitlines()]
    assert [line[:2] for line in lines].count(["tutelage", "train"]) == 4
    assert lines[0] == ["python", "tasks.py"]
    runpy.run_path("tasks.py", run_name="__main__")
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    known = [ScriptedReply(f"It is {row['answer']}.", match=row["question"]) for row in rows]
    with Gateway() as gateway:
        session = gateway.open("m", "main", ScriptedClient([*known, ScriptedReply("It is 1.")]))
        monkeypatch.setenv("OPENAI_BASE_URL", session.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", session.api_key)
        for program, *words in lines[1:]:
            assert program == "tutelage"
            words = ["model" if word == "smollm2" else word for word in words]
            words = ["3" if word == "100" else word for word in words]
            if words[0] == "eval":
                command(*words, "--max-tokens", "16", *([] if "--limit" in words else FEW))
            elif "--algorithm" in words:
                command(*words, *SIZES, "--rollouts", "40", codes=(0, 3))
            else:
                command(*words, *SIZES, *SMALL)
    result = RunFolder(tmp_path / "runs" / "taught").read_result() or {}
    assert (result["demonstrations"], result["rl_steps"]) == (3, 1)
    assert "success_demonstrations_greedy" in result


def test_it_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = command("init", "new/shop")
    assert "cd new/shop python tasks.py tutelage train agent.py --config train.toml" in said
    assert sorted(p.name for p in (tmp_path / "new" / "shop").iterdir()) == [
        "README.md", "agent.py", "tasks.py", "train.toml"
    ]  # fmt: skip
    (tmp_path / "agent.py").write_text("mine")
    (tmp_path / "README.md").write_text("mine")
    assert "already has agent.py, README.md, so nothing was written" in command("init", codes=(2,))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["README.md", "agent.py", "new"]
    assert (tmp_path / "agent.py").read_text() == "mine"
