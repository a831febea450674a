"""Catalogs: both forms of the file, lookups, and plans that use a tool that is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tutelage.errors import DataError
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool, check_plan, read_catalog
from tutelage.orchestration.plan.dag import Node, Plan

TYPED = {"id": "Summarise", "desc": "Shorten", "input-type": ["text"], "output-type": ["text"]}
API = {"id": "get_weather", "desc": "Weather", "parameters": [{"name": "day", "type": "date"}]}


def _write(folder: Path, data: Any) -> Path:
    path = folder / "tools.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_both_forms_are_read(tmp_path: Path) -> None:
    catalog = read_catalog(_write(tmp_path, {"nodes": [TYPED, API]}))
    assert catalog["Summarise"] == CatalogTool("Summarise", "Shorten", ("text",), ("text",))
    assert catalog["get_weather"] == CatalogTool("get_weather", "Weather", ("date",), ())
    assert "get_weather" in catalog
    assert "other" not in catalog


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"nodes": []}, "empty"),
        ([], "empty"),
        ("x", "'nodes'"),
        ({"nodes": [{"desc": "x"}]}, "tool 0.*'id'"),
        ({"nodes": [{"id": 3}]}, "tool 0.*'id'"),
        ({"nodes": ["x"]}, "tool 0"),
        ({"nodes": [{**TYPED, "input-type": "text"}]}, "tool 0.*'input-type'"),
        ({"nodes": [TYPED, TYPED]}, "duplicate tool name 'Summarise'"),
    ],
)
def test_bad_catalogs_are_refused(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_catalog(_write(tmp_path, data))


def test_a_file_that_is_not_json(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="invalid JSON"):
        read_catalog(path)


def test_a_plan_with_an_unknown_tool_names_the_node_and_the_nearest_tool() -> None:
    catalog = Catalog((CatalogTool("translate"),))
    check_plan(Plan("x", (Node("translate"),)), catalog)
    with pytest.raises(DataError, match=r"node 1.*'translat'.*did you mean 'translate'"):
        check_plan(Plan("x", (Node("translate"), Node("translat"))), catalog)
