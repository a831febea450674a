"""`tutelage orchestrate plan | run | collect | tools`. `run` has a file of its own.

`plan` draws the plan of an instruction, with what the pool expects of the workers that would be
asked first, so that it has a price before it is run. `collect` executes many instructions, logs
them, and makes a training set of logs or shows what a reward makes of them. `tools` lists what can
be planned with.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tutelage.cli.failures import PLAIN
from tutelage.cli.options import AsJson, as_command
from tutelage.cli.orchestrate_run import run
from tutelage.config.fields import Paths, Share
from tutelage.orchestration.data.collect import CollectConfig
from tutelage.orchestration.evaluation.rewards import Preset
from tutelage.orchestration.execution.config import PlanningConfig, ToolsConfig

if TYPE_CHECKING:
    from tutelage.orchestration.data.collect import CollectionRun
    from tutelage.orchestration.evaluation.audit import RewardAudit
    from tutelage.types import JSON


def orchestrate_app() -> typer.Typer:
    """Return the group with its verbs."""
    group = typer.Typer(
        help="Plan an instruction as a graph of subtasks, and run it.",
        no_args_is_help=True,
        **PLAIN,
    )
    group.command("plan")(as_command(_plan, "instruction"))
    group.command("run")(as_command(run, "instruction"))
    group.command("collect")(as_command(_collect))
    group.command("tools")(as_command(_tools))
    return group


# ---------------------------------------------------------------- plan

_ENDINGS = [".json", ".mmd", ".txt"]


class _PlanConfig(PlanningConfig):
    """What is planned, and how the plan is shown."""

    instruction: str
    """What is to be done, in plain words."""
    explain: bool = False
    """Workers, expected cost and latency of each subtask."""
    out: Path | None = None
    """Write it as .txt, .mmd (Mermaid) or .json, which run --plan reads."""
    min_confidence: Share | None = None
    """The least confidence that the planner plans at; by default its own."""


def _plan(config: _PlanConfig) -> None:
    """Draw the plan of an instruction; nothing is executed."""
    from tutelage.cli.console import (
        facts,
        messages,
        number,
        output,
        plain_table,
        prose,
        say,
        shown_path,
        visible,
    )
    from tutelage.errors import ConfigError
    from tutelage.files import write_new
    from tutelage.orchestration.data.synthetic import builtin_graph
    from tutelage.orchestration.execution.record import plan_json
    from tutelage.orchestration.execution.worker_files import describe_pool, tool_kind
    from tutelage.orchestration.execution.workers import Subtask, capable_workers
    from tutelage.orchestration.plan.dag import critical_path, to_mermaid, to_text
    from tutelage.orchestration.planner.choose import trained_planner

    out = config.out
    if not config.instruction.strip():
        raise ConfigError(f"the instruction is {config.instruction!r}; say what is to be done")
    if out is not None and out.suffix not in _ENDINGS:
        raise ConfigError(f"--out {str(out)!r}: the ending must be one of {_ENDINGS}")
    catalog, pool = config.read_catalog(), config.make_pool()
    model, source = trained_planner(config.checkpoint, catalog)
    plan = model.plan(config.instruction, config.min_confidence)
    say(output(), visible(to_text(plan)))
    if config.explain:
        columns = ("node", "subtask", "kind", "after", "worker", "USD", "seconds")
        table, costs, seconds = (
            plain_table(*columns, right=columns[-2:]),
            list[float](),
            list[float](),
        )
        for index, node in enumerate(plan.nodes):
            kind = tool_kind(node.tool, catalog=catalog or builtin_graph().catalog)
            prompt = f"{plan.instruction}\n{node.tool}\n{node.description}"
            work = Subtask(index, node.tool, kind, plan.instruction, node.description, prompt)
            able = zip(pool.workers, capable_workers(pool.workers, work), strict=True)
            priced = [(pool.estimate(worker, work), worker.name) for worker, can in able if can]
            cheapest, worker = min(priced, key=lambda each: (each[0].cost, each[0].seconds))
            parents = ", ".join(map(str, node.parents))
            words = map(visible, (node.tool, kind, parents, worker))
            table.add_row(str(index), *words, number(cheapest.cost), number(cheapest.seconds))
            costs.append(cheapest.cost)
            seconds.append(cheapest.seconds)
        output().print(table)
        longest, path = critical_path(plan, seconds)
        along = " -> ".join(map(str, path))
        pairs = [
            ("cost", f"{number(sum(costs))} USD expected"),
            ("latency", f"{number(longest)} s along {along}"),
        ]
        facts(output(), pairs)
        prose(messages(), f"workers: {describe_pool(pool)}", "dim")
    prose(messages(), f"plan: {source}", "dim")
    if out is not None:
        if out.suffix == ".json":
            text = json.dumps(plan_json(plan), indent=2, ensure_ascii=False)
        else:
            text = to_mermaid(plan) if out.suffix == ".mmd" else to_text(plan)
        write_new({out: f"{text}\n"}, "--out")
        say(output(), f"written to {shown_path(out)}")


# ---------------------------------------------------------------- tools


def _tools(config: ToolsConfig, as_json: AsJson = False) -> None:
    """List the tools that can be planned with, and their planner."""
    from tutelage.cli.console import messages, output, plain_table, prose, say, visible
    from tutelage.orchestration.data.synthetic import builtin_graph
    from tutelage.tools.registry import close_tools

    loaded = config.load_tools()
    try:
        catalog = config.read_catalog_with(loaded) or builtin_graph().catalog
        if as_json:
            say(output(), json.dumps([tool.to_row() for tool in catalog.tools]))
            return
        table = plain_table("tool", "takes", "gives", "what it does")
        for tool in catalog.tools:
            about = (" ".join(tool.inputs), " ".join(tool.outputs), tool.description)
            table.add_row(visible(tool.name), *map(visible, about))
        output().print(table)
        if loaded:
            told = "These tools run, so a language model plans: --endpoint URL --model NAME, or "
            told += "--model RUN."
        else:
            told = "Workers do these, and the trained planner plans over them: orchestrate plan."
        prose(messages(), told, "dim")
    finally:
        close_tools(loaded)


# ---------------------------------------------------------------- collect


class _CollectConfig(CollectConfig):
    """What is executed, and what is made of the logs."""

    logs: Paths = ()
    """Execute nothing: logs, or folders of them, for --prepare and --audit; may be repeated."""
    prepare: Path | None = None
    """Write a training set of what succeeded in the logs to this file."""
    audit: bool = False
    """Show what each reward makes of the executions in the logs."""
    preset: Preset | None = None
    """Audit only this reward, and exit with 1 when it rewards the wrong thing."""


def _collect(config: _CollectConfig, as_json: AsJson = False) -> None:
    """Execute many instructions, log them, make data of the logs."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from tutelage.cli.console import messages, prose
    from tutelage.errors import ConfigError
    from tutelage.orchestration.data.collect import run_collection
    from tutelage.orchestration.data.prepare import write_training_set
    from tutelage.orchestration.evaluation.audit import PRESETS, audit_logs

    audit = config.audit or config.preset is not None
    if config.logs and config.prepare is None and not audit:
        raise ConfigError("--logs reads logs that are there: add --prepare FILE, or --audit")
    found: JSON = {}
    logs: Sequence[str | Path] = config.logs
    if not logs:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=messages(), transient=True) as bar:
            task = bar.add_task("executing", total=config.num_executions)
            made = run_collection(
                config,
                note=lambda text: prose(messages(), text, "dim"),
                on_done=lambda _: bar.advance(task),
            )
        logs = (config.output_dir,)
        found |= asdict(made.collection) | {"log": str(made.log), "run": str(made.folder)}
        if not as_json:
            _show_collection(made)
    audits: list[RewardAudit] = []
    if audit:
        chosen = PRESETS if config.preset is None else (config.preset,)
        audits, logged = audit_logs(logs, chosen)
        found["audit"] = [asdict(each) | {"warning": each.warning} for each in audits]
        if not as_json:
            _show_audit(audits, logged)
    if config.prepare is not None:
        training, tools = write_training_set(logs, config.prepare, config.catalog)
        counts = {k: v for k, v in asdict(training).items() if isinstance(v, int)}
        found["prepared"] = {**counts, "examples": len(training.workflows), "catalog": str(tools)}
        if not as_json:
            _show_training_set(found["prepared"], config.prepare)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    if config.preset is not None and audits[0].warning is not None:
        raise typer.Exit(1)


def _show_collection(made: CollectionRun) -> None:
    from tutelage.cli.console import facts, number, output, percent, say, shown_path
    from tutelage.errors import counted
    from tutelage.runs.stored_evaluation import SUCCESS, evaluation_of_record, judged_text

    found = made.collection
    record = asdict(found) | {"success": found.success_rate, "rollouts": found.instructions}
    evaluation = evaluation_of_record(record)
    done = f"{number(found.succeeded)} of {number(found.judged)}"
    if not evaluation.withheld:
        done += f": {SUCCESS.cell(evaluation, percent, ends=True)}"
    pairs = [("succeeded", done)]
    if evaluation.eventful:
        pairs.append(("judged", judged_text(evaluation)))
    pairs += [
        ("executions", number(found.executions)),
        ("cost", f"{found.cost:.6f} USD"),
        ("latency", f"{found.mean_latency:.2f} s on average"),
    ]
    if found.refused:
        reason = "a plan that nobody can do, with wrong arguments, or that the budget cannot begin"
        pairs.append(("refused", f"{counted(found.refused, 'instruction')} with {reason}"))
    facts(output(), [*pairs, ("log", shown_path(made.log)), ("run", shown_path(made.folder))])
    again = f"tutelage orchestrate collect --logs {shown_path(made.log.parent)}"
    say(output(), ("\nNext:", "bold"), f" {again} --prepare training_data.json")


def _show_audit(audits: Sequence[RewardAudit], logged: int) -> None:
    from tutelage.cli.console import output, plain_table, say
    from tutelage.errors import counted

    lost = logged - audits[0].executions
    more = f"; {lost} more were lost to their workers' servers" if lost else ""
    table = plain_table("preset", "mean", right=("mean",))
    for each in audits:
        table.add_row(each.preset, f"{each.mean:.4f}")
    output().print(table)
    executions = counted(audits[0].executions, "judged execution")
    words = f"mean of the {executions} of the log{more}"
    say(output(), (words, "dim"))
    for each in audits:
        if each.warning is not None:
            say(output(), ("Warning: ", "yellow"), each.warning)


def _show_training_set(made: JSON, path: Path) -> None:
    from tutelage.cli.console import facts, output, shown_path

    tools = shown_path(Path(made["catalog"]))
    lost = "in which a further plan took the place of what failed"
    pairs = [
        ("executions", f"{made['executions']}, {made['failed']} of them failed"),
        *([("left out", f"{made['unusable']}, {lost}")] if made["unusable"] else []),
        ("examples", f"{made['examples']}, one an instruction, the cheapest that succeeded"),
        ("written", shown_path(path)),
        ("catalog", tools),
        ("next", f"tutelage train planner --phase 1 --train {path} --catalog {tools}"),
    ]
    facts(output(), pairs)
