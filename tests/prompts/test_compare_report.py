"""The comparison's report: claims are judged by interval and corrected p-value; ties are ties."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
from benchmarks.prompt import compare

ROOT = Path(__file__).parents[2]
RECORDS = sorted((ROOT / "benchmarks" / "prompt").glob("record*.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.name)
def test_the_committed_record_is_of_the_frozen_world_and_kept_its_ceilings(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(path.read_text())
    fresh = json.loads(compare.dump(data["world"], []))
    assert data["world_sha256"] == fresh["world_sha256"], "the world was changed after its record"
    ours = [row for row in data["rows"] if row["method"] in compare.OURS]
    assert ours
    # Two more are the package's own held-out test, of one task and two prompts.
    assert all(row["rollouts"] <= row["rollouts_allowed"] + 2 for row in ours)
    assert all(row["optimiser_calls"] <= row["calls_allowed"] for row in data["rows"])
    compare.report(Namespace(file=str(path)))
    assert "| apo | agl APO | 600 |" in capsys.readouterr().out
