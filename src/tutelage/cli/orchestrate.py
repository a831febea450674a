"""`tutelage orchestrate plan | run | collect | tools`.

`plan` prints the plan of an instruction and, on request, the expected cost and latency of its first
workers. `run` plans and executes. Its run folder holds the plan, the result and the store; after a
kill, `tutelage resume` continues from the events in the store, and `tutelage show` prints the
trace. Progress goes to stderr, and the user at the terminal is asked before a tool with side
effects runs. Exit codes: 0 on success, 1 if the execution failed. `collect` executes many
instructions and logs them, and can make a training set from logs. `tools` lists the tools available
for planning. The handlers of `resume` and `show` for these runs are also in this module.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from tutelage.cli.console import (
    echo,
    echo_pairs,
    echo_text,
    escape,
    fetch,
    format_path,
    messages,
    number,
    output,
    plain_table,
    shorten,
    show_status,
    to_cell,
)
from tutelage.cli.failures import PLAIN_TEXT, warn
from tutelage.cli.job import report_stop
from tutelage.cli.options import AsJson, Traces, as_command
from tutelage.config.fields import Paths, Share
from tutelage.errors import ConfigError, DataError, RunError, TutelageError, pluralize
from tutelage.files import write_files
from tutelage.orchestration.data.collect import CollectConfig, run_collection
from tutelage.orchestration.data.prepare import write_training_set
from tutelage.orchestration.data.rows import read_json
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.evaluation.rewards import DEADLINE
from tutelage.orchestration.execution.config import ExecutionConfig, PlanningConfig, ToolsConfig
from tutelage.orchestration.execution.executor import Executor
from tutelage.orchestration.execution.permission import Permission
from tutelage.orchestration.execution.record import (
    Event,
    Execution,
    Observer,
    group_steps,
    plan_to_json,
    read_nodes,
    read_plan,
)
from tutelage.orchestration.execution.runs import PLAN, RECIPE, ExecutionRun
from tutelage.orchestration.execution.stored import ExecutionRecorder
from tutelage.orchestration.execution.worker_files import describe_pool
from tutelage.orchestration.execution.workers import capable_workers
from tutelage.orchestration.plan.arguments import check_arguments
from tutelage.orchestration.plan.dag import Plan, critical_path, to_text
from tutelage.orchestration.planner.choose import (
    ChosenPlan,
    choose_plan,
    llm_planner,
    trained_planner,
)
from tutelage.orchestration.routing.contract import cheapest_router
from tutelage.runs import lifecycle
from tutelage.runs.folder import RunFolder, check_vacant, create, run_path
from tutelage.runs.kinds import load_settings
from tutelage.runs.progress import Progress
from tutelage.runs.stored import open_run
from tutelage.tools.registry import close_tools

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.runs.lifecycle import Run
    from tutelage.types import JSON

_SHOWN, _LINES, _REASON = 120, 6, 300
"""Maximum characters of a call, lines of an output, and characters of a failure reason."""


def orchestrate_app() -> typer.Typer:
    """Return the command group `orchestrate` with its subcommands."""
    group = typer.Typer(
        help="Plan an instruction as a graph of subtasks, and run it.",
        no_args_is_help=True,
        **PLAIN_TEXT,
    )
    group.command("plan")(as_command(_plan, "instruction"))
    group.command("run")(as_command(_run, "instruction"))
    group.command("collect")(as_command(_collect))
    group.command("tools")(as_command(_tools))
    return group


# ---------------------------------------------------------------- plan and tools


class _PlanConfig(PlanningConfig):
    """Options of `orchestrate plan`."""

    instruction: str
    """Instruction in plain words."""
    explain: bool = False
    """Show the workers, and the expected cost and latency of each subtask."""
    out: Path | None = None
    """Write the plan as .txt, or as .json for run --plan."""
    checkpoint: Path | None = None
    """Trained planner: a run of train planner, or its checkpoint file."""
    min_confidence: Share | None = None
    """Minimum confidence of the planner; default: its own minimum."""


def _plan(config: _PlanConfig) -> None:
    """Print the plan of an instruction without executing it."""
    out = config.out
    if not config.instruction.strip():
        raise ConfigError(f"the instruction is empty: {config.instruction!r}; describe the task")
    if out is not None and out.suffix not in (".json", ".txt"):
        raise ConfigError(f"--out {str(out)!r} must end in .json or .txt")
    catalog, pool = config.read_catalog(), config.make_pool()
    model, source = trained_planner(config.checkpoint, catalog)
    plan = model.plan(config.instruction, config.min_confidence)
    echo(output(), escape(to_text(plan)))
    if config.explain:
        executor = Executor(pool, cheapest_router(), catalog=catalog or builtin_graph().catalog)
        columns = ("node", "subtask", "kind", "after", "worker", "USD", "seconds")
        table, costs, seconds = plain_table(*columns, right=columns[-2:]), [0.0], list[float]()
        for index, node in enumerate(plan.nodes):
            work = executor.make_subtask(plan, index, {})
            pairs = zip(pool.workers, capable_workers(pool.workers, work), strict=True)
            estimates = [(pool.estimate(worker, work), worker.name) for worker, can in pairs if can]
            first, worker = min(estimates, key=lambda each: (each[0].cost, each[0].seconds))
            parents = ", ".join(map(str, node.parents))
            cells = map(escape, (node.tool, work.kind, parents, worker))
            table.add_row(str(index), *cells, number(first.cost), number(first.seconds))
            costs.append(first.cost)
            seconds.append(first.seconds)
        output().print(table)
        longest, path = critical_path(plan, seconds)
        latency = f"{number(longest)} s along {' -> '.join(map(str, path))}"
        cost = f"{number(sum(costs))} USD expected"
        echo_pairs(output(), [("cost", cost), ("latency", latency)])
        echo_text(messages(), f"workers: {describe_pool(pool)}", "dim")
    echo_text(messages(), f"plan: {source}", "dim")
    if out is not None:
        row = json.dumps(plan_to_json(plan), indent=2, ensure_ascii=False)
        write_files({out: f"{row if out.suffix == '.json' else to_text(plan)}\n"}, "--out")
        echo(output(), f"written to {format_path(out)}")


def _tools(config: ToolsConfig, as_json: AsJson = False) -> None:
    """List the available tools, and the planner that can use them."""
    loaded = config.load_tools()
    try:
        catalog = config.select_catalog(loaded) or builtin_graph().catalog
    finally:
        close_tools(loaded)
    if as_json:
        echo(output(), json.dumps([tool.to_row() for tool in catalog.tools]))
        return
    table = plain_table("tool", "takes", "gives", "what it does")
    for tool in catalog.tools:
        about = (" ".join(tool.inputs), " ".join(tool.outputs), tool.description)
        table.add_row(escape(tool.name), *map(escape, about))
    output().print(table)
    own = "Tools need a language model as planner: --endpoint URL --model NAME, or --model RUN."
    words = "Workers do these, and the trained planner plans over them: orchestrate plan."
    echo_text(messages(), own if loaded else words, "dim")


# ---------------------------------------------------------------- run


class _Warnings(Progress):
    """Progress that prints only warnings; the execution has its own progress display."""

    worked = True
    """True: a run with a folder has passed all checks, so an error comes from one of its nodes."""

    def note(self, text: str) -> None:
        """Print a warning."""
        warn(text)


def _run(config: ExecutionConfig, traces: Traces, as_json: AsJson = False) -> None:
    """Plan an instruction and execute it within a budget."""
    if config.output is not None:
        check_vacant(Path(config.output))  # check before planning, which may cost money
    _execute(config, None, traces.otlp, as_json)


def resume(folder: RunFolder, allow_changes: bool) -> None:
    """Resume an execution and show its result. Raises `RunError` if it has finished, or if the run
    has several plans."""
    if folder.read_result() is not None:
        raise RunError(
            f"the run {folder.name!r} has finished; see: tutelage show {format_path(folder.path)}"
        )
    if not (folder.path / PLAN).is_file():
        raise RunError(
            f"the run {folder.name!r} has several plans and cannot be resumed; start again with "
            "another --output: tutelage orchestrate collect"
        )
    updates = {"plan": folder.path / PLAN, "checkpoint": None, "allow_changes": allow_changes}
    config = load_settings(folder, ExecutionConfig).model_copy(update=updates)
    _execute(config, RunFolder(folder.path.absolute()), None, as_json=False)


def _execute(
    config: ExecutionConfig, folder: RunFolder | None, otlp: str | None, as_json: bool
) -> None:
    """Plan and execute in a new run folder, or in the folder of a resumed run, and show the result.
    Invalid options and plans are rejected before a folder is created."""
    tools = config.load_tools()
    permission = Permission(ask_user if sys.stdin.isatty() else None, yes=config.yes)
    pool, catalog = config.select_pool(tools, permission), config.select_catalog(tools)
    if config.endpoint is None:
        fetch(config.model)
    with show_status("loading the planner ..."):
        llm = llm_planner(config, tools, catalog)
    resumed = folder is not None
    try:
        if config.plan is not None:
            plan = _read_plan(config, config.plan)
            if tools and not resumed:
                check_arguments(plan, tools)  # not for plans of a model, which corrects them
            choice = ChosenPlan(plan, str(config.plan), llm)
        else:
            choice = choose_plan(config, config.instruction or "", catalog, tools, llm)
        plan = choice.plan
        system = config.make_system(pool, catalog, [plan], planner=choice.llm)
        system.check(plan, config.budget, started=resumed)
    except (TutelageError, KeyboardInterrupt):
        if llm is not None and llm.calls:
            cost = math.fsum(call.cost for call in llm.calls)
            words = f"cost {cost:.6f} USD" if llm.priced else "whose cost is not known"
            warn(f"Planning made {pluralize(len(llm.calls), 'request')}, {words}.")
        raise
    executed = list[Execution]()

    def execute(run: Run) -> JSON:
        system.recorder = ExecutionRecorder(run.writer, run.id, config.reward)
        if system.execution_logger is not None:
            system.execution_logger.run_id = run.id
        echo(messages(), ("workers: ", "dim"), describe_pool(pool))
        echo(messages(), ("plan: ", "dim"), choice.source)
        # Keep the output of tools out of the result, which may be JSON.
        with redirect_stdout(sys.stderr):
            execution = system.execute(
                plan.instruction,
                plan=plan,
                budget=config.budget,
                name="run",
                journal=run.store,
                observers=[_make_observer(plan)],
            )
        executed.append(execution)
        run.failed = not execution.success
        names = ("success", "reason", "rollout")
        return {name: getattr(execution, name) for name in names} | {
            "status": "failed" if run.failed else "succeeded",
            "cost": execution.total_cost,
            "latency_ms": execution.total_latency_ms,
        }

    kind, warnings = ExecutionRun(config, execute, plan, otlp=otlp), _Warnings()
    # Absolute, because tools may change the working directory.
    folder = folder or RunFolder(create(run_path(config.output, RECIPE)).path.absolute())
    with ExitStack() as stack:
        stack.enter_context(report_stop(folder, warnings))
        stack.callback(close_tools, tools)
        if resumed:
            allowed = config.allow_changes
            lifecycle.resume(ExecutionRun, folder, warnings, kind, allow_changes=allowed)
        else:
            lifecycle.start(kind, folder, warnings)
    (_print_json if as_json else _show_result)(folder, executed[0], config, choice)
    if not executed[0].success:
        raise typer.Exit(1)


def _read_plan(config: ExecutionConfig, path: Path) -> Plan:
    """Return the plan of a file; an instruction on the command line replaces the one in the file.
    Raises `DataError` with the file name if the plan is invalid."""
    if config.checkpoint is not None:
        raise ConfigError("--plan and --checkpoint cannot be combined; remove one")
    row: Any = read_json(path)
    if isinstance(row, dict) and config.instruction is not None:
        row = cast("JSON", row) | {"instruction": config.instruction}
    try:
        plan = read_plan(row)
    except DataError as error:
        raise DataError(f"{str(path)!r}: {error}") from error
    if not plan.nodes:
        raise DataError(f"{str(path)!r}: the plan has no nodes; add at least one")
    return plan


def ask_user(question: str, choices: str) -> str:
    """Ask the user at the terminal to approve a call and return the typed line. Input typed before
    the question is discarded."""
    echo(messages(), (f"\n{escape(question)}", "bold yellow"))
    with suppress(ImportError, OSError, ValueError):  # no termios on this platform
        import termios

        with suppress(termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    messages().print(f"Run it? [y/N] ({choices}) ", end="", markup=False)
    return sys.stdin.readline()


def _make_observer(plan: Plan) -> Observer:
    """Return an observer that prints plans to stderr, and a line for each finished node."""
    console, costs = messages(), dict[int, float]()
    echo(console, escape(to_text(plan)))

    def print_event(event: Event) -> None:
        nonlocal plan
        if added := event.get({"start": "added", "replan": "nodes"}.get(event["event"], "")):
            first = len(plan.nodes)
            plan = replace(plan, nodes=(*plan.nodes, *read_nodes(added)))
            echo(console, ("further plan:\n", "dim"), escape(to_text(plan, first)))
        elif event["event"] == "step":
            step = event["step"]
            costs[step["node"]] = costs.get(step["node"], 0.0) + step["cost"]
        elif event["event"] == "node":
            ended, node = event["result"], event["result"]["node"]
            source = shorten(ended["worker"] or ended["reason"], _REASON)  # may be text of a tool
            text = f"[{node}] {plan.nodes[node].tool}: {ended['status']}"
            echo(console, escape(text), (f"  {source} {costs.get(node, 0.0):.6f}", "dim"))

    return print_event


def show(console: Console, folder: RunFolder) -> None:
    """Show the trace of one execution, the totals of many, or how to resume a stopped run."""
    from tutelage.cli.rollout_view import show_by_id, show_stored_rollouts
    from tutelage.cli.runs import print_state

    result = folder.read_result()
    echo(console, ("Execution ", "bold"), (folder.name, "bold"))
    if not (folder.path / PLAN).is_file():
        rows = (result or {"status": "stopped or running"}).items()
        echo_pairs(console, [(name, to_cell(value)) for name, value in rows], indent=2)
        show_stored_rollouts(console, folder)
    elif result is None:
        print_state(console, folder)
    else:
        with open_run(folder) as (store, run_id):
            for rollout in store.rollouts(run_id):
                show_by_id(console, rollout.id, str(folder.path), tokens=False, content=False)


def _print_json(
    folder: RunFolder, execution: Execution, config: ExecutionConfig, choice: ChosenPlan
) -> None:
    """Print the execution as JSON."""
    names = "id success reason outputs total_cost total_latency_ms verified_fraction mock pool"
    names += " router path resumed rollout"
    row = {name: getattr(execution, name) for name in names.split()} | {
        "reward": execution.compute_reward(config.reward).value,
        "confidence": choice.confidence,
        "min_confidence": choice.min_confidence,
        "plan": plan_to_json(execution.plan),
        "nodes": [asdict(node) for node in execution.nodes],
        "steps": [step.to_json() for step in execution.steps],
        "run": format_path(folder.path),
    }
    typer.echo(json.dumps(row, indent=2, ensure_ascii=False))


def _show_result(
    folder: RunFolder, execution: Execution, config: ExecutionConfig, choice: ChosenPlan
) -> None:
    """Print the nodes, the totals, the outputs of tools and leaf nodes, and the trace command."""
    console, plan, steps = output(), execution.plan, group_steps(execution.steps)
    columns = ("#", "subtask", "after", "result", "worker", "tries", "USD", "seconds")
    table = plain_table(*columns, right=("#", "tries", "USD", "seconds"))
    for node in execution.nodes:
        mine, planned = steps.get(node.node, ()), plan.nodes[node.node]
        status = node.status if node.checked or not node.is_ok else f"{node.status}, unchecked"
        if not node.is_ok and node.status != "skipped":
            status += f": {node.reason}"
        after, tries = ", ".join(map(str, planned.parents)), sum(s.worker is not None for s in mine)
        texts = (escape(planned.tool), after, shorten(status, _REASON), escape(node.worker or ""))
        cost = f"{sum(step.cost for step in mine):.6f}"
        table.add_row(str(node.node), *texts, str(tries), cost, f"{node.seconds:.2f}")
    console.print(table)
    echo(console)
    path = " -> ".join(plan.nodes[node].tool for node in execution.path) or "nothing"
    path = shorten(path, 80)
    planning = f", {plan.seconds:.2f} of them planning," if plan.seconds else ""
    reason = f", {execution.reason}" if execution.reason not in ("", "failed") else ""
    state = "succeeded" if execution.success else f"failed{reason}"
    pairs = [
        ("execution", state + " (a mock: no model was asked)" * execution.mock),
        ("cost", f"{execution.total_cost:.6f} USD"),
        ("latency", f"{execution.total_latency_ms / 1000:.2f} s{planning} along {path}"),
        ("reward", f"{number(execution.compute_reward(config.reward).value)} ({config.reward})"),
    ]
    if choice.confidence is not None:
        minimum = f"{100 * (choice.min_confidence or 0.0):.0f} % is the least"
        pairs.append(("planner", f"{100 * choice.confidence:.0f} % sure of its plan; {minimum}"))
    if execution.abandoned:
        lost = pluralize(len(execution.abandoned), "node")
        pairs.append(("replanned", f"{lost} failed or skipped, replaced by a further plan"))
    if execution.unplanned:
        pairs.append(("no further plan", shorten(execution.unplanned, 200)))
    if execution.resumed:
        pairs.append(("resumed", f"{pluralize(execution.resumed, 'node')} done before"))
    echo_pairs(console, pairs)
    last = execution.answers
    for index, mine in steps.items():
        answer = mine[-1].answer
        arguments = answer and answer.arguments
        if answer is None or (arguments is None and index not in last):
            continue
        title = f"\n[{index}] {escape(plan.nodes[index].tool)} "
        echo(console, (title, "bold"), shorten(arguments or "", _SHOWN))
        text = answer.output if answer.error is None else f"error: {answer.error.message}"
        lines = escape(text).split("\n")
        if len(lines) > _LINES:
            lines[_LINES:] = [f"and {pluralize(len(lines) - _LINES, 'more line')}"]
        for line in lines:
            echo(console, f"  {line}")
    run_path = format_path(folder.path)
    echo(console, ("\nTrace:", "bold"), f" tutelage show {execution.rollout} --run {run_path}")
    if execution.reason == DEADLINE:
        echo(console, ("Finished nodes are kept in ", "dim"), run_path)


# ---------------------------------------------------------------- collect


class _CollectConfig(CollectConfig):
    """Options of `orchestrate collect`."""

    logs: Paths = ()
    """Read these logs, or folders of logs, for --prepare without executing anything; may be
    repeated."""
    prepare: Path | None = None
    """Write a training set of the successful executions in the logs to this file."""


def _collect(config: _CollectConfig, as_json: AsJson = False) -> None:
    """Execute many instructions, log them and prepare training data."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    if config.logs and config.prepare is None:
        raise ConfigError("--logs has no effect without --prepare FILE; add it")
    result: JSON = {}
    logs: Sequence[str | Path] = config.logs
    if not logs:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=messages(), transient=True) as bar:
            task = bar.add_task("executing", total=config.num_executions)
            collection, log, folder = run_collection(
                config,
                on_start=lambda text: echo_text(messages(), text, "dim"),
                on_done=lambda _: bar.advance(task),
            )
        logs = (config.output_dir,)
        result |= collection | {"log": str(log), "run": str(folder)}
        if not as_json:
            pairs = [
                ("succeeded", "{succeeded} of {executions}".format(**collection)),
                ("cost", f"{collection['cost']:.6f} USD"),
                ("latency", f"{collection['mean_latency']:.2f} s on average"),
            ]
            if collection["lost"]:
                pairs.append(("not served", pluralize(collection["lost"], "execution")))
            if collection["refused"]:
                reason = "a plan that nobody can do, with wrong arguments, or above the budget"
                pairs.append(
                    ("refused", f"{pluralize(collection['refused'], 'instruction')} with {reason}")
                )
            pairs += [("log", format_path(log)), ("run", format_path(folder))]
            echo_pairs(output(), pairs)
            command = f"tutelage orchestrate collect --logs {format_path(log.parent)}"
            echo(output(), ("\nNext:", "bold"), f" {command} --prepare training_data.json")
    if config.prepare is not None:
        counts, tools = write_training_set(logs, config.prepare, config.catalog)
        result["prepared"] = {**counts, "catalog": str(tools)}
        if not as_json:
            rows = [(name, str(value)) for name, value in result["prepared"].items()]
            hint = f"tutelage train planner --phase 1 --train {config.prepare} --catalog {tools}"
            echo_pairs(output(), [*rows, ("written", format_path(config.prepare)), ("next", hint)])
    if as_json:
        typer.echo(json.dumps(result, indent=2))
