"""`export`: rows for other programs."""

import json
import os
from pathlib import Path

import pytest
from policy.gguf_samples import tiny_llama
from tests.tracing.samples import orphans

from tutelage.store import open_store
from tutelage.tools.registry import BUILTIN_TOOLS
from tutelage.tracing.otlp import read_otlp

from .conftest import Tutelage
from .sample_run import add_span, failure, make_run, rollout


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one run, named `sums`, with the built-in tools."""
    monkeypatch.setattr("tutelage.runs.inputs.load_tools", lambda _: dict(BUILTIN_TOOLS))
    make_run(tmp_path / "runs" / "sums")
    return tmp_path / "runs"


def test_whole_rollouts(tutelage: Tutelage, runs: Path) -> None:
    result = tutelage("export", "sums")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) == 4
    assert rows[0]["attempts"][0]["calls"][0]["prompt_ids"] == [0, 1, 2, 3]


def test_an_export_is_written_over_no_other_file(
    tutelage: Tutelage, runs: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "rows.jsonl"
    mine.write_text("what a person wrote")
    refused = tutelage("export", "sums", "--out", "rows.jsonl")
    assert refused.exit_code == 2
    assert "'rows.jsonl' already exists with other content" in refused.stderr
    assert mine.read_text() == "what a person wrote"
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["rows.jsonl"]
    mine.unlink()
    for _ in range(2):
        assert tutelage("export", "sums", "--out", "rows.jsonl").exit_code == 0


@pytest.mark.full
def test_a_policy_as_gguf(tutelage: Tutelage, runs: Path, tmp_path: Path) -> None:
    tiny_llama().save(runs / "sums" / "policy")
    asked = ("export", "sums", "--format", "gguf")
    assert "--format gguf needs an output file: --out sums.gguf" in tutelage(*asked).stderr
    done = tutelage(*asked, "--out", "tiny.gguf")
    assert done.exit_code == 0, done.stderr
    assert "MB in tiny.gguf" in done.stderr
    assert (tmp_path / "tiny.gguf").read_bytes()[:4] == b"GGUF"
    (tmp_path / "mine.gguf").write_text("another model")
    refused = tutelage(*asked, "--out", "mine.gguf")
    assert "'mine.gguf' already exists with other content" in refused.stderr
    assert (tmp_path / "mine.gguf").read_text() == "another model"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.gguf", "runs", "tiny.gguf"]
    # It is a model for every command that takes one.
    done = tutelage("ask", "tiny.gguf", "What is 6 * 7?")
    assert done.exit_code == 0, done.output + done.stderr


def test_chat_rows_carry_the_tools(tutelage: Tutelage, runs: Path, tmp_path: Path) -> None:
    result = tutelage("export", "sums", "--format", "sft", "--out", "rows.jsonl")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "2 rows in rows.jsonl" in result.stderr
    rows = [json.loads(line) for line in tmp_path.joinpath("rows.jsonl").read_text().splitlines()]
    assert [m["role"] for m in rows[0]["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert [t["function"]["name"] for t in rows[0]["tools"]] == list(BUILTIN_TOOLS)
    assert not tmp_path.joinpath("rows.jsonl.tmp").exists()


def test_traces(tutelage: Tutelage, runs: Path) -> None:
    add_span(runs)
    result = tutelage("export", "sums", "--format", "otlp")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) == 4
    traces = [read_otlp(line.encode(), "application/json")[0] for line in lines]
    assert all(orphans(spans) == [] for spans in traces)
    (found,) = [s for spans in traces for s in spans if s.name == "my step"]
    assert found.attributes["n"] == 1
    assert "gen_ai.input.messages" not in result.stdout
    whole = tutelage("export", "sums", "--format", "otlp", "--content", "--successful").stdout
    assert "gen_ai.input.messages" in whole
    assert len(whole.splitlines()) == 3


def test_nothing_to_export_is_an_error_and_makes_no_file(
    tutelage: Tutelage, runs: Path, tmp_path: Path
) -> None:
    folder = make_run(runs / "none", store=False)
    with open_store(folder.store) as store:
        store.put_run(
            "none",
            name="none",
            recipe="math",
            algorithm="rl",
            config={},
            seed=3,
            folder="x",
            status="running",
        )
        store.put_rollouts([rollout("roll_a", failure(), run_id="none")])
    result = tutelage("export", "none", "--successful", "--out", "rows.jsonl")
    assert result.exit_code == 2
    assert "no rollout that succeeded with full reward" in result.stderr
    assert not tmp_path.joinpath("rows.jsonl").exists()


def test_a_full_disk_keeps_the_old_file(tutelage: Tutelage, runs: Path) -> None:
    result = tutelage("export", "sums", "--out", "/dev/full")
    assert result.exit_code == 2
    assert "cannot write '/dev/full': No space left on device" in result.stderr
    assert os.path.exists("/dev/full")
