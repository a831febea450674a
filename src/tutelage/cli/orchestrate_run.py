"""`tutelage orchestrate run "..."`: plan an instruction and execute it, live, within a budget.

A run folder holds the plan and the store, whose events `--resume` goes on from after a kill, and
whose trace `tutelage show` draws, and the result. Progress goes to the error stream, a line for
each node that ends; the result to standard output. Before a tool with side effects runs, the person
at the terminal is asked. Exit codes: 0 done, 1 the execution failed.
"""

from __future__ import annotations

import json
import math
import sys
import time
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from tutelage.cli.failures import tell
from tutelage.cli.options import AsJson
from tutelage.config.fields import Section
from tutelage.errors import ConfigError, DataError, RunError, TutelageError, counted
from tutelage.orchestration.evaluation.rewards import DEADLINE
from tutelage.orchestration.execution.config import ExecutionConfig
from tutelage.orchestration.execution.worker_files import describe_pool
from tutelage.orchestration.plan.arguments import check_arguments
from tutelage.orchestration.planner.choose import ChosenPlan, choose_plan, llm_planner
from tutelage.runs.progress import Progress
from tutelage.tools.registry import close_tools

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.orchestration.execution.record import Event, Execution, Observer
    from tutelage.orchestration.execution.system import OrchestrationSystem
    from tutelage.orchestration.plan.dag import Plan
    from tutelage.runs.folder import RunFolder
    from tutelage.runs.lifecycle import Run
    from tutelage.tools.tool import Tool
    from tutelage.types import JSON

_BEGAN = "tools_began"
_SHOWN, _LINES, _REASON = 120, 6, 300
"""Characters of a call or of its result, lines of an output, characters of why a node failed."""


class _Warnings(Progress):
    """Shows what is worth a line; the execution itself has a display of its own."""

    worked = True
    """What has a folder is checked, so an error is one of its nodes."""

    def note(self, text: str) -> None:
        """Say it."""
        tell(text)


@dataclass(frozen=True, slots=True)
class _Job:
    """An execution that can begin."""

    asked: ExecutionConfig
    chosen: ChosenPlan
    system: OrchestrationSystem
    tools: dict[str, Tool]
    """Those that run."""
    planned_from: float | None
    """When planning began, in seconds since 1970; None for a plan that was there."""


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
        folder = find(flags.resume)
        check_trusted(folder, code_of(folder), trust=False)
        _go_on(folder, flags.otlp, as_json, allow_changes=asked.allow_changes, yes=asked.yes)
        return
    if asked.output is not None:
        check_vacant(Path(asked.output))  # planning may cost something
    began = time.time()
    try:
        job = _prepare(asked)
    except (TutelageError, KeyboardInterrupt) as error:
        _keep_unplanned(asked, error, flags.otlp, began)
        raise
    _finish(create(place_of(asked.output, RECIPE)), job, flags.otlp, as_json)


def resume(folder: RunFolder, allow_changes: bool) -> None:
    """Continue an execution and show its result."""
    _go_on(folder, None, False, allow_changes=allow_changes, yes=False)


def _go_on(
    folder: RunFolder, otlp: str | None, as_json: bool, *, allow_changes: bool, yes: bool
) -> None:
    """Continue a run that was stopped or killed. Raises `RunError` for one that has ended, or whose
    tools would work in another directory."""
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
    places = [event["place"] for event in folder.read_events() if event["event"] == _BEGAN]
    if places and Path(places[-1]) != Path.cwd() and not allow_changes:
        raise RunError(
            f"{folder.name!r} ran in {places[-1]!r}, and a relative path is another file here: "
            "resume it there, or here with --allow-changes"
        )
    stored = stored_settings(folder, ExecutionConfig)
    own = {"plan": folder.path / PLAN, "checkpoint": None, "yes": yes or stored.yes}
    asked = stored.model_copy(update={**own, "allow_changes": allow_changes})
    _finish(folder, _prepare(asked, begun=True), otlp, as_json)


def _prepare(asked: ExecutionConfig, *, begun: bool = False) -> _Job:
    """Plan and system, everything refused that can be before a folder is made."""
    from tutelage.cli.console import fetch, waiting
    from tutelage.orchestration.data.rows import read_json
    from tutelage.orchestration.execution.permission import Permission
    from tutelage.orchestration.execution.record import read_plan

    tools, instruction, path = asked.load_tools(), asked.instruction, asked.plan
    permission = Permission(ask_person if sys.stdin.isatty() else None, yes=asked.yes)
    pool, catalog = asked.make_pool_with(tools, permission), asked.read_catalog_with(tools)
    began = time.time() if path is None else None
    if asked.endpoint is None:
        fetch(asked.model)
    with waiting("loading the planner ..."):
        llm = llm_planner(asked, tools, catalog)
    try:
        if path is not None:
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
            plan = replace(plan, instruction=instruction or plan.instruction)
            if tools and not begun:
                check_arguments(plan, tools)  # a model corrects its own plans
            chosen = ChosenPlan(plan, str(path), llm)
        elif instruction is None or not instruction.strip():
            raise ConfigError('say what is to be done: tutelage orchestrate run "..."')
        else:
            chosen = choose_plan(asked, instruction, catalog, tools, llm)
        system = asked.make_system(pool, catalog, [chosen.plan], planner=chosen.llm, warn=tell)
        system.check(chosen.plan, asked.budget, begun=begun)
    except (TutelageError, KeyboardInterrupt) as error:
        if calls := () if llm is None else tuple(llm.calls):
            error.calls = calls  # pyright: ignore[reportAttributeAccessIssue]
            read, written = sum(c.tokens_in for c in calls), sum(c.tokens_out for c in calls)
            priced = llm is not None and llm.priced
            cost = f"{math.fsum(c.cost for c in calls):.6f} USD" if priced else "unknown"
            bound = [c for c in calls if not c.tokens_in and not c.tokens_out and c.cost]
            left = f", {len(bound)} without an answer, at its bound" if bound else ""
            tell(
                f"Planning made {counted(len(calls), 'request')}{left}: {read} tokens read, "
                f"{written} written, cost {cost}."
            )
        raise
    return _Job(asked, chosen, system, tools, began)


def _finish(folder: RunFolder, job: _Job, otlp: str | None, as_json: bool) -> None:
    """Execute the plan in its run, seen while it goes on, and show the result."""
    from tutelage.cli.console import messages, say
    from tutelage.cli.job import watched
    from tutelage.orchestration.execution.record import fold
    from tutelage.orchestration.execution.runs import ExecutionRun
    from tutelage.orchestration.execution.stored import ExecutionRecorder
    from tutelage.orchestration.execution.system import execution_seeds
    from tutelage.runs import lifecycle
    from tutelage.runs.stored import open_run

    folder = type(folder)(folder.path.absolute())  # tools may change the working directory
    asked, plan, system, executed = job.asked, job.chosen.plan, job.system, list["Execution"]()

    def work(run: Run) -> JSON:
        system.recorder = ExecutionRecorder(run.writer, run.id, asked.reward)
        if system.execution_logger is not None:
            system.execution_logger.run_id = run.id
        if job.tools:
            run.event(_BEGAN, place=str(Path.cwd()))
        say(messages(), ("workers: ", "dim"), describe_pool(system.pool))
        say(messages(), ("plan: ", "dim"), job.chosen.source)
        # What tools print is none of the result, which may be asked for as JSON.
        with redirect_stdout(sys.stderr):
            execution = system.execute(
                plan.instruction, plan=plan, budget=asked.budget, name="run", journal=run.store,
                observers=[_progress(plan)], planned_from=job.planned_from,
            )  # fmt: skip
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
        """Raise `RunError` where a call with side effects may have been done by a run that was
        killed, and there is no terminal to ask at: refused, it would end the run."""
        if sys.stdin.isatty() or not folder.store.is_file():
            return
        seeds = execution_seeds(asked.seed, "run")
        with open_run(folder) as (store, run_id):
            events = store.events(run_id, seeds.id("roll"))
        steps = fold(events, seeds).steps.values() if events else ()
        cut = [s.worker for s in steps if s.verdict is None and s.answer and s.answer.arguments]
        if calls := [name for name in cut if name in job.tools and job.tools[name].destructive]:
            raise RunError(
                f"{', '.join(calls)}: such a call may have been done already, by a run that was "
                "killed, and there is no terminal to ask at; look whether it was, then resume at "
                "one, and answer `done` where it was"
            )

    kind, warnings = ExecutionRun(asked, work, plan, otlp=otlp, check=check), _Warnings()
    with ExitStack() as stack:
        stack.enter_context(watched(folder, warnings, "What ended, and what was spent, is kept."))
        stack.callback(close_tools, job.tools)
        if folder.config.is_file():
            allowed = asked.allow_changes
            lifecycle.resume(ExecutionRun, folder, warnings, kind, allow_changes=allowed)
        else:
            lifecycle.start(kind, folder, warnings)
    _show_result(folder, executed[0], job, as_json)
    if not executed[0].success:
        raise typer.Exit(1)


def ask_person(question: str, forms: str) -> str:
    """Put a question about a call to the person at the terminal, and return the line that is typed.
    What was typed before cannot have answered it and is dropped."""
    from tutelage.cli.console import messages, say, visible

    say(messages(), (f"\n{visible(question)}", "bold yellow"))
    with suppress(ImportError, OSError, ValueError):  # no terminals of this kind here
        import termios

        with suppress(termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    more = f"({forms}) " if "done" in forms else ""
    messages().print(f"Run it? [y/N] {more}", end="", markup=False)
    return sys.stdin.readline()


def _keep_unplanned(
    asked: ExecutionConfig,
    error: TutelageError | KeyboardInterrupt,
    otlp: str | None,
    began: float,
) -> None:
    """Keep requests of planning that gave no plan which begins, where there are any, in the folder
    of a run that failed: they cost something. Planning began at `began`, in seconds since 1970."""
    from tutelage.cli.console import shown_path
    from tutelage.orchestration.execution.record import Execution
    from tutelage.orchestration.execution.runs import RECIPE, ExecutionRun
    from tutelage.orchestration.execution.stored import ExecutionRecorder
    from tutelage.orchestration.execution.system import execution_seeds
    from tutelage.orchestration.plan.dag import LatePlanError, Plan
    from tutelage.runs import lifecycle
    from tutelage.runs.folder import create, place_of
    from tutelage.types import Sampling

    calls: Any = getattr(error, "calls", ())
    if not calls:
        return
    stopped, seeds = isinstance(error, KeyboardInterrupt), execution_seeds(asked.seed, "run")
    reason = "stopped before there was a plan" if stopped else str(error)
    late = DEADLINE if isinstance(error, LatePlanError) else ""
    execution = Execution.of(
        Plan(asked.instruction or "", (), calls), (), (), id=seeds.id("flow"), seeds=seeds,
        router=asked.router, unplanned=reason, reason=late,
    )  # fmt: skip
    seconds = time.time() - began

    def work(run: Run) -> JSON:
        recorder = ExecutionRecorder(run.writer, run.id, asked.reward)
        recorder(execution, Sampling(0.0, max_tokens=asked.max_tokens), began, seconds)
        run.failed = True
        return {
            "status": "stopped" if stopped else "failed",
            "success": False,
            "cost": execution.total_cost,
            "latency_ms": execution.total_latency_ms,
            "reason": late or reason,
            "rollout": execution.rollout,
        }

    with suppress(TutelageError):  # such as a folder of another run: the refusal is what matters
        folder = create(place_of(asked.output, RECIPE))
        lifecycle.start(ExecutionRun(asked, work, otlp=otlp), folder, Progress())
        tell(f"What was asked is kept: tutelage show {shown_path(folder.path)}")
        if stopped and asked.output is not None:
            error.add_note("The same command with another --output begins again.")


# ---------------------------------------------------------------- what is seen


def _progress(plan: Plan) -> Observer:
    """An observer that draws the plan and further ones on the error stream, and has a line for each
    node that ends."""
    from tutelage.cli.console import messages, one_line, say, visible
    from tutelage.orchestration.execution.record import read_nodes
    from tutelage.orchestration.plan.dag import to_text

    console, costs = messages(), dict[int, float]()
    say(console, visible(to_text(plan)))

    def show(event: Event) -> None:
        nonlocal plan
        if added := event.get({"start": "added", "replan": "nodes"}.get(event["event"], "")):
            first = len(plan.nodes)
            plan = replace(plan, nodes=(*plan.nodes, *read_nodes(added)))
            say(console, ("further plan:", "dim"))
            say(console, visible(to_text(plan, first)))
        elif event["event"] == "step":
            step = event["step"]
            costs[step["node"]] = costs.get(step["node"], 0.0) + step["cost"]
        elif event["event"] == "node":
            node, ended = event["result"]["node"], event["result"]
            who = one_line(ended["worker"] or ended["reason"], _REASON)  # it may be a tool's words
            words = f"[{node}] {plan.nodes[node].tool}: {ended['status']}"
            say(console, visible(words), (f"  {who} {costs.get(node, 0.0):.6f}", "dim"))

    return show


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


def _show_result(folder: RunFolder, execution: Execution, job: _Job, as_json: bool) -> None:
    """The nodes, the sums, the last outputs, and where to look next; or all of it as JSON."""
    from tutelage.cli.console import (
        facts,
        one_line,
        output,
        plain_table,
        say,
        shown_path,
        visible,
    )
    from tutelage.orchestration.execution.record import plan_json, steps_by_node

    reward, sure, plan = execution.earned(job.asked.reward).value, job.chosen.sure, execution.plan
    if as_json:
        first = ("id", "success", "reason", "outputs")
        first += ("total_cost", "total_latency_ms", "verified_fraction")
        more = ("mock", "pool", "router", "path", "resumed")
        row = {
            **{name: getattr(execution, name) for name in first},
            "reward": reward,
            **{name: getattr(execution, name) for name in more},
            "confidence": sure and sure.confidence,
            "min_confidence": sure and sure.least,
            "plan": plan_json(plan),
            "nodes": [asdict(node) for node in execution.nodes],
            "steps": [step.to_json() for step in execution.steps],
            "run": shown_path(folder.path),
            "rollout": execution.rollout,
        }
        typer.echo(json.dumps(row, indent=2, ensure_ascii=False))
        return
    console, steps = output(), steps_by_node(execution.steps)
    table = plain_table(
        "#", "subtask", "after", "result", "worker", "tries", "USD", "seconds",
        right=("#", "tries", "USD", "seconds"),
    )  # fmt: skip
    for node in execution.nodes:
        mine, planned = steps.get(node.node, ()), plan.nodes[node.node]
        words = node.status if node.checked or not node.kept else f"{node.status}, unchecked"
        if not node.kept and node.status != "skipped":
            first = node.status == "cancelled" and node.reason == "failed"
            words += f": {'another subtask failed (fail_fast)' if first else node.reason}"
        table.add_row(
            str(node.node), visible(planned.tool), ", ".join(map(str, planned.parents)),
            one_line(words, _REASON), visible(node.worker or ""),
            str(sum(step.worker is not None for step in mine)),
            f"{sum(step.cost for step in mine):.6f}", f"{node.seconds:.2f}",
        )  # fmt: skip
    console.print(table)
    say(console)
    facts(console, [(name, text) for name, text in _sums(execution, job).items() if text])
    _show_outputs(console, execution)
    kept = shown_path(folder.path)
    say(console, ("\nTrace:", "bold"), f" tutelage show {execution.rollout} --run {kept}")
    if execution.reason == DEADLINE:
        say(console, ("What had ended is kept in ", "dim"), kept)


def _sums(execution: Execution, job: _Job) -> dict[str, str]:
    """The sums, in words; empty where there is nothing to say."""
    from tutelage.cli.console import number, one_line

    plan, sure, reason = execution.plan, job.chosen.sure, execution.reason
    path = " -> ".join(plan.nodes[node].tool for node in execution.path) or "nothing"
    planning = f", {plan.seconds:.2f} of them planning," if plan.seconds else ""
    reason = "ended at the first failed subtask (fail_fast)" if reason == "failed" else reason
    state = "succeeded" if execution.success else f"failed{f', {reason}' if reason else ''}"
    fields = {
        "execution": state + (" (a mock: no model was asked)" if execution.mock else ""),
        "cost": f"{execution.total_cost:.6f} USD",
        "latency": f"{execution.total_latency_ms / 1000:.2f} s{planning} along "
        f"{one_line(path, 80)}",
        "reward": f"{number(execution.earned(job.asked.reward).value)} ({job.asked.reward})",
    }
    if sure is not None:
        own, least = (f"{100 * share:.0f} %" for share in sure)
        fields["planner"] = f"{own} sure of its plan; {least} is the least"
    if execution.abandoned:
        lost = counted(len(execution.abandoned), "node")
        fields["replanned"] = f"{lost} failed or skipped, replaced by nodes of a further plan"
    fields["no further plan"] = one_line(execution.unplanned, 200)
    if execution.resumed:
        fields["resumed"] = f"{counted(execution.resumed, 'node')} done before"
    return fields


def _show_outputs(console: Console, execution: Execution) -> None:
    """What tools were given, and what they gave; what the last nodes gave that is not shown yet."""
    from tutelage.cli.console import one_line, say, visible
    from tutelage.orchestration.plan.arguments import shown_type

    plan = execution.plan
    shown, last = set[int](), execution.answers

    def lines(text: str) -> None:
        parts = visible(text).split("\n")
        for line in parts[:_LINES]:
            say(console, f"  {line}")
        if len(parts) > _LINES:
            say(console, (f"  and {counted(len(parts) - _LINES, 'more line')}", "dim"))

    for step in execution.steps:  # what tools were given, and what they gave
        answer = step.answer
        if answer is None or answer.arguments is None:
            continue
        called = f"\n[{step.node}] {visible(plan.nodes[step.node].tool)} "
        say(console, (called, "bold"), one_line(answer.arguments, _SHOWN))
        if answer.error is not None:
            say(console, ("  error: ", "red"), one_line(answer.error.message, _SHOWN))
            continue
        shown.add(step.node)
        kind = f"  {shown_type(answer.output)}:"
        if answer.nothing:
            say(console, ("  nothing", "dim"))
        elif step.node in last and (len(answer.output) > _SHOWN or "\n" in answer.output):
            say(console, (kind, "dim"))
            lines(answer.output)
        else:
            say(console, (f"{kind} ", "dim"), one_line(answer.output, _SHOWN))
    for node, text in last.items():
        if node not in shown:
            say(console, (f"\n[{node}] {visible(plan.nodes[node].tool)}", "bold"))
            lines(text)
