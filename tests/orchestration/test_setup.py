"""The data of a planner's run: what its files leave out or hold twice is told by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tutelage.errors import DataError
from tutelage.orchestration.planner.settings import PlannerConfig
from tutelage.orchestration.setup import PlannerDatasets, read_sets


def row(number: int, *calls: str, tools: Any = None, words: str = "") -> dict[str, Any]:
    """One row of NESTFUL."""
    listed = [{"name": name, "label": f"var{k}"} for k, name in enumerate(calls, 1)]
    found = {"input": words or f"do {number}", "output": listed, "sample_id": str(number)}
    return found if tools is None else found | {"tools": [{"name": name} for name in tools]}


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
    assert found.facts["overlap"].endswith("; test on others with --test FILE")
    assert found.facts["leaks"] == "seen, row 2; result.json has all names"


def test_tools_that_the_rows_do_not_describe_are_told_or_refused(tmp_path: Path) -> None:
    rows = [row(k, "read", "say", "say", tools=["read", "other"]) for k in range(4)]
    rows.append(row(9, "hum", tools=["read"]))
    train = write(tmp_path / "a.json", rows)
    found = sets_of(train=train)
    told = "2 tools in 9 subtasks: say (8), hum (1)"
    assert found.facts["missing tools"] == f"{told}; added by their names alone"
    assert {"read", "other", "say", "hum"} == set(found.catalog.names)
    with pytest.raises(DataError, match=r"say \(8\), hum \(1\).*--missing-tools add"):
        sets_of(train=train, missing_tools="refuse")


def test_tools_that_a_catalog_lacks_are_refused_or_added(tmp_path: Path) -> None:
    train = write(tmp_path / "a.json", [row(k, "read", "say") for k in range(4)])
    catalog = write(tmp_path / "tools.json", [{"name": "read"}, {"name": "hum"}])
    with pytest.raises(DataError, match=r"tools.json'.*1 tools in 4 subtasks: say \(4\)"):
        sets_of(train=train, catalog=catalog)
    found = sets_of(train=train, catalog=catalog, missing_tools="add")
    assert found.catalog.names == ("read", "hum", "say")
    assert "missing tools" not in sets_of(train=train).facts


def test_references_that_no_plan_can_have_are_counted(tmp_path: Path) -> None:
    calls = [
        {"name": "read", "label": "$var_1", "arguments": {}},
        {"name": "say", "label": "$var_2", "arguments": {"text": "$var_1.Exchange Rate$"}},
    ]
    rows = [{"input": f"Say {k}", "output": calls} for k in range(4)]
    told = sets_of(train=write(tmp_path / "a.json", rows)).facts["arguments"]
    assert told.startswith("4 references that no plan can have, such as '$var_1.Exchange Rate$'")
