"""`tutelage orchestrate collect`: execute many instructions and log the results.

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
from typing import TYPE_CHECKING, Any

import typer

from tutelage.cli.options import AsJson
from tutelage.cli.orchestrate_parts import describe_pool, make_planner
from tutelage.config.fields import Count, CountOrZero, RunSettings
from tutelage.orchestration.execution.config import WorkConfig

if TYPE_CHECKING:
    from tutelage.orchestration.data.collect import CollectedInstruction, Collection
    from tutelage.orchestration.data.workflows import Workflow
    from tutelage.orchestration.execution.system import OrchestrationSystem
    from tutelage.orchestration.plan.catalog import Catalog
    from tutelage.orchestration.plan.dag import Plan
    from tutelage.runs.lifecycle import Run
    from tutelage.types import JSON

_RECIPE = "collect"
_REFUSED = "a plan that nobody can do, with wrong arguments, or that the budget cannot begin"


class _CollectConfig(WorkConfig, RunSettings):
    """What is executed, by which workers, and how often it is tried."""

    num_executions: Count = 200
    """Instructions to execute."""
    output_dir: Path = Path("execution_logs")
    """Where the log goes."""
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


def collect(asked: _CollectConfig, as_json: AsJson = False) -> None:
    """Execute many instructions and log them as training data."""
    from tutelage.cli.console import messages, prose, shown_path
    from tutelage.cli.failures import tell
    from tutelage.orchestration.data.collect import assignments_of
    from tutelage.orchestration.execution.runs import ExecutionRun
    from tutelage.orchestration.execution.stored import ExecutionLogger, ExecutionRecorder
    from tutelage.runs import lifecycle
    from tutelage.runs.folder import create, place_of
    from tutelage.runs.progress import Progress

    made, known = asked.make_pool(), asked.read_catalog()
    workflows = _workflows(asked, known)
    plans, source = _plans(asked, known, workflows)
    plans_of = [workflow.plan for workflow in workflows]
    system = asked.make_system(made, known, plans_of, warn=tell)
    logger = ExecutionLogger(asked.output_dir, workers=made.workers, catalog=known)
    prose(messages(), f"workers: {describe_pool(made)}", "dim")
    prose(messages(), f"plans: {source}", "dim")
    done: list[Collection] = []

    def work(run: Run) -> JSON:
        system.recorder = ExecutionRecorder(run.writer, run.id, label=_RECIPE)
        logger.run_id = run.id
        collection = _run(system, assignments_of(workflows, plans), logger, asked, workflows)
        done.append(collection)
        row = asdict(collection)
        numbers = {k: v for k, v in row.items() if isinstance(v, int | float)}
        run.log({"phase": _RECIPE, "step": 0, **numbers})
        return {"status": "succeeded", **row, "log": str(logger.path)}

    folder = create(place_of(asked.output, _RECIPE))
    try:
        lifecycle.start(ExecutionRun(asked, work, recipe=_RECIPE), folder, Progress())
    except KeyboardInterrupt as stopped:
        again = "The same command" + (" with another --output" if asked.output else "")
        kept = f"What ended is in {shown_path(logger.path)}. {again} begins again and"
        stopped.add_note(f"{kept} adds to it; another --output-dir keeps them apart.")
        raise
    (told,) = done
    if as_json:
        row = asdict(told) | {"log": str(logger.path), "run": str(folder.path)}
        typer.echo(json.dumps(row, indent=2))
        return
    _show(told, logger.path, folder.path)


def _workflows(asked: _CollectConfig, catalog: Catalog | None) -> list[Workflow]:
    from tutelage.orchestration.data.formats import read_workflows
    from tutelage.orchestration.data.synthetic import builtin_graph, generate, graph_of
    from tutelage.seeds import SeedTree

    count = asked.num_executions
    if asked.tasks is not None:
        return read_workflows(asked.tasks, catalog)[:count]
    graph = builtin_graph() if catalog is None else graph_of(catalog)
    return generate(graph, count, SeedTree(asked.seed).child("collect"), max_nodes=asked.max_nodes)


def _plans(
    asked: _CollectConfig, catalog: Catalog | None, workflows: Sequence[Workflow]
) -> tuple[Callable[[Workflow], Sequence[Plan]] | None, str]:
    """Candidate plans for a workflow, and where they come from in words."""
    if asked.checkpoint is None:
        if asked.candidates > 1:
            from tutelage.errors import ConfigError

            raise ConfigError(f"--candidates {asked.candidates} needs a planner: --checkpoint FILE")
        return None, "those that the instructions were made from"
    planner = make_planner(asked.checkpoint, catalog)
    texts = list(dict.fromkeys(workflow.instruction for workflow in workflows))
    made = dict(zip(texts, planner.candidates(texts, asked.candidates), strict=True))
    return (lambda workflow: made[workflow.instruction]), planner.source


def _run(
    system: OrchestrationSystem,
    assignments: Any,
    logger: Any,
    asked: _CollectConfig,
    workflows: Sequence[Workflow],
) -> Collection:
    """Collect with a bar; mock workers on a clock that jumps."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from tutelage.cli.console import messages
    from tutelage.orchestration.data.collect import collect as collect_all
    from tutelage.orchestration.execution.virtual_time import run_virtual

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=messages(), transient=True) as bar:
        task = bar.add_task("executing", total=len(workflows))

        def done(collected: CollectedInstruction) -> None:
            bar.advance(task)

        most, budget = asked.alternatives, asked.budget

        async def work() -> Collection:
            try:
                return await collect_all(
                    system, assignments, logger, alternatives=most, budget=budget, on_done=done
                )
            finally:
                await system.pool.close()

        return run_virtual(work(), jumps=system.pool.mock)


def _show(told: Collection, log: Path, run: Path) -> None:
    from tutelage.cli.console import facts, number, output, percent, say, shown_path
    from tutelage.errors import counted
    from tutelage.runs.stored_evaluation import SUCCESS, evaluation_of_record, judged_text

    console, refused = output(), counted(told.refused, "instruction")
    record = asdict(told) | {"success": told.success_rate, "rollouts": told.instructions}
    stored_evaluation = evaluation_of_record(record)
    done = f"{number(told.succeeded)} of {number(told.judged)}"
    if not stored_evaluation.withheld:
        done += f": {SUCCESS.cell(stored_evaluation, percent, ends=True)}"
    facts(
        console,
        [
            ("succeeded", done),
            *([("judged", judged_text(stored_evaluation))] if stored_evaluation.eventful else []),
            ("executions", number(told.executions)),
            ("cost", f"{told.cost:.6f} USD, {told.alternatives_cost:.6f} USD for alternatives"),
            ("cheaper", f"{counted(told.alternatives_passed, 'alternative')} could do it as well"),
            ("latency", f"{told.mean_latency:.2f} s on average"),
            *([("refused", f"{refused} with {_REFUSED}")] if told.refused else []),
            ("log", shown_path(log)),
            ("run", shown_path(run)),
        ],
    )
    prepare = f"tutelage orchestrate prepare --logs {shown_path(log.parent)}"
    say(console, ("\nNext:", "bold"), f" {prepare} --output training_data.json")
