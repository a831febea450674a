"""`python examples/orchestration/collect_outcomes.py OUT --workers FILE --verifiers V --budget 1`.

Workflows are executed by your workers, and the results form an outcome table for phase 2:
`tutelage train planner --phase 2 --outcomes OUT/outcomes.json --models OUT/models.json`.

An episode executes one workflow with one worker first at each subtask and the other workers as
fallbacks, so every worker is tried on every subtask. All episodes share one budget. Their events
are stored in one file: after a crash the episodes are replayed, recorded answers are reused, and
only the missing calls are made.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tutelage.errors import ConfigError, TutelageError
from tutelage.orchestration.data.synthetic import builtin_graph, generate_plain
from tutelage.orchestration.data.workflows import Workflow, read_workflows
from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.config import WorkConfig
from tutelage.orchestration.execution.record import Execution, NodeStep
from tutelage.orchestration.execution.system import OrchestrationSystem
from tutelage.orchestration.execution.verifiers import Verifiers
from tutelage.orchestration.execution.virtual_time import run_virtual
from tutelage.orchestration.execution.workers import UNSERVED, WorkerPool
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.routing.contract import cascade_router
from tutelage.runs.folder import write_text
from tutelage.seeds import SeedTree
from tutelage.store import open_store

OUTCOMES, MODELS, EVENTS = "outcomes.json", "models.json", "episodes.db"
AT_ONCE = 8
"""Maximum number of concurrent episodes."""


def collect_episodes(
    folder: Path,
    workflows: Sequence[Workflow],
    pool: WorkerPool,
    *,
    budget: float | None,
    seed: int,
    verifiers: Verifiers | None = None,
    catalog: Catalog | None = None,
    done: Callable[[int, float], None] = lambda number, spent: None,
) -> dict[str, float]:
    """Run the episodes, write their table to `folder`, and return how many were played and planned,
    and their cost. Call again to resume.

    `done` is called with the number of finished episodes and the USD spent. Raises `ConfigError` if
    the budget does not cover the first step, or if no episode has a verified outcome.
    """
    names = [w.name for w in sorted(pool.workers, key=lambda w: w.price_in + w.price_out)]
    systems = {
        name: OrchestrationSystem(
            pool=pool,
            router=cascade_router([name, *(other for other in names if other != name)]),
            verifiers=verifiers,
            catalog=catalog,
            seed=seed,
        )
        for name in names
    }
    money = Budget(budget)
    planned = [(k, name) for k in range(len(workflows)) for name in names]

    async def play(k: int, name: str) -> Execution:
        plan = workflows[k].plan
        return await systems[name].aexecute(
            plan.instruction, plan=plan, budget=money, name=f"{k}/{name}", journal=record
        )

    async def play_all() -> list[tuple[int, Execution]]:
        played: list[tuple[int, Execution]] = []
        try:
            for begin in range(0, len(planned), AT_ONCE):
                some = planned[begin : begin + AT_ONCE]
                ended = await asyncio.gather(*(play(k, name) for k, name in some))
                begun = [(k, e) for (k, _), e in zip(some, ended, strict=True) if e.steps]
                played += begun
                done(len(played), money.spent)
                if len(begun) < len(some):
                    break  # the budget is spent
            return played
        finally:
            await pool.close()

    with open_store(folder / EVENTS) as record:
        played = run_virtual(play_all(), virtual=pool.mock)
    # One row per subtask: means over the episodes in which a worker was called and verified.
    tries: dict[tuple[int, int], dict[str, list[NodeStep]]] = {}
    for k, execution in played:
        for step in execution.steps:
            answer = step.answer
            if step.worker is None or answer is None:
                continue
            judged = step.verdict is not None and step.verdict.checked
            if answer.error is not None:
                judged = answer.error.kind not in (*UNSERVED, "timeout", "cancelled")
            if judged:
                tries.setdefault((k, step.node), {}).setdefault(step.worker, []).append(step)
    rows: list[dict[str, Any]] = []
    for (k, number), steps in sorted(tries.items()):
        workflow, node = workflows[k], workflows[k].plan.nodes[number]
        answers = {name: [s.answer for s in some if s.answer] for name, some in steps.items()}
        rows.append(
            {
                "id": f"{workflow.name or k}/{number}",
                "instruction": node.description or workflow.instruction,
                "task": node.tool,
                "scores": {n: fmean(float(s.passed) for s in some) for n, some in steps.items()},
                "cost": {n: fmean(a.cost for a in some) for n, some in answers.items()},
                "latency": {n: fmean(a.seconds for a in some) for n, some in answers.items()},
            }
        )
    if not rows:
        raise ConfigError("no episode has a verified outcome; raise --budget, or pass --verifiers")
    prices = {
        worker.name: {
            "input_price": worker.price_in,
            "output_price": worker.price_out,
            "latency_seconds": worker.latency.seconds,
            "seconds_per_token": worker.latency.per_token,
            "capabilities": list(worker.capabilities),
        }
        for worker in pool.workers
    }
    for path, content in ((folder / MODELS, prices), (folder / OUTCOMES, rows)):
        write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return {"played": len(played), "planned": len(planned), "cost": money.spent}


def main() -> int:
    """Collect the outcomes of real workers, or of simulated ones, and print the totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--workers", type=Path, help="workers as JSON or YAML")
    parser.add_argument("--pool", choices=["simulated", "openai"], default="openai")
    parser.add_argument("--verifiers", type=Path, help="verifiers by type as JSON")
    parser.add_argument("--budget", type=float, help="US dollars of all episodes")
    parser.add_argument("--tasks", type=Path, help="workflows; default: synthetic ones")
    parser.add_argument("--num-tasks", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    config = WorkConfig(
        pool=given.pool, workers=given.workers, seed=given.seed, verifiers=given.verifiers
    )
    try:
        pool, graph = config.make_pool(), builtin_graph()
        if given.pool == "openai" and (given.budget is None or given.verifiers is None):
            raise ConfigError("real servers cost money: pass --budget, and --verifiers")
        if given.tasks is None:
            seeds = SeedTree(given.seed).child("phase2", "tasks")
            workflows, catalog = generate_plain(graph, given.num_tasks, seeds), graph.catalog
        else:
            workflows, catalog = read_workflows(given.tasks)[: given.num_tasks], None
        made = collect_episodes(
            given.output,
            workflows,
            pool,
            budget=given.budget,
            seed=given.seed,
            verifiers=config.read_verifiers(pool),
            catalog=catalog,
            done=lambda number, spent: print(f"{number} episodes, {spent:.6f} USD", flush=True),
        )
    except TutelageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print("{played} of {planned} episodes, {cost:.6f} USD".format(**made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
