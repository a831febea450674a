"""A worker that comes after training: what the policy makes of it, without being trained again.

The policy was trained without the worker. Then the predictor adopts it from a few observed
outcomes, and the same policy routes the same test workflows with it in the pool. Beside it stand
the pool without the newcomer, and a predictor that was fitted on all its outcomes. `routing.py`
beside it runs this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tutelage.orchestration.data.outcomes import Floats, OutcomeTable
from tutelage.orchestration.routing.choosers import policy_chooser, run_chooser
from tutelage.orchestration.routing.decisions import DecisionBatch, RewardTerms
from tutelage.orchestration.routing.policy import ModelSelector
from tutelage.orchestration.routing.predictor import OutcomePredictor
from tutelage.orchestration.routing.simulator import WorkflowSimulator
from tutelage.orchestration.routing.workflows import (
    Ints,
    QueryTable,
    Scenario,
    WorkflowBatch,
)
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import Difference, paired_bootstrap

ABSENT, KNOWN = "without the newcomer", "all its outcomes known"


@dataclass(frozen=True, slots=True)
class NewcomerRow:
    """The policy on the same test workflows, by how much is known of the newcomer."""

    name: str
    observed: int | None
    """Outcomes that it was adopted with; None for the two ends."""
    workflows: int
    reward: float
    success: float
    cost: float
    share: float
    """Share of all tries that went to the newcomer."""
    gain: Difference
    """Reward less that without the newcomer."""


def newcomer_rows(
    train: OutcomeTable,
    test: OutcomeTable,
    name: str,
    predictor: OutcomePredictor,
    model: ModelSelector,
    terms: RewardTerms,
    scenario: Scenario,
    seeds: SeedTree,
    *,
    observed: Sequence[int] = (10, 30, 100),
    workflows: int = 4000,
) -> list[NewcomerRow]:
    """`train` and `test` know the newcomer `name`; `predictor` and `model` were trained without it.

    Raises `DataError` when the table has no such worker.
    """
    others = [known for known in train.names if known != name]
    fitted, _ = OutcomePredictor.fit(train, seeds)
    full = QueryTable.of(test, fitted, scenario)
    flows = WorkflowBatch.draw(full, workflows, seeds.child("newcomer"))
    worker = train.only([name]).workers[0]
    order = seeds.child("observed").numpy().permutation(len(train))
    known: list[tuple[str, int | None, OutcomePredictor, OutcomeTable]] = [
        (ABSENT, None, predictor, test.only(others))
    ]
    for count in observed:
        seen = train.take(order[:count])
        right = [bool(r) for r in seen.right_QW[:, seen.names.index(name)]]
        adopted = predictor.adopt(worker, seen.instructions, seen.types, right)
        known.append((f"{count} outcomes", count, adopted, test))
    known.append((KNOWN, None, fitted, test))
    rows: list[NewcomerRow] = []
    base: Floats | None = None
    for label, count, knows, table in known:
        rewards, row = _play(label, count, knows, table, name, flows, model, terms, scenario)
        base = rewards if base is None else base
        gain = paired_bootstrap(
            [float(r) for r in base], [float(r) for r in rewards], seeds.child(label).numpy(), 2000
        )
        rows.append(NewcomerRow(**row, gain=gain))
    return rows


def _play(
    label: str,
    count: int | None,
    predictor: OutcomePredictor,
    table: OutcomeTable,
    name: str,
    flows: WorkflowBatch,
    model: ModelSelector,
    terms: RewardTerms,
    scenario: Scenario,
) -> tuple[Floats, dict[str, Any]]:
    query_table = QueryTable.of(table, predictor, scenario)
    column = table.names.index(name) if name in table.names else -1
    chosen = policy_chooser(model, terms)
    tries: list[tuple[int, int]] = []

    def watched(simulator: WorkflowSimulator, rows: Ints, at: DecisionBatch) -> Ints:
        actions = chosen(simulator, rows, at)
        asked = int((actions < query_table.workers).sum())
        tries.append((int((actions == column).sum()) if column >= 0 else 0, asked))
        return actions

    outcome = run_chooser(query_table, flows, terms, watched)
    mine, asked = np.array(tries).sum(axis=0)
    return outcome.reward_B, {
        "name": label,
        "observed": count,
        "workflows": len(flows),
        "reward": float(outcome.reward_B.mean()),
        "success": float(outcome.success_B.mean()),
        "cost": float(outcome.cost_B.mean()),
        "share": float(mine / max(1, asked)),
    }


def draw_newcomer(path: Path, name: str, rows: Sequence[NewcomerRow]) -> None:
    """Reward by the number of observed outcomes, between the two ends, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(7.0, 4.2), dpi=110)
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    seen = [(row.observed, row.reward) for row in rows if row.observed is not None]
    axes.plot(*zip(*seen, strict=True), marker="o", label="adopted from that many outcomes")
    for row in rows:
        if row.observed is None:
            dotted = ":" if row.name == ABSENT else "--"
            axes.axhline(row.reward, linestyle=dotted, color="grey", label=row.name)
    axes.set_xscale("log")
    axes.set_title(f"{name} joins after training")
    axes.set_xlabel("outcomes observed")
    axes.set_ylabel("mean reward on test workflows")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
