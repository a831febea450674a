"""`tutelage orchestrate`: the verbs of orchestration. This file has those that execute nothing.

`plan` draws the plan of an instruction, with what the pool expects of the workers that would be
asked first, so that it has a price before it is run. `prepare` makes a training set of execution
logs, `eval` scores a planner on a set of workflows. `run`, `collect` and `audit` have files of
their own, and what several verbs need is in `orchestrate_parts.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tutelage.cli.failures import PLAIN
from tutelage.cli.options import AsJson, as_command
from tutelage.cli.orchestrate_audit import audit
from tutelage.cli.orchestrate_collect import collect
from tutelage.cli.orchestrate_parts import describe_pool, make_planner
from tutelage.cli.orchestrate_run import run
from tutelage.config.fields import CountOrZero, Paths, Section, Share
from tutelage.orchestration.execution.config import PlanningConfig

if TYPE_CHECKING:
    from tutelage.orchestration.execution.workers import Worker, WorkerEstimate, WorkerPool
    from tutelage.orchestration.plan.catalog import Catalog
    from tutelage.orchestration.plan.dag import Plan
    from tutelage.types import JSON


def orchestrate_app() -> typer.Typer:
    """The group with its verbs."""
    group = typer.Typer(
        help="Plan an instruction as a graph of subtasks, and run it.",
        no_args_is_help=True,
        **PLAIN,
    )
    group.command("plan")(as_command(_plan, "instruction"))
    group.command("run")(as_command(run, "instruction"))
    verbs = {"collect": collect, "prepare": _prepare, "eval": _evaluate, "audit": audit}
    for name, verb in verbs.items():
        group.command(name)(as_command(verb))
    return group


# ---------------------------------------------------------------- prepare


class _PrepareConfig(Section):
    """Which logs become a training set."""

    logs: Paths
    """Logs, or folders of them; may be repeated."""
    output: Path = Path("training_data.json")
    """The training set to write."""
    catalog: Path | None = None
    """Tools that plans may use; else the built-in."""


_UNUSABLE = "which take results of subtasks that failed, or have no other ones"


def _prepare(asked: _PrepareConfig) -> None:
    """Make a training set of what succeeded in execution logs."""
    from tutelage.cli.console import facts, number, shown_path
    from tutelage.cli.console import output as console_output
    from tutelage.errors import counted
    from tutelage.files import write_new
    from tutelage.orchestration.data.prepare import prepare
    from tutelage.orchestration.data.synthetic import builtin_graph
    from tutelage.orchestration.plan.catalog import read_catalog

    known, output = None if asked.catalog is None else read_catalog(asked.catalog), asked.output
    made = prepare([Path(path) for path in asked.logs], known)
    if known is None:
        own, used = builtin_graph().catalog, {tool for w in made.workflows for tool in w.tools}
        known = own if used <= set(own.names) else made.catalog()
    tools = output.with_name(f"{output.stem}.catalog.json")
    listed = [tool.to_row() for tool in known.tools]
    rows = {output: [workflow.to_row(known) for workflow in made.workflows], tools: listed}
    texts = {p: json.dumps(of, indent=1, ensure_ascii=False) + "\n" for p, of in rows.items()}
    write_new(texts, "--output")
    examples, cheaper = number(len(made.workflows)), counted(made.cheaper, "subtask")
    several = f"{counted(made.disagreed, 'instruction')} done by more than one plan"
    facts(
        console_output(),
        [
            ("executions", f"{number(made.executions)}, {number(made.failed)} of them failed"),
            *([("left out", f"{number(made.unusable)}, {_UNUSABLE}")] if made.unusable else []),
            ("examples", f"{examples}, one an instruction, the cheapest that succeeded"),
            ("disagreeing", f"{several}; the cheapest plan is kept, of equals the fastest"),
            ("cheaper", f"{cheaper} with a cheaper worker that also succeeded"),
            ("written", shown_path(output)),
            ("catalog", shown_path(tools)),
            ("next", f"tutelage train planner --phase 1 --train {output} --catalog {tools}"),
        ],
    )


# ---------------------------------------------------------------- eval


class _EvaluateConfig(Section):
    """Which planner is scored, and on what."""

    test: Path
    """Workflows to plan."""
    checkpoint: Path
    """The planner: a run folder or a checkpoint."""
    catalog: Path | None = None
    """Tools that plans may use; else the built-in."""
    train: Path | None = None
    """What it learned from, for the baselines."""
    output: Path | None = None
    """Write its plans there, one a line."""
    seed: CountOrZero = 0
    """Where all draws come from."""


def _evaluate(asked: _EvaluateConfig, as_json: AsJson = False) -> None:
    """Score a trained planner on a set of workflows."""
    from tutelage.cli.console import output, say, show_table, waiting
    from tutelage.cli.failures import tell
    from tutelage.files import write_new
    from tutelage.orchestration.data.formats import read_workflows
    from tutelage.orchestration.evaluation.tables import planning_tables
    from tutelage.orchestration.plan.catalog import read_catalog
    from tutelage.seeds import SeedTree

    with waiting("planning ..."):
        from tutelage.orchestration.evaluation.results import evaluate, prediction_rows
        from tutelage.orchestration.planner.saving import load_planner

        model = load_planner(asked.checkpoint, tell)
        if asked.catalog is not None:
            model.use_catalog(read_catalog(asked.catalog))
        gold = read_workflows(asked.test, model.catalog)
        learned = [] if asked.train is None else read_workflows(asked.train, model.catalog)
        seeds = SeedTree(asked.seed).child("planner", "bootstrap")
        result, planned = evaluate(model, learned, gold, seeds)
    if asked.output is not None:
        rows = prediction_rows(planned, gold, model)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_new({asked.output: text}, "--output")
    if as_json:
        say(output(), json.dumps(result))
        return
    for table in planning_tables(result):
        show_table(output(), table)


# ---------------------------------------------------------------- plan


class _PlanConfig(PlanningConfig):
    """What is planned, and how the plan is shown."""

    instruction: str
    """What is to be done, in plain words."""
    explain: bool = False
    """Workers, expected cost and latency of each subtask."""
    out: Path | None = None
    """Write it as .txt, .mmd (Mermaid), .svg or .json."""
    min_confidence: Share | None = None
    """The least confidence that the planner plans at; by default its own."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """Who would be asked first for a node, and what that may come to."""

    kind: str
    """What the worker must be able to do."""
    worker: Worker
    estimate: WorkerEstimate


def _plan(asked: _PlanConfig) -> None:
    """Draw the plan of an instruction; nothing is executed."""
    from tutelage.cli.console import messages, output, prose, say, shown_path, visible
    from tutelage.errors import ConfigError
    from tutelage.files import write_new
    from tutelage.orchestration.plan.dag import to_text

    out = asked.out
    if not asked.instruction.strip():
        raise ConfigError(f"the instruction is {asked.instruction!r}; say what is to be done")
    if out is not None and out.suffix not in _ENDINGS:
        raise ConfigError(f"--out {str(out)!r}: the ending must be one of {_ENDINGS}")
    known, there = asked.read_catalog(), asked.make_pool()
    planner = make_planner(asked.checkpoint, known)
    made = planner.sure_plan(asked.instruction, asked.min_confidence)
    expected = _expect(made, known, there) if asked.explain or out is not None else {}
    say(output(), visible(to_text(made)))
    if asked.explain:
        _explain(made, expected)
        prose(messages(), f"workers: {describe_pool(there)}", "dim")
    prose(messages(), f"plan: {planner.source}", "dim")
    if out is not None:
        write_new({out: _written(out.suffix, made, expected)}, "--out")
        say(output(), f"written to {shown_path(out)}")


def _expect(plan: Plan, catalog: Catalog | None, pool: WorkerPool) -> dict[int, _Expected]:
    """The cheapest worker that can do each node. Raises `ConfigError` where none can."""
    from tutelage.orchestration.data.synthetic import builtin_graph
    from tutelage.orchestration.execution.worker_files import tool_kind
    from tutelage.orchestration.execution.workers import Subtask, capable_workers

    tools = catalog or builtin_graph().catalog
    values: dict[int, _Expected] = {}
    for index, node in enumerate(plan.nodes):
        kind = tool_kind(node.tool, catalog=tools)
        prompt = f"{plan.instruction}\n{node.tool}\n{node.description}"
        work = Subtask(index, node.tool, kind, plan.instruction, node.description, prompt)
        can = capable_workers(pool.workers, work)
        able = [worker for worker, fits in zip(pool.workers, can, strict=True) if fits]
        priced = [_Expected(kind, worker, pool.estimate(worker, work)) for worker in able]
        values[index] = min(priced, key=lambda e: (e.estimate.cost, e.estimate.seconds))
    return values


def _sums(plan: Plan, expected: Mapping[int, _Expected]) -> dict[str, str]:
    """What the plan as a whole may come to, in words."""
    from tutelage.cli.console import number
    from tutelage.orchestration.plan.dag import critical_path

    estimates = [expected[i].estimate for i in range(len(plan.nodes))]
    seconds, path = critical_path(plan, [estimate.seconds for estimate in estimates])
    return {
        "cost": f"{number(sum(estimate.cost for estimate in estimates))} USD expected",
        "latency": f"{number(seconds)} s along {' -> '.join(str(node) for node in path)}",
    }


def _explain(plan: Plan, expected: Mapping[int, _Expected]) -> None:
    from tutelage.cli.console import facts, number, output, plain_table, visible

    table = plain_table(
        "node", "subtask", "kind", "after", "worker", "USD", "seconds", right=("USD", "seconds")
    )
    for index, node in enumerate(plan.nodes):
        about = expected[index]
        parents = ", ".join(str(parent) for parent in node.parents)
        names = (node.tool, about.kind, parents, about.worker.name)
        numbers = (number(about.estimate.cost), number(about.estimate.seconds))
        table.add_row(str(index), *map(visible, names), *numbers)
    output().print(table)
    facts(output(), _sums(plan, expected).items())


_ENDINGS = [".json", ".mmd", ".svg", ".txt"]


def _written(ending: str, plan: Plan, expected: Mapping[int, _Expected]) -> str:
    """The plan as a file of this ending holds it; JSON is what `run --plan` reads."""
    from tutelage.cli.console import number
    from tutelage.orchestration.execution.record import plan_json
    from tutelage.orchestration.plan.dag import to_mermaid, to_text
    from tutelage.orchestration.plan.drawing import to_svg

    if ending == ".json":
        rows: list[JSON] = []
        for node, e in expected.items():
            come = {"cost": e.estimate.cost, "seconds": e.estimate.seconds}
            rows.append({"node": node, "kind": e.kind, "worker": e.worker.name, **come})
        fields = {**plan_json(plan), "expected": rows}
        return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
    sums = _sums(plan, expected)
    # Two lines for each box: who does it, and what that may come to.
    notes: dict[int, tuple[str, str]] = {}
    for node, e in expected.items():
        come = f"{number(e.estimate.seconds)} s, {number(e.estimate.cost)} USD"
        notes[node] = (f"{e.kind}: {e.worker.name}", come)
    if ending == ".svg":
        return to_svg(plan, notes, "; ".join(sums.values()))
    if ending == ".mmd":
        return to_mermaid(plan, notes) + "\n"
    lines = [f"[{node}] {', '.join(note)}" for node, note in notes.items()]
    whole = [f"{name}: {words}" for name, words in sums.items()]
    return "\n".join([to_text(plan), "", *lines, *whole, ""])
