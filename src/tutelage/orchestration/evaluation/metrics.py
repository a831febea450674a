"""How good plans are: scores against gold plans, by shape, and the baselines to beat.

Per-sample scores are means over workflows (a plan and its gold with no edges agree), micro scores
pool all nodes or edges first. Edges are compared by the names of their tools, as TaskBench does.
Comparisons between planners are paired bootstraps over the same workflows (`evaluate.statistics`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import Node, Plan, adjacency, is_valid_dag
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import Difference, paired_bootstrap

K = TypeVar("K", str, tuple[str, str])
SCORES = ("node_f1", "edge_f1", "exact_nodes", "exact")
"""Scores that every sample has, so that planners can be compared on them."""


@dataclass(frozen=True, slots=True)
class PlanScores:
    """One planner on one set. Each list has an entry for each workflow."""

    node_f1: list[float] = field(default_factory=list[float])
    edge_f1: list[float] = field(default_factory=list[float])
    exact_nodes: list[float] = field(default_factory=list[float])
    """The same tools as often, whatever the edges."""
    exact: list[float] = field(default_factory=list[float])
    """The same tools as often and the same edges between them."""
    shapes: list[str] = field(default_factory=list[str])
    node_f1_micro: float = 0.0
    edge_f1_micro: float = 0.0
    validity: float = 0.0
    """Share of plans that are DAGs as decoded."""
    raw_validity: float | None = None
    """Share whose scores were a DAG before decoding; None for plans that were not scored."""
    hallucination: float = 0.0
    """Share of nodes whose tool the catalog lacks."""

    def mean(self, name: str, shape: str | None = None) -> float | None:
        """The mean of one score, over the workflows of a shape; None when there are none."""
        values = [
            value
            for value, kind in zip(getattr(self, name), self.shapes, strict=True)
            if shape in (None, kind)
        ]
        return sum(values) / len(values) if values else None

    def summary(self) -> dict[str, float]:
        """All means by name; those of a shape as `node_f1/dag`."""
        values: dict[str, float] = {}
        for shape in (None, *sorted(set(self.shapes))):
            for name in SCORES:
                mean = self.mean(name, shape)
                if mean is not None:
                    values[name if shape is None else f"{name}/{shape}"] = mean
        whole = ("node_f1_micro", "edge_f1_micro", "validity", "raw_validity", "hallucination")
        fields = {name: getattr(self, name) for name in whole}
        return values | {name: value for name, value in fields.items() if value is not None}

    @staticmethod
    def of(
        plans: Sequence[Plan],
        gold: Sequence[Workflow],
        catalog: Catalog,
        raw_valid: Sequence[bool] | None = None,
    ) -> PlanScores:
        """Score plans against gold workflows, pairwise. Raises `ValueError` for unequal lengths."""
        made = PlanScores()
        nodes, edges = [0, 0, 0], [0, 0, 0]
        valid = strange = count = 0
        for plan, wanted in zip(plans, gold, strict=True):
            has, needs = _nodes(plan), _nodes(wanted.plan)
            links, wishes = _edges(plan), _edges(wanted.plan)
            made.node_f1.append(_f1(has, needs, nodes))
            made.edge_f1.append(_f1(links, wishes, edges))
            made.exact_nodes.append(float(has == needs))
            made.exact.append(float(has == needs and links == wishes))
            made.shapes.append(wanted.shape)
            valid += is_valid_dag(adjacency(plan))
            strange += sum(node.tool not in catalog for node in plan.nodes)
            count += len(plan.nodes)
        total = max(1, len(made.node_f1))
        return replace(
            made,
            node_f1_micro=_micro(nodes),
            edge_f1_micro=_micro(edges),
            validity=valid / total,
            raw_validity=None if raw_valid is None else sum(raw_valid) / total,
            hallucination=strange / max(1, count),
        )

    def gain(self, baseline: PlanScores, seeds: SeedTree) -> dict[str, Difference]:
        """These minus `baseline` on each score, with paired bootstrap intervals."""
        sides = {name: (getattr(baseline, name), getattr(self, name)) for name in SCORES}
        return {n: paired_bootstrap(*both, seeds.child(n).numpy()) for n, both in sides.items()}


def _nodes(plan: Plan) -> Counter[str]:
    return Counter(node.tool for node in plan.nodes)


def _edges(plan: Plan) -> Counter[tuple[str, str]]:
    return Counter((plan.nodes[i].tool, plan.nodes[j].tool) for i, j in plan.edges)


def _f1(has: Counter[K], needs: Counter[K], pool: list[int]) -> float:
    """F1 of two multisets; both empty agree. Adds what it counted to `pool`."""
    values = (has & needs).total(), has.total(), needs.total()
    pool[:] = [before + more for before, more in zip(pool, values, strict=True)]
    return _micro(values)


def _micro(pool: Sequence[int]) -> float:
    return 2 * pool[0] / (pool[1] + pool[2]) if pool[1] + pool[2] else 1.0


# ------------------------------------------------------------------ baselines


def without_edges(plan: Plan) -> Plan:
    """The same nodes with nothing between them."""
    return Plan(plan.instruction, tuple(Node(node.tool) for node in plan.nodes))


def baseline_plans(
    train: Sequence[Workflow], test: Sequence[Workflow], nearest: Sequence[int]
) -> Mapping[str, list[Plan]]:
    """Plans of the baselines: `nearest` (copying training plan `nearest[i]`), `majority`, and
    `no edges` (the nearest plan's nodes alone).
    """
    # The plan that occurs most often in training; ties go to the first.
    counts = Counter((w.tools, w.plan.dependencies) for w in train)
    tools, parents = counts.most_common(1)[0][0]
    usual = tuple(Node(t, after=p) for t, p in zip(tools, parents, strict=True))
    near = [Plan(w.instruction, train[n].plan.nodes) for n, w in zip(nearest, test, strict=True)]
    return {
        "nearest": near,
        "majority": [Plan(w.instruction, usual) for w in test],
        "no edges": [without_edges(plan) for plan in near],
    }
