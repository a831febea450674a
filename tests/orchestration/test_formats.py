"""Files of workflows, by their content, and synthetic workflows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutelage.errors import DataError
from tutelage.orchestration.data.rows import read_json
from tutelage.orchestration.data.synthetic import builtin_graph, generate
from tutelage.orchestration.data.workflows import build_catalog, parse_workflow, read_workflows
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool, check_plan, read_catalog
from tutelage.seeds import SeedTree

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
    made = parse_workflow(DOCUMENT, CATALOG)
    assert made.tools == ("read", "sum", "join")
    assert made.plan.dependencies == ((), (0,), (0, 1))
    assert made.workers == (2, 0, 1)
    assert made.rewards == {"success": 1.0, "cost": -0.045, "latency": -1.2}


def test_a_log_line_names_its_workers_and_keeps_the_documents_signs() -> None:
    made = parse_workflow(LOG, CATALOG)
    assert made.workers == ("good", "cheap")
    assert made.rewards == {"success": 1.0, "cost": -0.045, "latency": -1.2}


def test_parents_come_before_children_whatever_the_order_of_the_row() -> None:
    row = {"instruction": "x", "targets": {"task_types": ["b", "a"], "dependencies": [[1], []]}}
    made = parse_workflow(row)
    assert (made.tools, made.plan.edges) == (("a", "b"), ((0, 1),))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a": 1}, "not a workflow"),
        ({**DOCUMENT, "instruction": "  "}, "'instruction'"),
        ({**DOCUMENT, "targets": {"task_types": [0], "dependencies": [[0]]}}, "cycle"),
        ({**DOCUMENT, "targets": {"task_types": ["rea"], "dependencies": [[]]}}, "'read'"),
        ({**DOCUMENT, "targets": {"task_types": [0]}}, "dependencies' is missing"),
    ],
)
def test_bad_rows_name_file_row_and_field(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path, [DOCUMENT, row])
    with pytest.raises(DataError, match=message) as raised:
        read_workflows(path, CATALOG)
    assert "rows.json" in str(raised.value)
    assert "row 1" in str(raised.value)


def test_a_catalog_is_made_of_what_rows_use() -> None:
    targets = {**LOG["planner_outputs"], "subtasks": ["read it", "sum it up"]}
    catalog = build_catalog([parse_workflow({**LOG, "planner_outputs": targets})])
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
    made = parse_workflow({"instruction": "do it", "targets": targets}, CATALOG)
    again = parse_workflow(made.to_row(CATALOG), CATALOG)
    assert again == made
    assert all(i < j for i, j in made.plan.edges)


def test_a_key_that_stands_twice_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"tool": "a", "tool": "b"}\n')
    with pytest.raises(DataError, match=r"x\.jsonl'.*the key 'tool' stands twice in one object"):
        read_json(tmp_path / "x.jsonl")


# ------------------------------------------------------------ synthetic workflows


SEEDS = SeedTree(3)


def test_the_same_seed_gives_the_same_workflows_and_fewer_are_a_beginning() -> None:
    graph = builtin_graph()
    many = generate(graph, 40, SEEDS)
    assert many == generate(graph, 40, SEEDS)
    assert many[:10] == generate(graph, 10, SEEDS)
    assert many != generate(graph, 40, SeedTree(4))


def test_all_shapes_occur_and_keep_to_catalog_types_and_workers() -> None:
    graph = builtin_graph()
    made = generate(graph, 300, SEEDS, max_nodes=6)
    assert {len(w.tools) for w in made} == {1, 2, 3, 4, 5, 6}
    assert any(len(parents) > 1 for w in made for parents in w.plan.dependencies)
    assert len({w.instruction for w in made}) == 300
    for workflow in made:
        check_plan(workflow.plan, graph.catalog)
        assert len(workflow.tools) <= 6
        assert workflow.workers == tuple(graph.workers[tool] for tool in workflow.tools)
        for before, after in workflow.plan.edges:
            assert workflow.tools[after] in graph.followers[workflow.tools[before]]
        assert "{" not in workflow.instruction
