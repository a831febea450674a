"""Files of workflows: each format by its content, and what is refused with file, row and field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutelage.errors import DataError
from tutelage.orchestration.data.rows import read_json
from tutelage.orchestration.data.workflows import catalog_of, read_workflows, workflow_of
from tutelage.orchestration.execution.record import read_plan
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool, read_catalog

CATALOG = Catalog(tuple(CatalogTool(name) for name in ("read", "sum", "say", "join")))
DOCUMENT: dict[str, Any] = {
    "instruction": "Read it, sum it up",
    "targets": {
        "model_selections": [2, 0, 1],
        "task_types": [0, 1, 3],
        "dependencies": [[], [0], [0, 1]],
    },
    "rewards": {"success": 1.0, "cost": -0.045, "latency": -1.2},
}
LOG: dict[str, Any] = {
    "timestamp": "2024-12-24T10:30:00",
    "instruction": "Read it, sum it up",
    "success": True,
    "cost": 0.045,
    "latency_ms": 1200.0,
    "planner_outputs": {
        "task_types": ["read", "sum"],
        "model_selections": [1, 0],
        "workflow_graph": {"adjacency": [[0, 1], [0, 0]]},
    },
    "execution_result": {"success": True},
    "workers": ["cheap", "good"],
}


def write(folder: Path, data: Any, name: str = "rows.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_the_documents_training_set() -> None:
    made = workflow_of(DOCUMENT, CATALOG)
    assert made.tools == ("read", "sum", "join")
    assert made.plan.dependencies == ((), (0,), (0, 1))
    assert made.workers == (2, 0, 1)
    assert made.rewards == {"success": 1.0, "cost": -0.045, "latency": -1.2}


def test_a_log_line_names_its_workers_and_keeps_the_documents_signs() -> None:
    made = workflow_of(LOG, CATALOG)
    assert made.workers == ("good", "cheap")
    assert made.rewards == {"success": 1.0, "cost": -0.045, "latency": -1.2}


def test_json_and_jsonl_are_read_alike(tmp_path: Path) -> None:
    rows = [DOCUMENT, DOCUMENT]
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    found = [read_workflows(path, CATALOG) for path in (write(tmp_path, rows), lines)]
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_parents_come_before_children_whatever_the_order_of_the_row() -> None:
    row = {"instruction": "x", "targets": {"task_types": ["b", "a"], "dependencies": [[1], []]}}
    made = workflow_of(row)
    assert (made.tools, made.plan.edges) == (("a", "b"), ((0, 1),))


ONE = {"task_types": [0], "dependencies": [[]]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a": 1}, "not a workflow"),
        ({**DOCUMENT, "instruction": "  "}, "'instruction'"),
        ({**DOCUMENT, "targets": {"task_types": [0], "dependencies": [[0]]}}, "cycle"),
        ({**DOCUMENT, "targets": {"task_types": [0], "dependencies": [[4]]}}, "node 4"),
        ({**DOCUMENT, "targets": {"task_types": [9], "dependencies": [[]]}}, r"task_types\[0\]"),
        ({**DOCUMENT, "targets": {"task_types": ["rea"], "dependencies": [[]]}}, "'read'"),
        ({**DOCUMENT, "targets": {"task_types": [0], "dependencies": []}}, "dependencies"),
        ({**DOCUMENT, "targets": {"task_types": [], "dependencies": []}}, "no subtask"),
        ({**DOCUMENT, "targets": {"task_types": [0]}}, "dependencies' is missing"),
        (
            {
                **DOCUMENT,
                "targets": {"task_types": [0], "dependencies": [[]], "model_selections": [0, 1]},
            },
            "model_selections",
        ),
        ({**LOG, "planner_outputs": {"workflow_graph": {}}}, "task_types"),
    ],
)
def test_bad_rows_name_file_row_and_field(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path, [DOCUMENT, row])
    with pytest.raises(DataError, match=message) as raised:
        read_workflows(path, CATALOG)
    assert "rows.json" in str(raised.value)
    assert "row 1" in str(raised.value)


def test_fields_of_others_beside_a_plan_are_ignored() -> None:
    outputs = {**LOG["planner_outputs"], "subtask_embeddings": [[0.1], [0.2]], "note": "ours"}
    assert workflow_of({**LOG, "planner_outputs": outputs}, CATALOG) == workflow_of(LOG, CATALOG)


@pytest.mark.parametrize("text", ["", "[]", "{", "[3]"])
def test_files_without_rows_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"x\.json"):
        read_workflows(path)


def test_a_catalog_is_made_of_what_rows_use() -> None:
    targets = {**LOG["planner_outputs"], "subtasks": ["read it", "sum it up"]}
    catalog = catalog_of([workflow_of({**LOG, "planner_outputs": targets})])
    assert catalog.names == ("read", "sum")
    assert catalog["read"].description == "read it"
    assert catalog["sum"].description == "sum it up"


def test_catalogs_as_plain_lists_and_function_schemas(tmp_path: Path) -> None:
    plain = [{"name": "a", "description": "A", "inputs": ["text"], "outputs": ["image"]}]
    schema = {
        "type": "function",
        "function": {
            "name": "b",
            "description": "B",
            "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
        },
    }
    assert read_catalog(write(tmp_path, plain)).tools == (
        CatalogTool("a", "A", ("text",), ("image",)),
    )
    assert read_catalog(write(tmp_path, {"tools": [schema]})).tools == (
        CatalogTool("b", "B", ("string",)),
    )


@given(st.integers(1, 8), st.randoms(use_true_random=False))
def test_rows_survive_the_round_trip(size: int, random: Any) -> None:
    parents = [sorted(random.sample(range(i), random.randint(0, i))) for i in range(size)]
    names = [random.choice(CATALOG.names) for _ in range(size)]
    targets = {"task_types": names, "dependencies": parents}
    made = workflow_of({"instruction": "do it", "targets": targets}, CATALOG)
    again = workflow_of(made.to_row(CATALOG), CATALOG)
    assert again == made
    assert all(i < j for i, j in made.plan.edges)


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows.yaml"])
def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("[" * 100_000 + "]" * 100_000 if name != "rows.yaml" else "[" * 3000)
    with pytest.raises(DataError, match="recursion"):
        read_json(path)


def test_yaml_is_read_as_json_would_be(tmp_path: Path) -> None:
    path = tmp_path / "rows.yaml"
    path.write_text("b: {day: 2026-12-24, n: 1}\n")
    assert read_json(path) == {"b": {"day": "2026-12-24", "n": 1}}


def test_lines_of_json_end_with_a_newline_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"x": "a\u2028b"}\r\n{"x": "\x85"}\n', encoding="utf-8")
    assert read_json(path) == [{"x": "a\u2028b"}, {"x": "\x85"}]


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("x.json", r'[{"nodes": ["\ud83d"]}]', "x.json': field '[0].nodes[0]'"),
        ("x.jsonl", '{}\n\n{"nodes": ["\\ud83d"]}', "x.jsonl': field '[1].nodes[0]'"),
        ("x.yaml", r'nodes: ["\ud83d"]', "x.yaml': field 'nodes[0]'"),
    ],
)
def test_half_a_surrogate_pair_is_refused_with_its_field(
    name: str, text: str, place: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=re.escape(place)):
        read_json(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.json", '{\n"instruction": "x",\n"nodes": [{"tool": "a", "tool": "b"}]}'),
        ("x.json", '{"tool": "a", "tool": "b"}'),
        ("x.jsonl", '{"a": 1}\n{"tool": "a", "tool": "b"}\n'),
    ],
)
def test_a_key_that_stands_twice_is_refused_by_its_name(
    name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"{name}'.*the key 'tool' stands twice in one object"):
        read_json(tmp_path / name)


def test_keys_of_a_yaml_file_that_are_no_texts_are_read_as_texts(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    rates = "rates: {2024: 1.5, true: [{~: x}]}"
    path.write_text(f"instruction: Do it\nnodes: [{{tool: a, arguments: {{{rates}}}}}]\n")
    wanted = {"rates": {"2024": 1.5, "true": [{"null": "x"}]}}
    assert read_plan(read_json(path)).nodes[0].arguments == wanted
