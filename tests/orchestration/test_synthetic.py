"""Synthetic workflows: repeatable, of every shape, over any catalog, and said in words."""

from __future__ import annotations

from tutelage.orchestration.data.synthetic import builtin_graph, generate, graph_of, split
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool, check_plan
from tutelage.seeds import SeedTree

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


def test_any_catalog_gets_words_of_its_own() -> None:
    tools = tuple(CatalogTool(f"get_thing_{i}", f"Gets the thing {i} of a user.") for i in range(9))
    made = generate(graph_of(Catalog(tools)), 30, SEEDS)
    assert any("get thing" in w.instruction.lower() for w in made)


def test_a_split_loses_nothing() -> None:
    made = generate(builtin_graph(), 20, SEEDS)
    kept, out = split(made, 0.2, SEEDS)
    assert len(out) == 4
    assert sorted(w.instruction for w in kept + out) == sorted(w.instruction for w in made)
