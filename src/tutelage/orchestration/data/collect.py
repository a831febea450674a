"""Collecting: many instructions are executed and logged, so that training data can be made of them.

Labels must come from what worked: where the plan that an instruction asks for is known, a plan that
does something else has failed, however well its workers did. Lines are written in the order of the
instructions, whatever ends first. `run_collection` does that as a run of its own; `prepare.py`
makes training sets.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from tutelage.config.fields import Count, RunSettings
from tutelage.errors import ConfigError, DataError, EngineError, TutelageError, counted
from tutelage.orchestration.data.synthetic import builtin_graph, generate, graph_of
from tutelage.orchestration.data.workflows import read_workflows
from tutelage.orchestration.evaluation.rewards import DEADLINE, UNSERVED, WRONG_PLAN
from tutelage.orchestration.execution.config import WorkConfig
from tutelage.orchestration.execution.record import Execution
from tutelage.orchestration.execution.runs import ExecutionRun
from tutelage.orchestration.execution.stored import ExecutionLogger, ExecutionRecorder
from tutelage.orchestration.execution.system import OrchestrationSystem
from tutelage.orchestration.execution.virtual_time import run_virtual
from tutelage.orchestration.execution.worker_files import describe_pool
from tutelage.orchestration.execution.workers import ErrorKind, WorkerError
from tutelage.orchestration.plan.dag import Plan, levels
from tutelage.orchestration.planner.choose import trained_planner
from tutelage.runs import lifecycle
from tutelage.runs.folder import create, place_of
from tutelage.runs.lifecycle import Run
from tutelage.runs.progress import Progress
from tutelage.seeds import SeedTree
from tutelage.statistics.outcome import OutcomeSums, RewardKind, RolloutOutcome, add_up
from tutelage.types import JSON

RECIPE = "collect"
_LOST: Sequence[ErrorKind] = ("network", "unauthorized", "unavailable", "rate_limited")
"""Errors after which nobody knows what the worker's answer would have been."""
CHUNK = 64
"""Concurrent executions."""


@dataclass(frozen=True, slots=True)
class Collection:
    """Totals of a collection. Costs in USD, latency in seconds; means are over executions."""

    instructions: int
    executions: int
    succeeded: int
    cost: float
    mean_latency: float
    judged: int
    """Instructions of which it is known whether they were done."""
    lost: Mapping[str, int]
    """The others, by what their workers' servers answered."""
    failed: Mapping[str, int]
    """Those that failed by other causes than their answers."""
    reason: str
    """The message of the first error that lost one."""
    success_rate: float | None
    """Share of the judged instructions that were done; None where too many were lost."""
    interval: tuple[float, float] | None
    """95 % interval of that share."""
    refused: int = 0
    """Instructions whose plan could not be begun."""


async def collect(
    system: OrchestrationSystem,
    assignments: Iterable[tuple[Plan, Plan | None]],
    logger: ExecutionLogger | None = None,
    *,
    budget: float | None = None,
    on_done: Callable[[Execution | TutelageError], None] | None = None,
) -> Collection:
    """Execute plans, log each execution, and add up.

    Beside each plan stands the one that its instruction asks for, None where nobody knows it;
    `budget` is in USD for one execution; `on_done` is called with each execution, or with why its
    plan could not be begun. Raises `ConfigError` for no assignments, and when not one plan could
    be begun (`DataError` where the first has wrong arguments), `EngineError` where no worker is
    there: that is no failure to learn of.
    """

    async def execute(number: int, plan: Plan, wanted: Plan | None) -> Execution | TutelageError:
        def judged(found: Execution) -> Execution:
            if found.success and wanted is not None and shape(found.plan) != shape(wanted):
                return replace(found, success=False, reason=WRONG_PLAN)
            if not found.success and _unserved(found) is not None:
                return replace(found, reason=UNSERVED)
            return found

        try:
            name = f"collect/{number}/0"
            return await system.aexecute(
                plan.instruction, plan=plan, budget=budget, name=name, judge=judged
            )
        except (ConfigError, DataError) as error:
            return error

    gathered: list[Execution | TutelageError] = []
    waiting = enumerate(assignments)
    while chunk := list(islice(waiting, CHUNK)):
        done = await asyncio.gather(*(execute(number, *given) for number, given in chunk))
        executions = [each for each in done if isinstance(each, Execution)]
        errors = [_unserved(each) for each in executions if each.reason == UNSERVED]
        if errors and errors[0] is not None and len(errors) == len(executions):
            raise EngineError(
                f"of {counted(len(errors), 'execution')} none had an answer of a worker's server, "
                f"the first: {errors[0].message}. Fix that; executions without a worker are not "
                "logged"
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
        raise ConfigError("there is nothing to collect; give at least one instruction")
    executions = [each for each in gathered if isinstance(each, Execution)]
    if not executions and isinstance(gathered[0], TutelageError):
        raise gathered[0]
    sums: OutcomeSums = add_up(
        [_outcome(str(place), each) for place, each in enumerate(gathered)], RewardKind()
    )
    return Collection(
        instructions=len(gathered),
        executions=len(executions),
        succeeded=sum(each.success for each in executions),
        cost=math.fsum(each.total_cost for each in executions),
        mean_latency=sum(each.total_latency_ms / 1000.0 for each in executions) / len(executions),
        judged=sums.judged,
        lost=sums.lost,
        failed=sums.failed,
        reason=sums.reason,
        success_rate=sums.success,
        interval=sums.interval,
        refused=len(gathered) - len(executions),
    )


def _unserved(execution: Execution) -> WorkerError | None:
    """Return the error of a subtask that failed because no server gave an answer; None where none
    did."""
    for node in execution.nodes:
        if node.status == "failed" and node.reason != "budget":
            answers = [step.answer for step in execution.steps if step.node == node.node]
            errors = [answer.error for answer in answers if answer is not None]
            lost = [error for error in errors if error is not None and error.kind in _LOST]
            if lost and len(lost) == len(errors):
                return lost[-1]
    return None


def _outcome(task: str, done: Execution | TutelageError) -> RolloutOutcome:
    """Return the outcome of an instruction. Each is a task of its own."""
    if isinstance(done, TutelageError):
        return RolloutOutcome(task, 0.0, False, "refused")
    if done.success:
        return RolloutOutcome(task, 1.0, True)
    if (gone := _unserved(done)) is not None:
        return RolloutOutcome(task, None, False, gone.kind, gone.message)
    if done.reason in (DEADLINE, "budget", WRONG_PLAN):
        return RolloutOutcome(task, 0.0, False, done.reason)
    last = {step.node: step.answer for step in done.steps if step.answer is not None}
    failed = [last[n.node].error for n in done.nodes if n.status == "failed" and n.node in last]
    late = any(error is not None and error.kind == "timeout" for error in failed)
    late |= any(node.reason.startswith("timeout") for node in done.nodes)
    return RolloutOutcome(task, 0.0, False, "timeout" if late else None)


def shape(plan: Plan) -> Counter[int]:
    """Return a plan up to the numbering of its nodes: hashes of each tool with what lies before."""
    hashes: dict[int, int] = {}
    for level in levels(plan):
        for node in level:
            before = sorted(hashes[parent] for parent in plan.nodes[node].parents)
            hashes[node] = hash((plan.nodes[node].tool, *before))
    return Counter(hashes.values())


# ------------------------------------------------------------------ as a run


class CollectConfig(WorkConfig, RunSettings):
    """What is executed, by which workers, and how often it is tried."""

    num_executions: Count = 200
    """Instructions to execute."""
    output_dir: Path = Path("execution_logs")
    """Folder of the log."""
    tasks: Path | None = None
    """Workflows to execute, instead of synthetic ones."""
    router: str = "accurate"
    """Who chooses workers: cheapest, accurate, cascade:NAME,NAME,... or
    the file of a router that phase 2 trained."""
    max_nodes: Count = 6
    """Maximum number of nodes of a synthetic workflow."""


@dataclass(frozen=True, slots=True)
class CollectionRun:
    """A collection with its log and the folder of its run."""

    collection: Collection
    log: Path
    folder: Path


def run_collection(
    config: CollectConfig,
    *,
    note: Callable[[str], None],
    on_done: Callable[[Execution | TutelageError], None] | None = None,
) -> CollectionRun:
    """Collect as a run. `note` is called with who works, whose plans are executed and what is
    unusual, before anything runs; `on_done` with each instruction. Mock workers are executed on a
    clock that jumps.

    Raises what `collect` raises, and `KeyboardInterrupt` with where what had ended is kept.
    """
    pool, catalog = config.make_pool(), config.read_catalog()
    count = config.num_executions
    if config.tasks is not None:
        workflows = read_workflows(config.tasks, catalog)[:count]
    else:
        graph = builtin_graph() if catalog is None else graph_of(catalog)
        seeds = SeedTree(config.seed).child("collect")
        workflows = generate(graph, count, seeds, max_nodes=config.max_nodes)
    plans = [workflow.plan for workflow in workflows]
    wanted: list[Plan | None] = [*plans]
    source = "those that the instructions were made from"
    if config.checkpoint is not None:
        model, source = trained_planner(config.checkpoint, catalog)
        plans = [made.plan for made in model.plan_all([w.instruction for w in workflows])]
    system = config.make_system(pool, catalog, [w.plan for w in workflows])
    logger = ExecutionLogger(config.output_dir, workers=pool.workers, catalog=catalog)
    note(f"workers: {describe_pool(pool)}")
    note(f"plans: {source}")
    done: list[Collection] = []

    async def play() -> Collection:
        try:
            pairs = zip(plans, wanted, strict=True)
            return await collect(system, pairs, logger, budget=config.budget, on_done=on_done)
        finally:
            await pool.close()

    def work(run: Run) -> JSON:
        system.recorder = ExecutionRecorder(run.writer, run.id, label=RECIPE)
        logger.run_id = run.id
        done.append(run_virtual(play(), jumps=pool.mock))
        row = asdict(done[0])
        numbers = {k: v for k, v in row.items() if isinstance(v, int | float)}
        run.log({"phase": RECIPE, "step": 0, **numbers})
        return {"status": "succeeded", **row, "log": str(logger.path)}

    folder = create(place_of(config.output, RECIPE))
    try:
        lifecycle.start(ExecutionRun(config, work, recipe=RECIPE), folder, Progress())
    except KeyboardInterrupt as stopped:
        again = "The same command" + (" with another --output" if config.output else "")
        stopped.add_note(f"What ended is in {logger.path}. {again} begins again and adds to it;")
        stopped.add_note("another --output-dir keeps them apart.")
        raise
    return CollectionRun(done[0], logger.path, folder.path)
