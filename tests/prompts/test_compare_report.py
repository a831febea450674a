"""The comparison's report: claims are judged by interval and corrected p-value; ties are ties."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
from benchmarks.prompt import compare

ROOT = Path(__file__).parents[2]
RECORDS = sorted((ROOT / "benchmarks" / "prompt").glob("record*.json"))


def cells(
    gaps: dict[tuple[str, str, int], list[float]],
) -> dict[tuple[str, int], dict[int, object]]:
    """Rewards in which the first of a pair is ahead by these gaps."""
    made: dict[tuple[str, int], dict[int, object]] = {}
    for (ours, other, rollouts), ahead in gaps.items():
        for seed, gap in enumerate(ahead):
            base = 0.5 + 0.01 * (seed % 3)
            made.setdefault((other, rollouts), {})[seed] = {"reward": base}
            made.setdefault((ours, rollouts), {})[seed] = {"reward": base + gap}
    return made


def verdicts(gaps: dict[tuple[str, str, int], list[float]]) -> list[str]:
    """The last column of the comparisons."""
    return [line.split("|")[-2].strip() for line in compare.comparisons(cells(gaps))[2:]]


def test_better_not_inferior_tie_and_worse_are_told_apart() -> None:
    wide = [0.3 if i % 2 else -0.3 for i in range(30)]
    assert verdicts({("apo", "agl APO", 600): [0.1 + 0.01 * (i % 5) for i in range(30)]}) == [
        "holds"
    ]
    assert verdicts({("apo", "gepa 0.1.4", 600): [-0.01 + 0.002 * (i % 3) for i in range(30)]}) == [
        "holds"
    ]
    assert verdicts({("apo", "agl APO", 600): wide}) == ["tie"]
    assert verdicts({("apo", "agl APO", 600): [-0.1 - 0.01 * (i % 5) for i in range(30)]}) == [
        "worse"
    ]


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
