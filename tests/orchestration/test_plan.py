"""Plans: edges from arguments, refusals, levels, drawings; catalogs; references in prompts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutelage.errors import DataError
from tutelage.orchestration.execution.prompts import NOTHING, node_prompt
from tutelage.orchestration.plan import dag as plans
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool, check_plan, read_catalog
from tutelage.orchestration.plan.dag import Node, Plan

DIAMOND = Plan(
    "Join two translations",
    (
        Node("read"),
        Node("to_french", {"text": "<node-0>"}),
        Node("to_german", {"text": ["<node-0>"]}),
        Node("join", {"text": "<node-1> and <node-2>"}),
    ),
)


@st.composite
def dags(draw: st.DrawFn) -> Plan:
    """A DAG of up to 8 nodes, its numbering shuffled."""
    size = draw(st.integers(1, 8))
    place = draw(st.permutations(range(size)))
    after: list[set[int]] = [set() for _ in range(size)]
    for j in range(size):
        for i in range(j):
            if draw(st.booleans()):
                after[place[j]].add(place[i])
    return Plan("x", tuple(Node("tool", {}, tuple(sorted(parents))) for parents in after))


def _chains(plan: Plan, node: int) -> list[tuple[int, ...]]:
    parents = plan.dependencies[node]
    return [(node,)] + [(*chain, node) for parent in parents for chain in _chains(plan, parent)]


def test_edges_come_from_arguments_nested_and_several_in_one() -> None:
    assert DIAMOND.dependencies == ((), (0,), (0,), (1, 2))
    assert plans.find_references({"a": [{"b": "<node-3>"}, ("<node-1><node-3>", 7)]}) == (1, 3)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((Node("a", {"x": "<node-0>"}),), "cycle"),
        ((Node("a", after=(1,)), Node("b", after=(0,))), "cycle"),
        ((Node("a", {"x": "<node-1>"}),), "node 0 depends on node 1, and the plan has 1 node, "),
        ((Node("a", after=(-1,)),), "node 0 depends on node -1"),
    ],
)
def test_what_is_no_dag_is_refused(nodes: tuple[Node, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Plan("x", nodes)


@given(dags())
def test_adjacency_and_dependencies_say_the_same(plan: Plan) -> None:
    matrix = plans.adjacency(plan)
    assert plans.is_valid_dag(matrix)
    assert plans.parent_lists(matrix) == plan.dependencies


@given(dags())
def test_levels_hold_each_node_once_and_parents_come_earlier(plan: Plan) -> None:
    level_of = {node: k for k, level in enumerate(plans.levels(plan)) for node in level}
    assert sorted(level_of) == list(range(len(plan.nodes)))
    for child, parents in enumerate(plan.dependencies):
        above = max((level_of[parent] for parent in parents), default=-1)
        assert level_of[child] == above + 1


@given(dags(), st.data())
def test_critical_path_is_the_longest_of_all_chains(plan: Plan, data: st.DataObject) -> None:
    size = len(plan.nodes)
    seconds = data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    length, path = plans.critical_path(plan, seconds)
    chains = [chain for node in range(size) for chain in _chains(plan, node)]
    assert length == max(sum(seconds[n] for n in chain) for chain in chains)
    assert length == sum(seconds[n] for n in path)
    assert path in chains


def test_drawings() -> None:
    last = "  [3] join(text='<node-1> and <node-2>')  after 1, 2"
    assert plans.to_text(DIAMOND).splitlines()[-2:] == ["level 2", last]
    long = plans.to_text(Plan("x", (Node("say", {"text": "x" * 99}),)))
    assert long.endswith(f"[0] say(text='{'x' * 58}…)"), "what is cut says so"


# ------------------------------------------------------------ catalogs


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
        ({"nodes": [{"id": 3}]}, "tool 0.*'id'"),
        ({"nodes": [{**TYPED, "input-type": "text"}]}, "tool 0.*'input-type'"),
        ({"nodes": [TYPED, TYPED]}, "duplicate tool name 'Summarise'"),
    ],
)
def test_bad_catalogs_are_refused(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_catalog(_write(tmp_path, data))


def test_a_plan_with_an_unknown_tool_names_the_node_and_the_nearest_tool() -> None:
    catalog = Catalog((CatalogTool("translate"),))
    check_plan(Plan("x", (Node("translate"),)), catalog)
    with pytest.raises(DataError, match=r"node 1.*'translat'.*did you mean 'translate'"):
        check_plan(Plan("x", (Node("translate"), Node("translat"))), catalog)


# ------------------------------------------------------------ references in prompts


def told(argument: object, outputs: dict[int, str]) -> str:
    """An argument as a worker reads it, which may name one of eight nodes."""
    plan = Plan("x", (*(Node("t") for _ in range(8)), Node("a", {"x": argument})))
    (line,) = re.findall(r"^- x: (.*)$", node_prompt(plan, 8, outputs), re.MULTILINE)
    return line


OUTPUTS = {0: '{"title": "Q1", "pages": [1, 2]}', 1: "plain", 2: '["first", {"x": 3}]'}


@pytest.mark.parametrize(
    ("given", "filled"),
    [
        ("<node-1>", "plain"),
        ("a <node-1> b <node-1>", "a plain b plain"),
        ("<node-0>.title of <node-1>", "Q1 of plain"),
        ("<node-0>.pages", "[1, 2]"),
        ("See <node-1>.Then go", "See plain.Then go"),
        ("<node-0>.missing", OUTPUTS[0] + ".missing"),
        ("<node-2>[1].x and <node-2>.1.x", "3 and 3"),
        ("<node-0>.title.Then <node-0>.pages.7", "Q1.Then [1, 2].7"),
        ("<node-7>", NOTHING),
        (["<node-1>", {"x": "<node-1>"}], ["plain", {"x": "plain"}]),
    ],
)
def test_references_are_filled_in(given: object, filled: object) -> None:
    assert told(given, OUTPUTS) == (filled if isinstance(filled, str) else json.dumps(filled))


def test_an_output_is_never_read_as_a_reference_again() -> None:
    """What a worker says may look like a reference; it is data."""
    assert told("<node-0> <node-1>", {0: "<node-1>", 1: "secret"}) == "<node-1> secret"
