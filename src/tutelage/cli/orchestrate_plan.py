"""`tutelage orchestrate plan`: draw the plan of an instruction, with workers, cost and latency.

Nothing is executed. Cost and latency are what the pool expects of the workers that would be asked
first, so the plan of an unknown instruction has a price before it is run. `--out` writes the same
as text, Mermaid, SVG or JSON, by the ending of the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tutelage.cli.orchestrate_parts import make_planner, pool_words
from tutelage.orchestration.execution.config import PlannerConfig, PoolConfig

if TYPE_CHECKING:
    from tutelage.orchestration.execution.workers import Estimate, Pool, Worker
    from tutelage.orchestration.plan.catalog import Catalog
    from tutelage.orchestration.plan.dag import Plan


@dataclass(frozen=True, slots=True)
class Expected:
    """Who would be asked first for a node, and what that may come to."""

    kind: str
    """What the worker must be able to do."""
    worker: Worker
    estimate: Estimate


def plan(
    instruction: Annotated[str, typer.Argument(help="What is to be done, in plain words.")],
    planning: PlannerConfig,
    pool: PoolConfig,
    explain: Annotated[
        bool, typer.Option("--explain", help="Workers, expected cost and latency of each subtask.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write it as .txt, .mmd (Mermaid), .svg or .json."),
    ] = None,
) -> None:
    """Draw the plan of an instruction; nothing is executed."""
    from tutelage.cli.console import messages, output, say, shown_path, visible
    from tutelage.errors import ConfigError
    from tutelage.orchestration.plan.dag import to_text

    if not instruction.strip():
        raise ConfigError(f"the instruction is {instruction!r}; say what is to be done")
    if out is not None and out.suffix not in _WRITERS:
        raise ConfigError(f"--out {str(out)!r}: the ending must be one of {sorted(_WRITERS)}")
    known = planning.read_catalog()
    there = pool.make_pool()
    planner = make_planner(planning.checkpoint, known, pool.seed)
    made = planner.plan(instruction)
    expected = expect(made, known, there) if explain or out is not None else {}
    console = output()
    say(console, visible(to_text(made)))
    if explain:
        _explain(made, expected)
        say(messages(), ("workers: ", "dim"), pool_words(there))
    say(messages(), ("plan: ", "dim"), planner.source)
    if out is not None:
        _write(out, made, expected)
        say(console, f"written to {shown_path(out)}")


def expect(plan: Plan, catalog: Catalog | None, pool: Pool) -> dict[int, Expected]:
    """The cheapest worker that can do each node. Raises `ConfigError` where none can."""
    from tutelage.orchestration.data.synthetic import builtin_graph
    from tutelage.orchestration.execution.worker_files import kind_of, kind_of_tool
    from tutelage.orchestration.execution.workers import Work, legal

    tools = catalog or builtin_graph().catalog
    found: dict[int, Expected] = {}
    for index, node in enumerate(plan.nodes):
        kind = kind_of_tool(tools[node.tool]) if node.tool in tools else kind_of(node.tool)
        prompt = f"{plan.instruction}\n{node.tool}\n{node.description}"
        work = Work(index, node.tool, kind, plan.instruction, node.description, prompt)
        can = legal(pool.workers, work)
        able = [worker for worker, fits in zip(pool.workers, can, strict=True) if fits]
        priced = [Expected(kind, worker, pool.estimate(worker, work)) for worker in able]
        found[index] = min(priced, key=lambda e: (e.estimate.cost, e.estimate.seconds))
    return found


def _explain(plan: Plan, expected: dict[int, Expected]) -> None:
    from tutelage.cli.console import facts, number, output, plain_table, visible

    console = output()
    table = plain_table(
        "node", "subtask", "kind", "after", "worker", "USD", "seconds", right=("USD", "seconds")
    )
    for index, node in enumerate(plan.nodes):
        about = expected[index]
        table.add_row(
            str(index),
            visible(node.tool),
            visible(about.kind),
            ", ".join(str(parent) for parent in node.parents),
            visible(about.worker.name),
            number(about.estimate.cost),
            number(about.estimate.seconds),
        )
    console.print(table)
    facts(console, list(_sums(plan, expected).items()))


def _sums(plan: Plan, expected: dict[int, Expected]) -> dict[str, str]:
    """What the plan as a whole may come to, in words."""
    from tutelage.cli.console import number
    from tutelage.orchestration.plan.dag import critical_path

    seconds, path = critical_path(
        plan, [expected[i].estimate.seconds for i in range(len(plan.nodes))]
    )
    cost = sum(e.estimate.cost for e in expected.values())
    return {
        "cost": f"{number(cost)} USD expected",
        "latency": f"{number(seconds)} s along {' -> '.join(str(node) for node in path)}",
    }


def _write(path: Path, plan: Plan, expected: dict[int, Expected]) -> None:
    from tutelage.files import write_new

    write_new({path: _WRITERS[path.suffix](plan, expected)}, "--out")


def _notes(expected: dict[int, Expected]) -> dict[int, tuple[str, str]]:
    """Two lines for each box: who does it, and what that may come to."""
    from tutelage.cli.console import number

    return {
        node: (
            f"{e.kind}: {e.worker.name}",
            f"{number(e.estimate.seconds)} s, {number(e.estimate.cost)} USD",
        )
        for node, e in expected.items()
    }


def _svg(plan: Plan, expected: dict[int, Expected]) -> str:
    from tutelage.orchestration.plan.drawing import to_svg

    return to_svg(plan, _notes(expected), "; ".join(_sums(plan, expected).values()))


def _mermaid(plan: Plan, expected: dict[int, Expected]) -> str:
    from tutelage.orchestration.plan.dag import to_mermaid

    return to_mermaid(plan, _notes(expected)) + "\n"


def _text(plan: Plan, expected: dict[int, Expected]) -> str:
    from tutelage.orchestration.plan.dag import to_text

    notes = [f"[{node}] {', '.join(lines)}" for node, lines in _notes(expected).items()]
    sums = [f"{name}: {words}" for name, words in _sums(plan, expected).items()]
    return "\n".join([to_text(plan), "", *notes, *sums, ""])


def _json(plan: Plan, expected: dict[int, Expected]) -> str:
    """The plan as `run --plan` reads it, and what is expected of it."""
    from tutelage.orchestration.execution.journal import plan_json

    rows: list[dict[str, Any]] = [
        {
            "node": node,
            "kind": e.kind,
            "worker": e.worker.name,
            "cost": e.estimate.cost,
            "seconds": e.estimate.seconds,
        }
        for node, e in expected.items()
    ]
    return json.dumps({**plan_json(plan), "expected": rows}, indent=2, ensure_ascii=False) + "\n"


_WRITERS = {".svg": _svg, ".mmd": _mermaid, ".txt": _text, ".json": _json}
