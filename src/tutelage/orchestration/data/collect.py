"""Execution of many instructions and logging of the results as a source of training data.

The plans are those from which the instructions were made, so every success is a correct label. Log
lines are in the order of the instructions, not of completion. `run_collection` wraps `collect` in a
run; `prepare.py` turns logs into training sets.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from statistics import fmean

from tutelage.config.fields import Count, RunSettings
from tutelage.errors import ConfigError, DataError, EngineError, TutelageError, pluralize
from tutelage.orchestration.data.synthetic import builtin_graph, generate, to_graph
from tutelage.orchestration.data.workflows import read_workflows
from tutelage.orchestration.execution.config import WorkConfig
from tutelage.orchestration.execution.record import Execution
from tutelage.orchestration.execution.runs import ExecutionRun
from tutelage.orchestration.execution.stored import ExecutionLogger, ExecutionRecorder
from tutelage.orchestration.execution.system import OrchestrationSystem
from tutelage.orchestration.execution.virtual_time import run_virtual
from tutelage.orchestration.execution.worker_files import describe_pool
from tutelage.orchestration.plan.dag import Plan
from tutelage.runs import lifecycle
from tutelage.runs.folder import create, run_path
from tutelage.runs.lifecycle import Run
from tutelage.runs.progress import Progress
from tutelage.seeds import SeedTree
from tutelage.types import JSON

RECIPE = "collect"
CHUNK = 64
"""Maximum number of concurrent executions."""


async def collect(
    system: OrchestrationSystem,
    plans: Iterable[Plan],
    logger: ExecutionLogger | None = None,
    *,
    budget: float | None = None,
    on_done: Callable[[Execution | TutelageError], None] | None = None,
) -> JSON:
    """Execute and log plans, and return the totals: `executions`, `succeeded`, `lost` (no worker
    server answered), `refused` (plan could not be started), `cost` in USD and `mean_latency` in
    seconds.

    `budget` is in USD per execution. `on_done` is called with each execution, or with the error if
    its plan could not be started. Raises `ConfigError` if there are no plans or no plan could be
    started (`DataError` if the first plan has invalid arguments), and `EngineError` if no worker's
    server answered in a whole chunk, because such failures are not useful training data.
    """

    async def execute(number: int, plan: Plan) -> Execution | TutelageError:
        try:
            name = f"collect/{number}/0"
            return await system.aexecute(plan.instruction, plan=plan, budget=budget, name=name)
        except (ConfigError, DataError) as error:
            return error

    gathered: list[Execution | TutelageError] = []
    waiting = enumerate(plans)
    while chunk := list(islice(waiting, CHUNK)):
        done = await asyncio.gather(*(execute(number, plan) for number, plan in chunk))
        executions = [each for each in done if isinstance(each, Execution)]
        errors = [error for each in executions if (error := each.server_error) is not None]
        if errors and len(errors) == len(executions):
            raise EngineError(
                f"no worker server answered in {pluralize(len(errors), 'execution')}; first error: "
                f"{errors[0].message}. Executions without an answer are not logged"
            )
        gathered += done
        for each in done:
            if logger is not None and isinstance(each, Execution):
                logger.log_execution(
                    instruction=each.plan.instruction,
                    planner_outputs=each.plan,
                    execution_result=each,
                )
            if on_done is not None:
                on_done(each)
    if not gathered:
        raise ConfigError("no instructions to collect; pass at least one")
    executions = [each for each in gathered if isinstance(each, Execution)]
    if not executions and isinstance(gathered[0], TutelageError):
        raise gathered[0]
    return {
        "executions": len(executions),
        "succeeded": sum(each.success for each in executions),
        "lost": sum(each.server_error is not None for each in executions),
        "refused": len(gathered) - len(executions),
        "cost": math.fsum(each.total_cost for each in executions),
        "mean_latency": fmean(each.total_latency_ms / 1000.0 for each in executions),
    }


# ------------------------------------------------------------------ run


class CollectConfig(WorkConfig, RunSettings):
    """Settings of a collection: instructions, workers and number of tries."""

    num_executions: Count = 200
    """Number of instructions to execute."""
    output_dir: Path = Path("execution_logs")
    """Folder of the execution log."""
    tasks: Path | None = None
    """File of workflows to execute instead of synthetic workflows."""
    router: str = "accurate"
    """Router that chooses the workers: cheapest, accurate, cascade:NAME,NAME,... or
    the path of a router checkpoint from phase 2."""


def run_collection(
    config: CollectConfig,
    *,
    on_start: Callable[[str], None],
    on_done: Callable[[Execution | TutelageError], None] | None = None,
) -> tuple[JSON, Path, Path]:
    """Collect executions in a run folder; return the totals, the log file and the folder.

    Before the start, `on_start` is called with a description of the workers and of the plans.
    `on_done` is called after each instruction. Mock workers run on a virtual clock.

    Raises the errors of `collect`.
    """
    pool, catalog = config.make_pool(), config.read_catalog()
    count = config.num_executions
    if config.tasks is not None:
        workflows = read_workflows(config.tasks, catalog)[:count]
    else:
        graph = builtin_graph() if catalog is None else to_graph(catalog)
        workflows = generate(graph, count, SeedTree(config.seed).child("collect"))
    plans = [workflow.plan for workflow in workflows]
    system = config.make_system(pool, catalog, plans)
    logger = ExecutionLogger(config.output_dir, workers=pool.workers)
    on_start(f"workers: {describe_pool(pool)}")
    on_start("plans: those that the instructions were made from")
    done: list[JSON] = []

    async def execute_plans() -> JSON:
        try:
            return await collect(system, plans, logger, budget=config.budget, on_done=on_done)
        finally:
            await pool.close()

    def work(run: Run) -> JSON:
        system.recorder = ExecutionRecorder(run.writer, run.id, label=RECIPE)
        logger.run_id = run.id
        done.append(run_virtual(execute_plans(), virtual=pool.mock))
        run.log({"phase": RECIPE, "step": 0, **done[0]})
        return {"status": "succeeded", **done[0], "log": str(logger.path)}

    folder = create(run_path(config.output, RECIPE))
    lifecycle.start(ExecutionRun(config, work, recipe=RECIPE), folder, Progress())
    return done[0], logger.path, folder.path
