"""The planner that needs no training: the plan of the most similar instruction that is known.

It is what `tutelage orchestrate` uses where torch is not installed, and says so; with torch the
embedded planner plans (`embedded.py`). As a baseline it stands in every table of phase 1.
`data/neighbours.py` has the similarity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tutelage.errors import ConfigError
from tutelage.orchestration.data.neighbours import Neighbours, hashed
from tutelage.orchestration.data.synthetic import ToolGraph, builtin_graph, generate
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.plan.dag import Plan
from tutelage.seeds import SeedTree

KNOWN = 1000
"""Synthetic workflows that it looks among by default."""


class NearestPlan:
    """A planner that copies."""

    def __init__(self, workflows: Sequence[Workflow]) -> None:
        """Raises `ConfigError` without workflows."""
        if not workflows:
            raise ConfigError("there are no workflows to copy plans from; give at least one")
        self._workflows = list(workflows)
        self._neighbours = Neighbours.of([workflow.instruction for workflow in workflows])

    @staticmethod
    def synthetic(graph: ToolGraph | None = None, count: int = KNOWN, seed: int = 0) -> NearestPlan:
        """Among synthetic workflows over a tool graph, the built-in one by default."""
        seeds = SeedTree(seed).child("nearest")
        return NearestPlan(generate(graph or builtin_graph(), count, seeds))

    def plan(self, instruction: str) -> Plan:
        """The plan of the nearest known instruction, for this one."""
        place = self._neighbours.closest(hashed(instruction))
        return replace(self._workflows[place].plan, instruction=instruction)
