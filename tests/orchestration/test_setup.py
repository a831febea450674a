"""The data of a planner's run: what its files leave out or hold twice is told by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tutelage.errors import DataError
from tutelage.orchestration.planner.settings import PlannerConfig
from tutelage.orchestration.setup import PlannerDatasets, read_sets


def row(number: int, *tools: str, words: str = "") -> dict[str, Any]:
    """One row of a training set: a chain of tools."""
    parents = [[k - 1] if k else [] for k in range(len(tools))]
    targets = {"task_types": tools, "dependencies": parents}
    return {"instruction": words or f"do {number}", "targets": targets}


def write(path: Path, rows: Any) -> str:
    path.write_text(json.dumps(rows))
    return str(path)


def sets_of(**given: Any) -> PlannerDatasets:
    request = PlannerConfig(phase="1", **given)
    return read_sets(request, request.settings().phase1_supervised)


def test_test_queries_that_stand_in_the_training_file_are_named(tmp_path: Path) -> None:
    train = [row(k, "read") for k in range(10)]
    test = [row(3, "read"), row(77, "read"), row(5, "read", words="do  5")]
    test[0]["id"] = "seen"
    found = sets_of(train=write(tmp_path / "a.json", train), test=write(tmp_path / "b.json", test))
    assert found.leaks == ("seen", "row 2")
    assert found.facts["overlap"].startswith("2 of 3 test tasks are also training tasks")
    assert found.facts["overlap"].endswith("; pass other test tasks with --test FILE")


def test_tools_that_a_catalog_lacks_are_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "a.json", [row(k, "read", "say") for k in range(4)])
    catalog = write(tmp_path / "tools.json", [{"name": "read"}, {"name": "hum"}])
    with pytest.raises(DataError, match=r"row 0: node 1: unknown tool 'say'"):
        sets_of(train=train, catalog=catalog)
    assert sets_of(train=train).catalog.names == ("read", "say")
