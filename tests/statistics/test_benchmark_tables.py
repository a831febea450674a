"""The tables of benchmarks that compare runs by task."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def bf16(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    monkeypatch.delitem(sys.modules, "benchmarks", raising=False)
    from benchmarks.real_model import bf16

    return bf16


def test_two_types_are_compared_by_seed_by_task_and_over_seeds(bf16: Any) -> None:
    same = [(1.0, 1.0)] * 60 + [(0.0, 0.0)] * 40
    worse = [(1.0, 0.0)] * 20 + [(1.0, 1.0)] * 80
    rows = bf16.report({0: same, 1: worse})
    assert [row[0] for row in rows] == ["seed 0", "seed 1", "all, by tasks", "all, by seeds"]
    assert rows[0][1:] == ["100", "60.0", "60.0", "+0.0 (+0.0 to +0.0), within 8", "0, 0, 100"]
    assert rows[1][4].startswith("-20.0 (-28.0 to -1")
    assert rows[2][1:4] == ["200", "80.0", "70.0"]
    assert all("not within 8" in row[4] for row in rows[1:])
    assert len(bf16.report({0: same})) == 1


def test_a_run_that_was_stopped_goes_on_and_a_finished_one_is_not_repeated(
    bf16: Any, tmp_path: Path
) -> None:
    folder, calls = tmp_path / "run", tmp_path / "calls"
    folder.mkdir()

    def ends(status: str, code: int) -> list[str]:
        text = f"""open({str(calls)!r}, "a").write("x")
open({str(folder / "result.json")!r}, "w").write('{{"status": "{status}"}}')
raise SystemExit({code})"""
        return [sys.executable, "-c", text]

    with pytest.raises(SystemExit, match=r"ended with 130; the same words again go on"):
        bf16.run_to_its_end(folder, ends("stopped", 130))
    first = bf16.took(folder)
    bf16.run_to_its_end(folder, ends("finished", 0))
    whole = bf16.took(folder)
    bf16.run_to_its_end(folder, ends("finished", 0))
    assert calls.read_text() == "xx"
    assert whole["cpu_seconds"] > first["cpu_seconds"] > 0
    assert bf16.took(folder) == whole
    assert bf16.took(tmp_path / "other") is None
