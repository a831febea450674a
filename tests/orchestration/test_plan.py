"""Plans: edges from arguments, refusals, levels, critical path, drawings."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutelage.errors import DataError
from tutelage.orchestration.plan import dag as plans
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
    assert plans.references({"a": [{"b": "<node-3>"}, ("<node-1><node-3>", 7)]}) == (1, 3)


def test_an_argument_and_after_make_one_edge() -> None:
    plan = Plan("x", (Node("a"), Node("b", {"text": "<node-0>"}, after=(0,))))
    assert plan.edges == ((0, 1),)


@pytest.mark.parametrize(
    "value", [Path("a"), date(2026, 1, 2), Decimal(1), b"a", {1}, np.int64(1), object()]
)
def test_arguments_that_are_no_json_are_refused_by_name_and_type(value: object) -> None:
    told = rf"node of 'rd': cannot convert the arguments .* to JSON: .*{type(value).__name__}"
    for argument in (value, [0, {"a": (value,)}]):
        with pytest.raises(DataError, match=told):
            Node("rd", {"path": argument})
    with pytest.raises(DataError, match=r"to JSON: keys must be str"):
        Node("rd", {"path": {(1,): "a"}})
    assert (
        Node("rd", {"path": [None, True, 1.5, ("a", MappingProxyType({"1": "b"}))]}).parents == ()
    )


def test_a_long_cycle_is_told_by_its_beginning() -> None:
    nodes = tuple(Node("a", after=((k + 1) % 2000,)) for k in range(2000))
    with pytest.raises(DataError, match="form a cycle") as refused:
        Plan("x", nodes)
    assert len(str(refused.value)) < 400


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


@pytest.mark.parametrize("matrix", [[[1]], [[0, 1], [1, 0]], [[0, 1]], [[0, 2], [0, 0]]])
def test_invalid_matrices(matrix: list[list[int]]) -> None:
    assert not plans.is_valid_dag(matrix)


@given(dags())
def test_adjacency_and_dependencies_say_the_same(plan: Plan) -> None:
    matrix = plans.adjacency(plan)
    assert plans.is_valid_dag(matrix)
    assert plans.dependencies_of(matrix) == plan.dependencies


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


def test_an_empty_plan() -> None:
    plan = Plan("nothing", ())
    assert plans.levels(plan) == ()
    assert plans.critical_path(plan, []) == (0.0, ())


def test_two_hundred_nodes_in_a_chain() -> None:
    nodes = [Node("a"), *(Node("a", {"x": f"<node-{i}>"}) for i in range(199))]
    assert plans.critical_path(Plan("long", tuple(nodes)), [0.5] * 200)[0] == 100.0


def test_drawings() -> None:
    last = "  [3] join(text='<node-1> and <node-2>')  after 1, 2"
    assert plans.to_text(DIAMOND).splitlines()[-2:] == ["level 2", last]
    long = plans.to_text(Plan("x", (Node("say", {"text": "x" * 99}),)))
    assert long.endswith(f"[0] say(text='{'x' * 58}…)"), "what is cut says so"
