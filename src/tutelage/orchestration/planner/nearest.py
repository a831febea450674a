"""The planner that needs no training: the plan of the most similar instruction that is known.

It is what `tutelage orchestrate` uses where torch is not installed, and says so; with torch the
embedded planner plans (`embedded.py`). As a baseline it stands in every table of phase 1.
`data/neighbours.py` has the similarity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tutelage.orchestration.data.neighbours import NearestTexts, hashed
from tutelage.orchestration.data.synthetic import builtin_graph, generate, graph_of
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import Plan
from tutelage.seeds import SeedTree

KNOWN = 1000
"""Synthetic workflows that it looks among."""


def nearest_planner(catalog: Catalog | None = None, seed: int = 0) -> Callable[[str], Plan]:
    """The plan of the nearest synthetic workflow over a catalog, the built-in one by default."""
    graph = builtin_graph() if catalog is None else graph_of(catalog)
    workflows = generate(graph, KNOWN, SeedTree(seed).child("nearest"))
    known = NearestTexts.of([workflow.instruction for workflow in workflows])

    def plan(instruction: str) -> Plan:
        nearest = workflows[known.closest(hashed(instruction))]
        return replace(nearest.plan, instruction=instruction)

    return plan
