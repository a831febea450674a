"""Execution of many instructions and logging of the results as a source of training data.

Labels must come from correct executions: if the gold plan of an instruction is known, an execution
of a different plan counts as failed, even if all of its workers succeed. Log lines are in the order
of the instructions, not of completion. `run_collection` wraps `collect` in a run; `prepare.py`
turns logs into training sets.
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
"""Errors that hide whether the worker would have answered correctly."""
CHUNK = 64
"""Maximum number of concurrent executions."""


@dataclass(frozen=True, slots=True)
class Collection:
    """Totals of a collection. Cost in USD, mean latency over executions in seconds."""

    instructions: int
    executions: int
    succeeded: int
    cost: float
    mean_latency: float
    judged: int
    """Number of instructions with a known result (success or failure)."""
    lost: Mapping[str, int]
    """Number of instructions without a known result, by error kind of the worker's server."""
    failed: Mapping[str, int]
    """Number of failures that were not caused by a wrong answer, by cause."""
    reason: str
    """Message of the first server error that left an instruction without a result."""
    success_rate: float | None
    """Share of the judged instructions that succeeded; None if too many have no result."""
    interval: tuple[float, float] | None
    """95 % confidence interval of `success_rate`."""
    refused: int = 0
    """Number of instructions whose plan could not be started."""


async def collect(
    system: OrchestrationSystem,
    assignments: Iterable[tuple[Plan, Plan | None]],
    logger: ExecutionLogger | None = None,
    *,
    budget: float | None = None,
    on_done: Callable[[Execution | TutelageError], None] | None = None,
) -> Collection:
    """Execute plans, log each execution and return the totals.

    `assignments` are pairs of a plan and the gold plan of its instruction (None if unknown).
    `budget` is in USD per execution. `on_done` is called with each execution, or with the error if
    its plan could not be started. Raises `ConfigError` if there are no assignments or no plan could
    be started (`DataError` if the first plan has invalid arguments), and `EngineError` if no
    worker's server answered in a whole chunk, because such failures are not useful training data.
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
                f"no worker server answered in {counted(len(errors), 'execution')}; first error: "
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
    """Return the error of the first subtask that failed because no server answered, else None."""
    for node in execution.nodes:
        if node.status == "failed" and node.reason != "budget":
            answers = [step.answer for step in execution.steps if step.node == node.node]
            errors = [answer.error for answer in answers if answer is not None]
            lost = [error for error in errors if error is not None and error.kind in _LOST]
            if lost and len(lost) == len(errors):
                return lost[-1]
    return None


def _outcome(task: str, done: Execution | TutelageError) -> RolloutOutcome:
    """Return the outcome of an instruction. Each instruction counts as a separate task."""
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
    """Return hashes of each tool with its ancestors, independent of the numbering of the nodes."""
    hashes: dict[int, int] = {}
    for level in levels(plan):
        for node in level:
            before = sorted(hashes[parent] for parent in plan.nodes[node].parents)
            hashes[node] = hash((plan.nodes[node].tool, *before))
    return Counter(hashes.values())


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
    max_nodes: Count = 6
    """Maximum number of nodes of a synthetic workflow."""


@dataclass(frozen=True, slots=True)
class CollectionRun:
    """Result of `run_collection`: the totals, the log file and the run folder."""

    collection: Collection
    log: Path
    folder: Path


def run_collection(
    config: CollectConfig,
    *,
    note: Callable[[str], None],
    on_done: Callable[[Execution | TutelageError], None] | None = None,
) -> CollectionRun:
    """Collect executions in a run folder. Before the start, `note` is called with a description of
    the workers, the source of the plans and any warnings; `on_done` is called after each
    instruction. Mock workers run on a virtual clock.

    Raises the errors of `collect`, and `KeyboardInterrupt` with a note that names the log file.
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
