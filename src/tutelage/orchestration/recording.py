"""Rollouts of a planner's run, as the store has those of every run.

Phase 1: a test workflow is a task, the plan for it a rollout, and its reward how well it agrees
with the expert's. Phase 2: a workflow is a task, its execution by a router a rollout, an outcome
that was looked up for a worker a call, and the reward that of the router. `job.py` writes them.

Legend: B workflows, D decisions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.evaluation.metrics import SCORES, PlanScores
from tutelage.orchestration.evaluation.rewards import References, reward_parts
from tutelage.orchestration.execution.stored import stored_call, stored_rollout
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import Plan, to_text
from tutelage.orchestration.routing.decisions import RewardTerms
from tutelage.orchestration.routing.simulator import SimulationResult
from tutelage.orchestration.routing.workflows import QueryTable, WorkflowBatch
from tutelage.seeds import SeedTree
from tutelage.types import JSON, Call, Failure, FailureCause, Message, Mode, Reward, Rollout, Task

PLANNED = "phase1/planner"
"""Label of the plans of test workflows."""


def plan_rollouts(
    run_id: str,
    seeds: SeedTree,
    plans: Sequence[Plan],
    gold: Sequence[Workflow],
    catalog: Catalog,
    step: int,
) -> list[Rollout]:
    """The plans of test workflows after `step` epochs; their reward is what validation goes by."""
    plan_scores = PlanScores.of(plans, gold, catalog)
    out: list[Rollout] = []
    for i, (plan, wanted) in enumerate(zip(plans, gold, strict=True)):
        parts = {name: float(getattr(plan_scores, name)[i]) for name in SCORES}
        value = (parts["node_f1"] + parts["edge_f1"] + parts["exact_nodes"]) / 3
        fields = {"instruction": wanted.instruction, "expected": to_text(wanted.plan)}
        place, task = seeds.child(PLANNED, i), Task(wanted.name or f"test-{i}", fields)
        answer, reward = to_text(plan), Reward(value, parts)
        calls = (_call(place, 0, "planner", wanted.instruction, answer),)
        played: JSON = {"calls": calls, "answer": answer, "reward": reward}
        out.append(stored_rollout(place, run_id, task, PLANNED, step=step, **played))
    return out


def routed_rollouts(
    run_id: str,
    seeds: SeedTree,
    label: str,
    step: int,
    query_table: QueryTable,
    flows: WorkflowBatch,
    outcome: SimulationResult,
    terms: RewardTerms,
    most: int,
) -> list[Rollout]:
    """The first `most` workflows of a batch, as a router ran them after `step` updates."""
    mode = Mode.TEST if label else Mode.TRAIN
    out: list[Rollout] = []
    for b in range(min(most, len(flows))):
        place = seeds.child(label or mode.value, step, b)
        queries = [int(q) for q in flows.query_BN[b] if q >= 0]
        limits = {"budget": flows.budget_B[b], "deadline": flows.deadline_B[b]}
        fields: dict[str, Any] = {
            "instruction": "\n".join(query_table.table.instructions[q] for q in queries),
            "queries": [query_table.table.ids[q] for q in queries],
            "after": [
                np.flatnonzero(flows.parents_BNN[b][:, n]).tolist() for n in range(len(queries))
            ],
            **{key: float(v) if math.isfinite(v) else None for key, v in limits.items()},
        }
        task = Task(f"{mode.value}-{step}-{b}", fields)
        played = _attempt(place, b, query_table, flows, outcome, terms)
        out.append(stored_rollout(place, run_id, task, label, mode=mode, step=step, **played))
    return out


def _call(
    place: SeedTree, index: int, agent: str, asked: str, said: str, seconds: float = 0.0
) -> Call:
    call_id = place.child("call", index).id("call")
    return stored_call(call_id, index, agent, (Message("user", asked),), said, seconds=seconds)


def _attempt(
    place: SeedTree,
    b: int,
    query_table: QueryTable,
    flows: WorkflowBatch,
    outcome: SimulationResult,
    terms: RewardTerms,
) -> JSON:
    """The result of a workflow, as `stored_rollout` takes it."""
    table = query_table.table
    calls: list[Call] = []
    for d in np.flatnonzero(outcome.row_D == b):
        query, worker = int(outcome.query_D[d]), int(outcome.action_D[d])
        if worker >= query_table.workers:
            continue  # to accept or to stop asks nobody
        agent = f"{table.types[query]} #{outcome.node_D[d]}"
        message = table.replayed_answer(query, worker)
        seconds = float(table.seconds_QW[query, worker])
        calls.append(_call(place, len(calls), agent, table.instructions[query], message, seconds))
    references = References(float(flows.cost_ref_B[b]), float(flows.latency_ref_B[b]))
    parts = reward_parts(
        outcome.result(b), preset=terms.preset, weights=terms.weights, references=references
    )
    good, failure = bool(outcome.success_B[b]), None
    if not good:
        late, stopped = outcome.late_B[b], outcome.stopped_B[b]
        text = "its deadline came" if late else "it was given up" if stopped else "a wrong answer"
        failure = Failure(FailureCause.TIMEOUT if late else FailureCause.AGENT_ERROR, text)
    return {
        "calls": tuple(calls),
        "answer": calls[-1].reply.content if calls else None,
        "reward": Reward(math.fsum(parts.values()), parts),
        "failure": failure,
        "seconds": float(outcome.latency_B[b]),
    }
