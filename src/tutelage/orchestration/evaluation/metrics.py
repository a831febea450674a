"""Evaluation of a planner on a test set: scores against gold plans, and comparison with baselines.

Scores are means over workflows (two plans without edges count as equal in edges). Edges are
compared by the names of their tools, as in TaskBench. The test set is used once, after training:
each score of the planner is compared with each baseline on the same workflows with a paired
bootstrap. If an interval contains 0, the set is too small for a conclusion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.plan.dag import Plan, adjacency, is_valid_dag
from tutelage.orchestration.planner.model import PlannerModel
from tutelage.orchestration.planner.text import SparseRows, features
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import Difference, paired_bootstrap

SCORES = ("node_f1", "edge_f1", "exact_nodes", "exact")
"""Scores that are computed for each workflow and used to compare planners."""


@dataclass(frozen=True, slots=True)
class PlanScores:
    """Scores of one planner on one set. Each list has one entry per workflow."""

    node_f1: list[float]
    edge_f1: list[float]
    exact_nodes: list[float]
    """1 if the plan has the same multiset of tools as the gold plan, otherwise 0."""
    exact: list[float]
    """1 if the multisets of tools and of edges are the same as in the gold plan, otherwise 0."""
    validity: float
    """Share of decoded plans that are DAGs."""
    raw_validity: float | None
    """Share of plans that were DAGs before decoding; None for baselines without edge scores."""

    def summary(self) -> dict[str, float]:
        """Return the mean of each score over all workflows, by name."""
        means = {name: getattr(self, name) for name in SCORES}
        values = {name: sum(scores) / len(scores) for name, scores in means.items() if scores}
        raw = {} if self.raw_validity is None else {"raw_validity": self.raw_validity}
        return {**values, "validity": self.validity, **raw}

    @staticmethod
    def score(
        plans: Sequence[Plan],
        gold: Sequence[Workflow],
        raw_valid: Sequence[bool] | None = None,
    ) -> PlanScores:
        """Score each plan against its gold workflow. Raises `ValueError` if lengths differ."""
        pairs = list(zip(plans, (workflow.plan for workflow in gold), strict=True))
        nodes = [(_count_tools(plan), _count_tools(wanted)) for plan, wanted in pairs]
        edges = [(_count_edges(plan), _count_edges(wanted)) for plan, wanted in pairs]
        same_nodes = [has == needs for has, needs in nodes]
        same_edges = [has == needs for has, needs in edges]
        total = max(1, len(plans))
        return PlanScores(
            node_f1=[_f1(*pair) for pair in nodes],
            edge_f1=[_f1(*pair) for pair in edges],
            exact_nodes=[float(same) for same in same_nodes],
            exact=[float(a and b) for a, b in zip(same_nodes, same_edges, strict=True)],
            validity=sum(is_valid_dag(adjacency(plan)) for plan in plans) / total,
            raw_validity=None if raw_valid is None else sum(raw_valid) / total,
        )

    def compare(self, baseline: PlanScores, seeds: SeedTree) -> dict[str, Difference]:
        """Compare each score with a baseline: mean difference with a paired bootstrap interval."""
        sides = {name: (getattr(baseline, name), getattr(self, name)) for name in SCORES}
        return {n: paired_bootstrap(*both, seeds.child(n).numpy()) for n, both in sides.items()}


def _count_tools(plan: Plan) -> Counter[Any]:
    return Counter(node.tool for node in plan.nodes)


def _count_edges(plan: Plan) -> Counter[Any]:
    return Counter((plan.nodes[i].tool, plan.nodes[j].tool) for i, j in plan.edges)


def _f1(predicted: Counter[Any], expected: Counter[Any]) -> float:
    """Return the F1 score of two multisets, or 1 if both are empty."""
    both = predicted.total() + expected.total()
    return 2 * (predicted & expected).total() / both if both else 1.0


def copy_plans(
    train: Sequence[Workflow], test: Sequence[Workflow], nearest: Sequence[int]
) -> list[Plan]:
    """Return the plans of the nearest-neighbour baseline: `train[nearest[i]]` for `test[i]`."""
    return [Plan(w.instruction, train[n].plan.nodes) for n, w in zip(nearest, test, strict=True)]


def evaluate(
    model: PlannerModel, train: Sequence[Workflow], test: Sequence[Workflow], seeds: SeedTree
) -> tuple[dict[str, Any], list[Plan]]:
    """Evaluate a planner on a test set; return JSON-serializable results and the plans.

    `train` has the workflows of the nearest-neighbour baseline; if empty, there is no baseline.
    """
    planned = model.plan_all([w.instruction for w in test])
    plans = [p.plan for p in planned]
    scores = {"planner": PlanScores.score(plans, test, [p.raw_valid for p in planned])}
    gains: dict[str, Any] = {}
    if train:
        known = SparseRows.make([features(w.instruction) for w in train], model.idf)
        similar = known.products([features(w.instruction) for w in test], model.idf)
        nearest = similar.topk(1, dim=1).indices[:, 0].tolist()
        scores["nearest"] = PlanScores.score(copy_plans(train, test, nearest), test)
        gained = scores["planner"].compare(scores["nearest"], seeds.child("nearest"))
        gains["nearest"] = {name: asdict(gap) for name, gap in gained.items()}
    return {
        "workflows": len(test),
        "scores": {name: each.summary() for name, each in scores.items()},
        "gains": gains,
    }, plans
