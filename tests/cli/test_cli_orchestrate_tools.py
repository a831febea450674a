"""`tutelage orchestrate run --tools`: tools that run, who is asked, language models that plan."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.orchestration.executing import cut_after
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.engine.script import ScriptedReply
from tutelage.gateway import Gateway, ScriptedClient
from tutelage.store import open_store

TOOLS = '''
from pathlib import Path
from tutelage import tool

@tool
def list_files(folder: str) -> list[str]:
    """Names of the files in a folder."""
    return sorted(path.name for path in Path(folder).iterdir())

@tool
def count(items: list[str]) -> int:
    """How many items there are."""
    return len(items)

@tool(destructive=True)
def delete_file(path: str) -> str:
    """Delete a file."""
    Path(path).unlink()
    return f"{path} is deleted"
'''
COUNT = [
    {"tool": "list_files", "arguments": {"folder": "things"}},
    {"tool": "count", "arguments": {"items": "<node-0>"}},
]
DELETE = [{"tool": "delete_file", "arguments": {"path": "things/a"}}]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with tools, a folder and plans."""
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "things").mkdir()
    for name in "ab":
        (tmp_path / "things" / name).touch()
    for name, nodes in {"count": COUNT, "delete": DELETE}.items():
        plan = {"instruction": f"{name} them", "nodes": nodes}
        (tmp_path / f"{name}.json").write_text(json.dumps(plan))
    return tmp_path


def run(*args: str, code: int = 0) -> Any:
    command = ["orchestrate", "run", "--tools", "tools.py", "--output", "run", *args]
    done = CliRunner().invoke(build_app(), command, prog_name="tutelage")
    assert done.exit_code == code, done.output
    return done


@contextmanager
def planning(monkeypatch: pytest.MonkeyPatch, *replies: object) -> Generator[ScriptedClient]:
    """A server whose model says these, at `PLANS_AT`."""
    said = [ScriptedReply(each if isinstance(each, str) else json.dumps(each)) for each in replies]
    client = ScriptedClient(said)
    with Gateway() as gateway:
        session = gateway.open("rollout", "attempt", client)
        monkeypatch.setenv("OPENAI_API_KEY", session.api_key)
        monkeypatch.setenv("PLANS_AT", session.base_url)
        yield client


def test_a_plan_runs_over_tools_of_a_file_and_is_stored(here: Path) -> None:
    done = run("--plan", "count.json")
    assert "workers: 3 tools that run here" in done.stderr
    assert "[1] count(items='<node-0>')  after 0" in done.stderr
    assert '[1] count {"items": ["a", "b"]}\n  2\n' in done.stdout
    assert done.stdout.count("[1] count") == 1
    shown = CliRunner().invoke(build_app(), ["show", "run"])
    assert "execute_tool count" in shown.stdout
    with open_store(here / "run/store.db", create=False) as store:
        (rollout,) = store.rollouts("run")
        assert rollout.last.answer == "2"
        assert rollout.last.calls == ()


def test_side_effects_need_a_terminal_or_a_word(here: Path) -> None:
    done = run("--plan", "delete.json", code=1)
    assert "There is nobody to ask; --yes, or `permit`, permits it" in " ".join(done.stderr.split())
    assert (here / "things/a").exists()
    assert "things/a is deleted" in run("--plan", "delete.json", "--yes", "--output", "2").stdout
    assert not (here / "things/a").exists()


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        (b"\n", True),
        pytest.param(b"y\n", False, marks=pytest.mark.full),
        pytest.param(b"no\n", True, marks=pytest.mark.full),
    ],
)
def test_a_person_at_the_terminal_is_asked(here: Path, answer: bytes, left: bool) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tutelage", "orchestrate", "run"]
    command += ["--plan", "delete.json", "--tools", "tools.py"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(ours, 1000)
        os.write(ours, answer)
        try:
            while more := os.read(ours, 1000):
                shown += more
        except OSError:
            pass  # the program has ended
    os.close(ours)
    assert b'delete_file {"path": "things/a"}' in shown
    assert (here / "things/a").exists() is left
    assert process.returncode == int(left)


def test_a_language_model_plans_and_plans_again(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [{"tool": "list_files", "arguments": {"folder": "thing"}}]
    right = [
        {"tool": "list_files", "arguments": {"folder": "things"}},
        {"tool": "count", "arguments": {"items": "<node-1>"}},
    ]
    with planning(monkeypatch, {"nodes": wrong}, {"nodes": right}):
        done = run(
            "How many things?",
            "--planner",
            "llm",
            "--endpoint",
            os.environ["PLANS_AT"],
            "--model",
            "policy",
        )
    assert "plan: of the language model policy at http://" in done.stderr
    drawn = "further plan: level 0 [1] list_files(folder='things') level 1 [2] count(items="
    told = " ".join(done.stderr.split())
    assert told.index(drawn) < told.index("[1] list_files: succeeded")
    assert "replanned  1 node failed or skipped, replaced by a further plan" in done.stdout
    assert done.stdout.count("\n  2\n") == 1


def test_side_effects_of_a_further_plan_are_not_permitted_by_a_word(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [{"tool": "list_files", "arguments": {"folder": "thing"}}]
    replies = ({"nodes": wrong}, {"nodes": DELETE}, {"nodes": []})
    with planning(monkeypatch, *replies):
        done = run(
            "How many things?", "--planner", "llm", "--endpoint", os.environ["PLANS_AT"],
            "--model", "policy", "--yes", code=1,
        )  # fmt: skip
    assert "--yes does not hold for it" in " ".join(done.stderr.split())
    assert (here / "things/a").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("Count", "--planner", "llm"), "needs a language model. Pass a planning model"),
        (
            ("Count", "--planner", "trained", "--model", "m"),
            "cannot be used with --endpoint or --model",
        ),
        (("Count", "--catalog", "c.json"), "--catalog cannot be used with --tools or --mcp"),
        (
            ("--plan", "count.json", "--pool", "simulated"),
            "--pool and --workers cannot be used with --tools or --mcp",
        ),
        (("--plan", "count.json", "--tools", "none.py"), "file not found"),
        (("--plan", "wrong.json"), "node 0 (count): missing argument 'items'; it takes items"),
    ],
)
def test_what_cannot_be_is_refused_before_a_folder_is_made(
    here: Path, args: tuple[str, ...], words: str
) -> None:
    wrong = {"instruction": "x", "nodes": [{"tool": "count"}]}
    (here / "wrong.json").write_text(json.dumps(wrong))
    done = run(*args, code=2)
    assert words in " ".join(done.stderr.split())
    assert not (here / "run").exists()


def test_what_can_be_planned_with_is_listed(here: Path) -> None:
    words = ["orchestrate", "tools"]
    builtin = CliRunner().invoke(build_app(), words)
    assert builtin.exit_code == 0, builtin.output
    assert "summarize_text" in builtin.stdout
    assert "the trained planner plans over them" in builtin.stderr
    own = CliRunner().invoke(build_app(), [*words, "--tools", "tools.py"])
    assert "list_files" in own.stdout
    assert "need a language model as planner" in own.stderr
    rows = json.loads(
        CliRunner().invoke(build_app(), [*words, "--tools", "tools.py", "--json"]).stdout
    )
    assert {"list_files", "count"} <= {row["name"] for row in rows}


def test_a_run_that_was_killed_goes_on_without_what_had_ended(here: Path) -> None:
    plan = {"instruction": "x", "nodes": [*COUNT, {**DELETE[0], "after": [1]}]}
    (here / "both.json").write_text(json.dumps(plan))
    run("--plan", "both.json", "--yes")
    cut_after(here / "run/store.db", "dispatch", node=2, place=0)
    (here / "run/result.json").unlink()
    (here / "things/a").touch()
    command = ["resume", str(here / "run")]  # begun with --yes
    os.chdir(here.parent)  # where things/a would be another file
    done = CliRunner().invoke(build_app(), command, prog_name="tutelage")
    assert done.exit_code == 2, done.output
    assert "would run the code" in done.stderr
    os.chdir(here)
    done = CliRunner().invoke(build_app(), command, prog_name="tutelage")
    assert done.exit_code == 0, done.output
    assert "resumed    2 nodes done before" in done.stdout
    assert not (here / "things/a").exists()
