"""How good a planner is on a test set, with the baselines that it has to beat.

The test is touched once, after training. Every score of the planner is compared with each baseline
over the same workflows by a paired bootstrap; an interval that contains 0 says that the set is too
small to tell. `metrics.py` has the scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.evaluation.metrics import (
    PlanScores,
    baseline_plans,
    without_edges,
)
from tutelage.orchestration.planner.model import PlannerModel, PlanPrediction
from tutelage.orchestration.planner.text import SparseRows, features
from tutelage.seeds import SeedTree
from tutelage.tasks.overlap import content_of, count_overlap

PLANNER, BEFORE = "planner", "before"
_SAME = 0.9999
"""Similarity from which two instructions are the same words."""


def evaluate(
    model: PlannerModel,
    train: Sequence[Workflow],
    test: Sequence[Workflow],
    seeds: SeedTree,
    before: PlannerModel | None = None,
) -> tuple[dict[str, Any], list[PlanPrediction]]:
    """The results of a planner on a test set as plain data, and its plans.

    `train` are the workflows that the copying baselines know; without any they are left out.
    `in_training` counts the test instructions that stand in the training set. `before` is an older
    planner, which plans with the same catalog from then on: it is one more
    row, and `before_learned` counts the test instructions that stood in its own training set.
    """
    planned = model.plan_all([w.instruction for w in test])
    raw = [p.raw_valid for p in planned]
    scores = {PLANNER: PlanScores.of([p.plan for p in planned], test, model.catalog, raw)}
    number = _learned_by(model, test)
    if train:
        number = count_overlap(
            train, (), test, key=lambda w: content_of(w.instruction)
        ).test_in_train
    more: dict[str, Any] = {"in_training": number}
    if before is not None:
        before.use_catalog(model.catalog)
        older = before.plan_all([w.instruction for w in test])
        raw = [p.raw_valid for p in older]
        scores[BEFORE] = PlanScores.of([p.plan for p in older], test, model.catalog, raw)
        more["before_learned"] = _learned_by(before, test)
    if train:
        known = SparseRows.of([features(w.instruction) for w in train], model.idf)
        similar = known.products([features(w.instruction) for w in test], model.idf)
        nearest = similar.topk(1, dim=1).indices[:, 0].tolist()
        for name, found in baseline_plans(train, test, nearest).items():
            scores[name] = PlanScores.of(found, test, model.catalog)
    bare = [without_edges(p.plan) for p in planned]
    scores["no edges"] = PlanScores.of(bare, test, model.catalog)
    gains = {
        name: scores[PLANNER].gain(found, seeds.child(name)).items()
        for name, found in scores.items()
        if name != PLANNER
    }
    return {
        "workflows": len(test),
        "shapes": dict(sorted(Counter(scores[PLANNER].shapes).items())),
        "scores": {name: found.summary() for name, found in scores.items()},
        "gains": {name: {m: asdict(gap) for m, gap in found} for name, found in gains.items()},
        "coverage": coverage_curve(planned, scores[PLANNER].exact_nodes),
        **_worker_accuracy(planned, test),
        **more,
    }, planned


def coverage_curve(
    planned: Sequence[PlanPrediction], right: Sequence[float]
) -> list[dict[str, float]]:
    """Return how many of the surest plans have the right tools, by tenths of all; empty for a
    planner that has no confidence."""
    if not planned or any(each.confidence is None for each in planned):
        return []
    pairs = zip(planned, right, strict=True)
    surest = sorted(((each.confidence or 0.0, score) for each, score in pairs), reverse=True)
    counts = (max(1, round(len(surest) * tenth / 10)) for tenth in range(1, 11))
    return [
        {
            "coverage": count / len(surest),
            "accuracy": sum(score for _, score in surest[:count]) / count,
            "confidence": surest[count - 1][0],
        }
        for count in dict.fromkeys(counts)
    ]


def _learned_by(model: PlannerModel, workflows: Sequence[Workflow]) -> int:
    """How many of these instructions a planner was trained on, word for word."""
    if model.memory is None or not workflows:
        return 0
    texts = [features(w.instruction) for w in workflows]
    return int((model.memory.texts.products(texts, model.idf).amax(1) > _SAME).sum())


def _worker_accuracy(planned: Sequence[PlanPrediction], gold: Sequence[Workflow]) -> dict[str, Any]:
    """Share of nodes with the expert's worker, over the plans with the expert's tools in order,
    and how many these are; None where no worker is known.
    """
    right = count = 0
    for plan, wanted in zip(planned, gold, strict=True):
        if plan.workers is None or wanted.workers is None:
            continue
        if tuple(node.tool for node in plan.plan.nodes) != wanted.tools:
            continue
        named = [w if isinstance(w, str) else f"worker {w}" for w in wanted.workers]
        right += sum(a == b for a, b in zip(plan.workers, named, strict=True))
        count += len(named)
    return {"worker_accuracy": right / count if count else None, "worker_accuracy_nodes": count}


def prediction_rows(
    planned: Sequence[PlanPrediction], gold: Sequence[Workflow], model: PlannerModel
) -> list[Mapping[str, Any]]:
    """Predicted plans as rows: the document's fields, and nodes and links by name."""
    rows: list[Mapping[str, Any]] = []
    for plan, wanted in zip(planned, gold, strict=True):
        row = Workflow(plan.plan, plan.workers, name=wanted.name).to_row(model.catalog)
        nodes = plan.plan.nodes
        named = ((nodes[i].tool, nodes[j].tool) for i, j in plan.plan.edges)
        expected = [{"task": tool} for tool in wanted.tools]
        rows.append(
            row
            | {
                "task_nodes": [{"task": node.tool} for node in nodes],
                "task_links": [{"source": source, "target": target} for source, target in named],
                "wanted": {"task_nodes": expected, "dependencies": wanted.plan.dependencies},
            }
        )
    return rows
