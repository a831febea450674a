"""`tutelage orchestrate collect`: execute many instructions and log what came of them.

The instructions are synthetic, over the built-in tools or a catalog's, or come from a file. With a
planner its plans are executed, as many candidates as are asked for, and those that do something
else than the instruction asks have failed; without one the instruction's own plan is executed.
`tutelage orchestrate prepare` makes training data of the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tutelage.cli.orchestrate_parts import (
    PLANNER,
    POOL,
    AsJson,
    PlannerOptions,
    PoolOptions,
    RouterName,
    Seed,
    VerifiersFile,
    builtin_catalog,
    make_planner,
    make_router,
    make_verifiers,
    pool_words,
)

if TYPE_CHECKING:
    from tutelage.orchestration.data.collect import Collected, Collection
    from tutelage.orchestration.data.formats import Workflow
    from tutelage.orchestration.execution.system import OrchestrationSystem
    from tutelage.orchestration.plan.catalog import Catalog
    from tutelage.orchestration.plan.dag import Plan


def collect(
    num_executions: Annotated[
        int,
        typer.Option(
            "--num-executions", "--num_executions", min=1, help="Instructions to execute."
        ),
    ] = 200,
    output_dir: Annotated[
        Path,
        typer.Option("--output-dir", "--output_dir", metavar="DIR", help="Where the log goes."),
    ] = Path("execution_logs"),
    tasks: Annotated[
        Path | None,
        typer.Option(
            "--tasks", metavar="FILE", help="Workflows to execute, instead of synthetic ones."
        ),
    ] = None,
    planning: PlannerOptions = PLANNER,
    candidates: Annotated[
        int, typer.Option(min=1, help="Plans of the planner that are tried for an instruction.")
    ] = 1,
    pool: PoolOptions = POOL,
    router: RouterName = "accurate",
    verifiers: VerifiersFile = None,
    alternatives: Annotated[
        int, typer.Option(min=0, help="Cheaper workers tried where a subtask succeeded.")
    ] = 2,
    budget: Annotated[
        float | None, typer.Option(metavar="USD", help="For one execution, at most.")
    ] = None,
    max_nodes: Annotated[int, typer.Option(min=1, help="Of a synthetic workflow.")] = 6,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Execute many instructions and log them, so that training data can be made of them."""
    from tutelage.cli.console import messages, say, shown_path
    from tutelage.orchestration.data.collect import assignments_of
    from tutelage.orchestration.execution.log import ExecutionLogger
    from tutelage.orchestration.execution.system import OrchestrationSystem

    made = pool.make()
    known = planning.read_catalog()
    workflows = _workflows(tasks, known, num_executions, max_nodes, seed)
    plans, source = _plans(planning.checkpoint, known, seed, candidates, workflows)
    system = OrchestrationSystem(
        pool=made,
        router=make_router(router, made),
        verifiers=make_verifiers(verifiers, made),
        catalog=known or builtin_catalog(*(workflow.plan for workflow in workflows)),
        seed=seed,
    )
    logger = ExecutionLogger(output_dir, run_id=f"collect-{seed}", workers=made.workers)
    say(messages(), ("workers: ", "dim"), pool_words(made))
    say(messages(), ("plans: ", "dim"), source)
    assignments = assignments_of(workflows, plans)
    try:
        told = _run(system, assignments, logger, alternatives, budget, workflows)
    except KeyboardInterrupt as stopped:
        kept = f"What ended is in {shown_path(logger.path)}. The same command begins again and"
        stopped.add_note(f"{kept} adds to it; another --output-dir keeps them apart.")
        raise
    if as_json:
        row = asdict(told) | {"log": str(logger.path)}
        typer.echo(json.dumps(row, indent=2))
        return
    _show(told, logger.path)


def _workflows(
    tasks: Path | None, catalog: Catalog | None, count: int, max_nodes: int, seed: int
) -> list[Workflow]:
    from tutelage.orchestration.data.formats import read_workflows
    from tutelage.orchestration.data.synthetic import builtin_graph, generate, graph_of
    from tutelage.seeds import SeedTree

    if tasks is not None:
        return read_workflows(tasks, catalog)[:count]
    graph = builtin_graph() if catalog is None else graph_of(catalog)
    return generate(graph, count, SeedTree(seed).child("collect"), max_nodes=max_nodes)


def _plans(
    checkpoint: Path | None,
    catalog: Catalog | None,
    seed: int,
    candidates: int,
    workflows: Sequence[Workflow],
) -> tuple[Callable[[Workflow], Sequence[Plan]] | None, str]:
    """Candidate plans for a workflow, and where they come from in words."""
    if checkpoint is None:
        if candidates > 1:
            from tutelage.errors import ConfigError

            raise ConfigError(f"--candidates {candidates} needs a planner: --checkpoint FILE")
        return None, "those that the instructions were made from"
    planner = make_planner(checkpoint, catalog, seed)
    texts = list(dict.fromkeys(workflow.instruction for workflow in workflows))
    made = dict(zip(texts, planner.candidates(texts, candidates), strict=True))
    return (lambda workflow: made[workflow.instruction]), planner.source


def _run(
    system: OrchestrationSystem,
    assignments: Any,
    logger: Any,
    alternatives: int,
    budget: float | None,
    workflows: Sequence[Workflow],
) -> Collection:
    """Collect with a bar; mock workers on a clock that jumps."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from tutelage.cli.console import messages
    from tutelage.orchestration.data.collect import collect as collect_all
    from tutelage.orchestration.execution.virtual_time import VirtualLoop, run_on

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=messages(), transient=True) as bar:
        task = bar.add_task("executing", total=len(workflows))

        def done(collected: Collected) -> None:
            bar.advance(task)

        async def work() -> Collection:
            try:
                return await collect_all(
                    system, assignments, logger, alternatives=alternatives, budget=budget,
                    on_done=done,
                )  # fmt: skip
            finally:
                await system.pool.close()

        return run_on(VirtualLoop if system.pool.mock else None, work())


def _refused(count: int) -> str:
    from tutelage.cli.console import counted

    refused = counted(count, "instruction")
    return f"{refused} with a plan that nobody can do, or that the budget cannot begin"


def _show(told: Collection, log: Path) -> None:
    from tutelage.cli.console import counted, facts, number, output, say, shown_path
    from tutelage.cli.rates import rate_cell
    from tutelage.runs.measured import Measured, judged_words

    console = output()
    found = Measured(
        success=told.success_rate,
        success_interval=told.interval,
        rollouts=told.instructions,
        judged=told.judged,
        lost=told.lost,
        failed=told.failed,
        reason=told.reason,
    )
    done = f"{number(told.succeeded)} of {number(told.judged)}"
    if not found.withheld:
        done += f": {rate_cell(found, ends=True)}"
    facts(
        console,
        [
            ("succeeded", done),
            *([("judged", judged_words(found))] if found.eventful else []),
            ("executions", number(told.executions)),
            ("cost", f"{told.cost:.6f} USD, {told.alternatives_cost:.6f} USD for alternatives"),
            ("cheaper", f"{counted(told.alternatives_passed, 'alternative')} could do it as well"),
            ("latency", f"{told.mean_latency:.2f} s on average"),
            *([("refused", _refused(told.refused))] if told.refused else []),
            ("log", shown_path(log)),
        ],
    )
    prepare = f"tutelage orchestrate prepare --logs {shown_path(log.parent)}"
    say(console, ("\nNext:", "bold"), f" {prepare} --output training_data.json")
