"""Collecting: many instructions are executed and logged, so that training data can be made of them.

Labels must come from what worked. So an instruction may bring several candidate plans, which are
tried until one succeeds; where the world knows what was asked for (`goal`), a plan that does
something else has failed, however well its workers did; and on every node that succeeded, workers
that are cheaper than the one that did it are tried too, so that `prepare.py` may choose one of
them. Lines are written in the order of the instructions, whatever ends first. `run_collection` does
that as a run of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from tutelage.config.fields import Count, CountOrZero, RunSettings
from tutelage.errors import ConfigError, DataError, EngineError, counted
from tutelage.orchestration.data.formats import read_workflows
from tutelage.orchestration.data.synthetic import builtin_graph, generate, graph_of
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.evaluation.judged import DEADLINE, UNSERVED, WRONG_PLAN
from tutelage.orchestration.execution.config import WorkConfig
from tutelage.orchestration.execution.executor import Executor
from tutelage.orchestration.execution.record import Execution, NodeStep
from tutelage.orchestration.execution.runs import ExecutionRun
from tutelage.orchestration.execution.stored import ExecutionLogger, ExecutionRecorder
from tutelage.orchestration.execution.system import OrchestrationSystem
from tutelage.orchestration.execution.virtual_time import run_virtual
from tutelage.orchestration.execution.worker_files import describe_pool
from tutelage.orchestration.execution.workers import ErrorKind, WorkerError, capable_workers
from tutelage.orchestration.plan.dag import Plan, levels
from tutelage.orchestration.planner.choose import plan_candidates, trained_planner
from tutelage.runs import lifecycle
from tutelage.runs.folder import create, place_of
from tutelage.runs.lifecycle import Run
from tutelage.runs.progress import Progress
from tutelage.seeds import SeedTree
from tutelage.statistics.outcome import RewardKind, RolloutOutcome, add_up
from tutelage.types import JSON

RECIPE = "collect"
_UNSERVED: Sequence[ErrorKind] = ("network", "unauthorized", "unavailable", "timeout")
"""Errors that tell of the server and not of the worker's answer."""
_LOST: Sequence[ErrorKind] = ("network", "unauthorized", "unavailable", "rate_limited")
"""Errors after which nobody knows what the worker's answer would have been."""
CHUNK = 64
"""Concurrent executions."""


_Goal = Callable[[Plan], bool]
Assignment = tuple[Sequence[Plan], _Goal | None]
"""An instruction to execute: candidate plans, the best first, of which later ones are tried when
earlier ones fail; and whether a plan does what the instruction asks, None where nobody knows.
"""


@dataclass(frozen=True, slots=True)
class CollectedInstruction:
    """The result of one instruction: all its executions, and cheaper workers on the last one."""

    executions: tuple[Execution, ...]
    alternatives: tuple[Mapping[str, Any], ...] = ()
    refused: ConfigError | DataError | None = None
    """Why a plan could not be begun: no legal worker, too small a budget, wrong arguments."""

    @property
    def success(self) -> bool:
        """Whether one of the plans did it."""
        return bool(self.executions) and self.executions[-1].success


@dataclass(frozen=True, slots=True)
class Collection:
    """Totals of a collection. Costs in USD, latency in seconds; means are over executions."""

    instructions: int
    executions: int
    succeeded: int
    """Instructions with an execution that succeeded."""
    cost: float
    alternatives_cost: float
    alternatives_passed: int
    mean_latency: float
    judged: int
    """Instructions of which it is known whether they were done."""
    lost: Mapping[str, int]
    """The others, by what their workers' servers answered."""
    failed: Mapping[str, int]
    """Those that failed by other causes than their answers."""
    reason: str
    """What the first that was lost was told."""
    success_rate: float | None
    """Share of the judged instructions that were done; None where too many were lost."""
    interval: tuple[float, float] | None
    """95 % interval of that share."""
    refused: int = 0
    """Instructions of which a plan could not be begun."""


def _same_plan(gold: Plan) -> _Goal:
    """A goal: the same tools with the same edges between them, in whatever order they stand.

    Nodes are told apart by tool and by what lies before them, as their names in the plan are not.
    """
    wanted = _shape(gold)
    return lambda plan: _shape(plan) == wanted


def assignments_of(
    workflows: Iterable[Workflow], plans: Mapping[str, Sequence[Plan]] | None = None
) -> Iterator[Assignment]:
    """Yield assignments of workflows whose plan is known to be right.

    `plans` has the candidates of each instruction (a planner's beam); without it the workflow's own
    plan is executed.
    """
    for workflow in workflows:
        values = tuple(plans.get(workflow.instruction, ())) if plans else (workflow.plan,)
        if not values:
            raise ConfigError(f"no plan was made for {workflow.instruction!r:.80}")
        yield values, _same_plan(workflow.plan)


async def collect(
    system: OrchestrationSystem,
    assignments: Iterable[Assignment],
    logger: ExecutionLogger | None = None,
    *,
    alternatives: int = 2,
    budget: float | None = None,
    on_done: Callable[[CollectedInstruction], None] | None = None,
) -> Collection:
    """Execute all assignments, log each execution, and add up.

    `alternatives` is how many cheaper workers are tried on each node that succeeded; `budget` is in
    USD for one execution. Raises `ConfigError` for no assignments, a negative count, and when not
    one plan could be begun (`DataError` where the first has wrong arguments), `EngineError` where
    no worker is there: that is no failure to learn of.
    """
    if alternatives < 0:
        raise ConfigError(f"alternatives is {alternatives!r}; give a whole number of at least 0")
    gathered: list[CollectedInstruction] = []
    waiting = enumerate(assignments)
    while chunk := list(islice(waiting, CHUNK)):
        done = await asyncio.gather(
            *(_one(system, number, given, alternatives, budget) for number, given in chunk)
        )
        executions = [execution for collected in done for execution in collected.executions]
        errors = _errors([step for e in executions for step in e.steps], _UNSERVED)
        if errors:
            raise EngineError(
                f"of {counted(len(errors), 'request')} none was answered by a worker, the first: "
                f"{errors[0].message}. Fix that; executions without a worker are not logged"
            )
        gathered += done
        for collected in done:
            for place, execution in enumerate(collected.executions if logger is not None else ()):
                last = place == len(collected.executions) - 1
                assert logger is not None
                logger.log_execution(
                    instruction=execution.plan.instruction,
                    planner_outputs=execution.plan,
                    execution_result=execution,
                    alternatives=collected.alternatives if last else (),
                )
            if on_done is not None:
                on_done(collected)
    if not gathered:
        raise ConfigError("there is nothing to collect; give at least one instruction")
    refused = next((found.refused for found in gathered if found.refused is not None), None)
    if refused is not None and not any(found.executions for found in gathered):
        raise refused
    return _added_up(gathered)


def _errors(steps: Sequence[NodeStep], kinds: Sequence[ErrorKind]) -> list[WorkerError]:
    """The errors of these steps, where all of their answers are errors of these kinds."""
    answers = [step.answer for step in steps if step.answer is not None]
    errors = [a.error for a in answers if a.error is not None and a.error.kind in kinds]
    return errors if len(errors) == len(answers) else []


def _unserved(execution: Execution) -> WorkerError | None:
    """The error of a subtask that failed because no server gave an answer; None where none did."""
    failed = [n.node for n in execution.nodes if n.status == "failed" and n.reason != "budget"]
    by_node = ([step for step in execution.steps if step.node == node] for node in failed)
    return next((errors[-1] for steps in by_node if (errors := _errors(steps, _LOST))), None)


def _judgement(place: int, collected: CollectedInstruction) -> RolloutOutcome:
    """Return the outcome of an instruction. Each is a task of its own."""
    failed = [execution for execution in collected.executions if not execution.success]
    gone = next((e for execution in failed if (e := _unserved(execution)) is not None), None)
    if collected.success:
        return RolloutOutcome(str(place), 1.0, True)
    if gone is not None:
        return RolloutOutcome(str(place), None, False, gone.kind, gone.message)
    if not failed:
        return RolloutOutcome(str(place), 0.0, False, "refused")
    execution = failed[-1]
    if execution.reason in (DEADLINE, "budget", WRONG_PLAN):
        return RolloutOutcome(str(place), 0.0, False, execution.reason)
    lost = {node.node for node in execution.nodes if node.status == "failed"}
    last = {step.node: step.answer for step in execution.steps if step.answer is not None}
    errors = [last[node].error for node in sorted(lost & set(last))]
    late = any(error is not None and error.kind == "timeout" for error in errors)
    late |= any(n.reason.startswith("timeout") for n in execution.nodes)
    return RolloutOutcome(str(place), 0.0, False, "timeout" if late else None)


async def _one(
    system: OrchestrationSystem,
    number: int,
    given: Assignment,
    alternatives: int,
    budget: float | None,
) -> CollectedInstruction:
    executions: list[Execution] = []
    refused: ConfigError | DataError | None = None
    plans, goal = given
    for candidate, plan in enumerate(plans):
        name = f"collect/{number}/{candidate}"
        try:
            execution = await system.aexecute(
                plan.instruction, plan=plan, budget=budget, name=name,
                judge=partial(_judged, goal),
            )  # fmt: skip
        except (ConfigError, DataError) as error:
            refused = error
            continue
        executions.append(execution)
        if execution.success:
            tried = await _cheaper(system.executor, execution, alternatives)
            return CollectedInstruction(tuple(executions), tuple(tried), refused)
    return CollectedInstruction(tuple(executions), refused=refused)


def _judged(goal: _Goal | None, found: Execution) -> Execution:
    """An execution as it is kept: a wrong plan has failed, and what no server did is lost."""
    if found.success and goal is not None and not goal(found.plan):
        return replace(found, success=False, reason=WRONG_PLAN)
    if not found.success and _unserved(found) is not None:
        return replace(found, reason=UNSERVED)
    return found


async def _cheaper(executor: Executor, execution: Execution, count: int) -> list[dict[str, Any]]:
    """Ask up to `count` cheaper workers at each node that succeeded, the cheapest first.

    They get the inputs that the node had. Workers that were asked there already are left out:
    the log has them.
    """
    outputs = {n.node: n.output for n in execution.nodes if n.output is not None}
    records: list[dict[str, Any]] = []
    pool = executor.pool
    for node in execution.nodes if count else ():
        asked = [step for step in execution.steps if step.node == node.node]
        place, attempt = (
            execution.seeds.child("node", node.node),
            sum(len(s.requests) for s in asked),
        )
        work = executor.work(execution.plan, node.node, outputs, seeds=place, attempt=attempt)
        can = capable_workers(pool.workers, work)
        names = {step.worker for step in asked}
        costs = [pool.estimate(worker, work).cost for worker in pool.workers]
        kept = next((i for i, w in enumerate(pool.workers) if w.name == node.worker), None)
        if kept is None or node.status != "succeeded":
            continue
        others = sorted(
            (cost, i)
            for i, cost in enumerate(costs)
            if can[i] and cost < costs[kept] and pool.workers[i].name not in names
        )
        for _, i in others[:count]:
            answer = await pool.execute(pool.workers[i], work)
            verdict = await executor.verifiers.check(work, answer)
            records.append(
                {
                    "node": node.node,
                    "worker": pool.workers[i].name,
                    "passed": verdict.passed,
                    "verdict": verdict.reason,
                    "cost": answer.cost + verdict.cost,
                    "latency": answer.seconds,
                }
            )
    return records


def _added_up(gathered: Sequence[CollectedInstruction]) -> Collection:
    outcome_sums = add_up(
        [_judgement(place, found) for place, found in enumerate(gathered)], RewardKind()
    )
    executions = [execution for found in gathered for execution in found.executions]
    tried = [other for found in gathered for other in found.alternatives]
    seconds = (sum(e.total_latency_ms / 1000.0 for e in c.executions) for c in gathered)
    return Collection(
        instructions=len(gathered),
        executions=len(executions),
        succeeded=sum(found.success for found in gathered),
        cost=math.fsum(execution.total_cost for execution in executions),
        alternatives_cost=math.fsum(other["cost"] for other in tried),
        alternatives_passed=sum(bool(other["passed"]) for other in tried),
        mean_latency=sum(seconds) / max(1, len(executions)),
        judged=outcome_sums.judged,
        lost=outcome_sums.lost,
        failed=outcome_sums.failed,
        reason=outcome_sums.reason,
        success_rate=outcome_sums.success,
        interval=outcome_sums.interval,
        refused=sum(found.refused is not None for found in gathered),
    )


def _shape(plan: Plan) -> tuple[str, ...]:
    """A plan up to the numbering of its nodes: for each, a digest of its tool and its parents'."""
    digests: dict[int, str] = {}
    for level in levels(plan):
        for node in level:
            told = plan.nodes[node]
            before = sorted(digests[parent] for parent in told.parents)
            text = repr((told.tool, before)).encode("utf-8", "surrogatepass")
            digests[node] = hashlib.blake2b(text, digest_size=16).hexdigest()
    return tuple(sorted(digests.values()))


# ------------------------------------------------------------------ as a run


class CollectConfig(WorkConfig, RunSettings):
    """What is executed, by which workers, and how often it is tried."""

    num_executions: Count = 200
    """Instructions to execute."""
    output_dir: Path = Path("execution_logs")
    """Folder of the log."""
    tasks: Path | None = None
    """Workflows to execute, instead of synthetic ones."""
    candidates: Count = 1
    """Plans of the planner that are tried for an instruction."""
    router: str = "accurate"
    """Who chooses workers: cheapest, fastest, accurate, greedy, random, cascade:NAME,NAME,... or
    the file of a router that phase 2 trained."""
    alternatives: CountOrZero = 2
    """Cheaper workers tried where a subtask succeeded."""
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
    on_done: Callable[[CollectedInstruction], None] | None = None,
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
    made: dict[str, list[Plan]] = {}
    source = "those that the instructions were made from"
    if config.checkpoint is not None:
        model, source = trained_planner(config.checkpoint, catalog)
        texts = list(dict.fromkeys(workflow.instruction for workflow in workflows))
        made = dict(zip(texts, plan_candidates(model, texts, config.candidates), strict=True))
    elif config.candidates > 1:
        raise ConfigError(f"--candidates {config.candidates} needs a planner: --checkpoint FILE")
    system = config.make_system(pool, catalog, [w.plan for w in workflows])
    logger = ExecutionLogger(config.output_dir, workers=pool.workers, catalog=catalog)
    note(f"workers: {describe_pool(pool)}")
    note(f"plans: {source}")
    done: list[Collection] = []

    async def play() -> Collection:
        try:
            return await collect(
                system, assignments_of(workflows, made), logger,
                alternatives=config.alternatives, budget=config.budget, on_done=on_done,
            )  # fmt: skip
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
