"""`tutelage orchestrate run "..."`: plan an instruction and execute it, live, within a budget.

A run folder holds the plan with its log (`execution.jsonl`), from which `--resume` goes on after a
kill, the store with the trace that `tutelage show` draws, and the result. Progress goes to the
error stream, the result to standard output: on a terminal a table of nodes is redrawn in place,
elsewhere each node that ends gives one line. Exit codes: 0 done, 1 the execution failed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import typer

from tutelage.cli.failures import tell
from tutelage.cli.options import AsJson
from tutelage.cli.orchestrate_result import show_result, usd
from tutelage.cli.orchestrate_tools import Permission, check_place, check_terminal, keep_place
from tutelage.cli.orchestrate_unplanned import keep_unplanned, spent_words
from tutelage.config.fields import Section
from tutelage.errors import ConfigError, DataError, RunError, TutelageError
from tutelage.orchestration.execution.config import ExecutionConfig
from tutelage.orchestration.execution.worker_files import describe_pool
from tutelage.orchestration.plan.arguments import check_arguments
from tutelage.orchestration.planner.choose import ChosenPlan, Sure, choose_plan, llm_planner
from tutelage.runs.progress import Progress
from tutelage.tools.registry import close_tools

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tutelage.orchestration.execution.record import Execution
    from tutelage.orchestration.execution.system import OrchestrationSystem
    from tutelage.orchestration.plan.catalog import Catalog
    from tutelage.orchestration.plan.dag import Plan
    from tutelage.orchestration.planner.llm import LLMPlanner
    from tutelage.runs.folder import RunFolder
    from tutelage.runs.lifecycle import Run
    from tutelage.tools.tool import Tool
    from tutelage.types import JSON

_ROWS = 20
"""Nodes of a table that is redrawn."""


class _Warnings(Progress):
    """Shows what is worth a line; the execution itself has a display of its own."""

    worked = True
    """What has a folder is checked, so an error is one of its nodes."""

    def note(self, text: str) -> None:
        """Say it."""
        from tutelage.cli.failures import tell

        tell(text)


class _Prepared(NamedTuple):
    asked: ExecutionConfig
    plan: Plan
    system: OrchestrationSystem
    told: dict[str, str]
    """Which workers and whose plan, in words."""
    permission: Permission
    tools: dict[str, Tool]
    """Those that run."""
    llm: LLMPlanner | None
    """The model that plans further, where there is one."""
    planned_from: float | None
    """When planning began, in seconds since 1970; None for a plan that was there."""
    sure: Sure | None


class _RunFlags(Section):
    """How an execution is resumed and shown."""

    resume: str | None = None
    """Continue a run that was stopped; nothing else is read."""
    otlp: str | None = None
    """Send the trace to this collector as well."""


def run(asked: ExecutionConfig, flags: _RunFlags, as_json: AsJson = False) -> None:
    """Plan an instruction and run it, live, within a budget."""
    from tutelage.orchestration.execution.runs import RECIPE
    from tutelage.runs.folder import check_vacant, create, find, place_of
    from tutelage.runs.trust import check_trusted, code_of

    if flags.resume is not None:
        changes, folder = asked.allow_changes, _fixed(find(flags.resume))
        check_trusted(folder, code_of(folder), trust=False)
        _go_on(folder, otlp=flags.otlp, as_json=as_json, allow_changes=changes, yes=asked.yes)
        return
    if asked.output is not None:
        check_vacant(Path(asked.output))  # planning may cost something
    began = time.time()
    try:
        prepared = _prepare(asked)
    except (TutelageError, KeyboardInterrupt) as error:
        keep_unplanned(asked, error, flags.otlp, began)
        raise
    folder = _fixed(create(place_of(asked.output, RECIPE)))
    _finish(folder, prepared, flags.otlp, as_json)


def _fixed(folder: RunFolder) -> RunFolder:
    """The folder by its whole path, since tools may change the working directory."""
    return type(folder)(folder.path.absolute())


def _go_on(
    folder: RunFolder,
    *,
    otlp: str | None = None,
    as_json: bool = False,
    allow_changes: bool = False,
    yes: bool = False,
) -> None:
    """Continue a run that was stopped or killed. Raises `RunError` for one that has ended."""
    from tutelage.cli.console import shown_path
    from tutelage.orchestration.execution.runs import PLAN, ExecutionRun
    from tutelage.runs.figures import read_object
    from tutelage.runs.kinds import name_of, stored_settings

    if name_of(folder) != ExecutionRun.name:
        raise RunError(f"{folder.name!r} is no run of tutelage orchestrate run")
    if folder.read_result() is not None:
        raise RunError(
            f"{folder.name!r} has ended; look at it: tutelage show {shown_path(folder.path)}"
        )
    if not (folder.path / PLAN).is_file():
        recipe = read_object(folder.config)["config"]["recipe"]
        raise RunError(
            f"{folder.name!r} executed many plans, which no resume continues; begin again with "
            f"another --output: tutelage orchestrate {recipe}"
        )
    if not allow_changes:
        check_place(folder)
    stored = stored_settings(folder, ExecutionConfig)
    own = {
        "plan": folder.path / PLAN,
        "checkpoint": None,
        "allow_changes": allow_changes,
        "yes": yes or stored.yes,
    }
    asked = stored.model_copy(update=own)
    _finish(folder, _prepare(asked, begun=True), otlp, as_json)


def resume(folder: RunFolder, allow_changes: bool) -> None:
    """Continue an execution and show its result."""
    _go_on(_fixed(folder), allow_changes=allow_changes)


def show(console: Console, folder: RunFolder) -> None:
    """The execution of a plan with its trace, or the totals of many; how to go on when stopped."""
    from tutelage.cli.console import facts, number, one_line, say
    from tutelage.cli.rollout_list import show_one, show_stored
    from tutelage.cli.runs import say_state
    from tutelage.orchestration.execution.runs import PLAN
    from tutelage.runs.stored import open_run

    result = folder.read_result()
    say(console, ("Execution ", "bold"), (folder.name, "bold"))
    if not (folder.path / PLAN).is_file():
        told = (result or {"status": "stopped or running"}).items()
        numeric = int | float
        words = [(k, number(v) if isinstance(v, numeric) else one_line(v, 100)) for k, v in told]
        facts(console, words, indent=2)
        show_stored(console, folder, lambda store, run_id: store.rollouts(run_id, limit=3))
        return
    if result is None:
        say_state(console, folder)
        return
    with open_run(folder) as (store, run_id):
        for rollout in store.rollouts(run_id):
            show_one(console, rollout.id, str(folder.path), tokens=False, content=False)


def _finish(folder: RunFolder, prepared: _Prepared, otlp: str | None, as_json: bool) -> None:
    from tutelage.cli.job import watched
    from tutelage.orchestration.execution.runs import JOURNAL, ExecutionRun
    from tutelage.runs import lifecycle

    executed: list[Execution] = []

    def work(run: Run) -> JSON:
        execution = _execute(prepared, run)
        executed.append(execution)
        run.failed = not execution.success
        return {
            "status": "failed" if run.failed else "succeeded",
            "success": execution.success,
            "cost": execution.total_cost,
            "latency_ms": execution.total_latency_ms,
            **{name: getattr(execution, name) for name in ("reason", "rollout")},
        }

    def check() -> None:
        check_terminal(folder.path / JOURNAL, prepared.tools)

    job = ExecutionRun(prepared.asked, work, prepared.plan, otlp=otlp, check=check)
    warnings = _Warnings()
    with ExitStack() as stack:
        stack.enter_context(watched(folder, warnings, "What ended, and what was spent, is kept."))
        stack.callback(close_tools, prepared.tools)
        if folder.config.is_file():
            allowed = prepared.asked.allow_changes
            lifecycle.resume(ExecutionRun, folder, warnings, job, allow_changes=allowed)
        else:
            lifecycle.start(job, folder, warnings)
    (execution,) = executed
    show_result(folder, execution, prepared.asked.reward, as_json, prepared.sure)
    if not execution.success:
        raise typer.Exit(1)


def _execute(prepared: _Prepared, run: Run) -> Execution:
    """Execute the plan in its run, seen while it goes on."""
    from tutelage.orchestration.execution.runs import JOURNAL
    from tutelage.orchestration.execution.stored import ExecutionRecorder

    asked, plan, system = prepared.asked, prepared.plan, prepared.system
    fields, permission = prepared.told, prepared.permission
    system.recorder = ExecutionRecorder(run.writer, run.id, asked.reward)
    if system.execution_logger is not None:
        system.execution_logger.run_id = run.id
    journal, instruction = run.folder.path / JOURNAL, plan.instruction
    if prepared.tools:
        keep_place(run, prepared.llm)
    # What tools print is none of the result, which may be asked for as JSON.
    with redirect_stdout(sys.stderr), _progress(plan, fields, permission) as watch:
        return system.execute(
            instruction, plan=plan, budget=asked.budget, name="run", observers=watch,
            journal=journal, planned_from=prepared.planned_from,
        )  # fmt: skip


def _prepare(asked: ExecutionConfig, *, begun: bool = False) -> _Prepared:
    """Plan and system, everything refused that can be before a folder is made."""
    from tutelage.cli.console import fetch, waiting

    tools, permission = asked.load_tools(), Permission(yes=asked.yes)
    pool, catalog = asked.make_pool_with(tools, permission), asked.read_catalog_with(tools)
    began = time.time() if asked.plan is None else None
    if asked.endpoint is None:
        fetch(asked.model)
    with waiting("loading the planner ..."):
        llm = llm_planner(asked, tools, catalog)
    try:
        chosen = _planned(asked, catalog, tools, llm)
        if asked.plan is not None and tools and not begun:
            check_arguments(chosen.plan, tools)  # a model corrects its own plans
        system = asked.make_system(pool, catalog, [chosen.plan], planner=chosen.llm, warn=tell)
        system.check(chosen.plan, asked.budget, begun=begun)
    except (TutelageError, KeyboardInterrupt) as error:
        if llm is not None and llm.calls:
            error.calls = tuple(llm.calls)  # pyright: ignore[reportAttributeAccessIssue]
            tell(spent_words(llm))
        raise
    told = {"workers": describe_pool(pool), "plan": chosen.source}
    parts = (chosen.llm, began, chosen.sure)
    return _Prepared(asked, chosen.plan, system, told, permission, tools, *parts)


def _planned(
    asked: ExecutionConfig,
    catalog: Catalog | None,
    tools: Mapping[str, Tool],
    llm: LLMPlanner | None,
) -> ChosenPlan:
    instruction, path = asked.instruction, asked.plan
    if path is not None:
        from tutelage.orchestration.data.rows import read_json
        from tutelage.orchestration.execution.journal import read_plan

        if asked.checkpoint is not None:
            raise ConfigError("--plan and --checkpoint both give the plan; leave one out")
        try:
            row: Any = read_json(path)
            if isinstance(row, dict) and instruction is not None:
                row = {"instruction": instruction, **cast("dict[str, object]", row)}
            plan = read_plan(row)
        except DataError as error:
            text = str(error)
            raise DataError(text if str(path) in text else f"{str(path)!r}: {text}") from error
        if not plan.nodes:
            raise DataError(f"{str(path)!r}: the plan has no nodes; give it at least one")
        whole = replace(plan, instruction=instruction or plan.instruction)
        return ChosenPlan(whole, str(path), llm)
    if instruction is None or not instruction.strip():
        raise ConfigError('say what is to be done: tutelage orchestrate run "..."')
    return choose_plan(asked, instruction, catalog, tools, llm)


@dataclass(slots=True)
class _NodeLine:
    """One node as far as it is."""

    tool: str
    state: str = "waits"
    worker: str = ""
    tries: int = 0
    cost: float = 0.0


def _take(rows: list[_NodeLine], event: dict[str, Any]) -> int | None:
    """Bring a row up to date; returns a node that ended."""
    kind = event["event"]
    if kind == "dispatch":
        row = rows[event["node"]]
        row.state, row.worker, row.tries = "runs", event["worker"], row.tries + 1
    elif kind == "answer":
        rows[event["node"]].cost += float(event["answer"]["cost"])
    elif kind == "step" and event["step"]["requests"]:
        # Answers were counted as they came; a judge's verdict comes with the step.
        judged = float((event["step"]["verdict"] or {}).get("cost", 0.0))
        rows[event["step"]["node"]].cost += judged
    elif kind == "node":
        result = event["result"]
        row = rows[result["node"]]
        row.state = result["status"]
        row.worker = result["worker"] or result["reason"] or row.worker
        return result["node"]
    rows += [_NodeLine(node["tool"]) for node in _added(event)]
    return None


def _added(event: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes that an event adds: by a further plan, of this process or of an earlier one."""
    return event.get({"start": "added", "replan": "nodes"}.get(event["event"], ""), [])


def _drawing(plan: Plan, console: Console) -> Callable[[dict[str, Any]], None]:
    """An observer that draws the nodes of further plans, before they run."""
    from tutelage.cli.console import say, visible
    from tutelage.orchestration.execution.journal import read_nodes
    from tutelage.orchestration.plan.dag import to_text

    def draw(event: dict[str, Any]) -> None:
        nonlocal plan
        if rows := _added(event):
            first = len(plan.nodes)
            plan = replace(plan, nodes=(*plan.nodes, *read_nodes(rows)))
            say(console, ("further plan:", "dim"))
            say(console, visible(to_text(plan, first)))

    return draw


@contextmanager
def _progress(
    plan: Plan, told: dict[str, str], permission: Permission
) -> Generator[Sequence[Callable[[dict[str, Any]], None]]]:
    """Draws the plan, and observers that show what happens, on the error stream."""
    from tutelage.cli.console import messages, say, visible
    from tutelage.orchestration.plan.dag import to_text

    console, rows = messages(), [_NodeLine(node.tool) for node in plan.nodes]
    for name, words in told.items():
        say(console, (f"{name}: ", "dim"), words)
    say(console, visible(to_text(plan)))
    if not console.is_terminal or console.is_dumb_terminal:
        yield [_drawing(plan, console), lambda event: _line(console, rows, _take(rows, event))]
        return
    from rich.live import Live

    with Live(_table(rows), console=console, transient=True, auto_refresh=False) as live:

        def show(event: dict[str, Any]) -> None:
            _take(rows, event)
            live.update(_table(rows), refresh=True)

        permission.display = live
        yield [_drawing(plan, console), show]


def _line(console: Console, rows: list[_NodeLine], node: int | None) -> None:
    from tutelage.cli.console import one_line, say, visible

    if node is not None:
        row = rows[node]
        message = f"[{node}] {row.tool}: {row.state}"
        # A reason may have what a tool wrote.
        told = f"  {one_line(row.worker, 300)} {usd(row.cost)}"
        say(console, visible(message), (told, "dim"))


def _table(rows: list[_NodeLine]) -> Table:
    from tutelage.cli.console import plain_table, visible

    table = plain_table("#", "subtask", "state", "worker", "tries", "cost", right=("#", "tries"))
    for index, row in enumerate(rows[:_ROWS]):
        style = {"runs": "cyan", "failed": "red", "succeeded": "green"}.get(row.state, "dim")
        words = (visible(row.tool), row.state, visible(row.worker))
        table.add_row(str(index), *words, str(row.tries), usd(row.cost), style=style)
    if len(rows) > _ROWS:
        spent = sum(row.cost for row in rows)
        table.add_row("", f"and {len(rows) - _ROWS} more", "", "", "", usd(spent))
    return table
