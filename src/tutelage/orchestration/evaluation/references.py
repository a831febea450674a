"""What rewards measure an execution against: the most expensive and the slowest plan by one worker.

`rewards.py` has the rewards, `execution/plan_run.py` asks before anything is run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tutelage.orchestration.evaluation.rewards import References
from tutelage.orchestration.execution.workers import Subtask, WorkerPool
from tutelage.orchestration.plan.dag import Plan, critical_path


def plan_references(
    plan: Plan, pool: WorkerPool, works: Sequence[Subtask], masks: Sequence[Sequence[bool]]
) -> References | None:
    """Cost of the most expensive and seconds of the slowest legal single-worker plan.

    Where no worker can do every node, each node takes its own most expensive and slowest legal
    worker. None when nothing costs or takes anything.
    """
    table = [[pool.estimate(worker, work) for worker in pool.workers] for work in works]
    able = [w for w in range(len(pool.workers)) if all(mask[w] for mask in masks)]
    if able:
        cost = max(math.fsum(row[w].cost for row in table) for w in able)
        latency = max(critical_path(plan, [row[w].seconds for row in table])[0] for w in able)
    else:
        pairs = zip(table, masks, strict=True)
        choices = [[row[w] for w, can in enumerate(mask) if can] for row, mask in pairs]
        cost = math.fsum(max(e.cost for e in row) for row in choices)
        latency = critical_path(plan, [max(e.seconds for e in row) for row in choices])[0]
    # A pool that is free, or answers at once, still has a reward: that term is then 0.
    if cost <= 0 and latency <= 0:
        return None
    return References(cost=cost or 1.0, latency=latency or 1.0)
