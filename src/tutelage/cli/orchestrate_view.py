"""What `tutelage orchestrate run` shows: nodes while they run, then the result.

On a terminal a table is redrawn in place; elsewhere each node that ends gives one line. Both are
fed by the executor's events, which are the lines of its log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from tutelage.cli.console import (
    counted,
    facts,
    messages,
    number,
    one_line,
    output,
    plain_table,
    say,
    shown_path,
    visible,
)
from tutelage.orchestration.evaluation.judged import DEADLINE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tutelage.orchestration.evaluation.rewards import Preset
    from tutelage.orchestration.execution.record import Execution
    from tutelage.orchestration.plan.dag import Plan
    from tutelage.runs.folder import RunFolder

_ROWS = 20
"""Nodes of a table that is redrawn."""
_OUTPUT_LINES = 6


@dataclass(slots=True)
class _Row:
    """One node as far as it is."""

    tool: str
    state: str = "waits"
    worker: str = ""
    tries: int = 0
    cost: float = 0.0


@dataclass(slots=True)
class _Watch:
    """Follows events. `rows` are the nodes, `spent` is in USD."""

    plan: Plan
    rows: list[_Row] = field(init=False)
    spent: float = 0.0

    def __post_init__(self) -> None:
        self.rows = [_Row(node.tool) for node in self.plan.nodes]

    def take(self, event: dict[str, Any]) -> int | None:
        """Bring a row up to date; returns a node that ended."""
        kind = event["event"]
        if kind == "dispatch":
            row = self.rows[event["node"]]
            row.state, row.worker, row.tries = "runs", event["worker"], row.tries + 1
        elif kind == "answer":
            cost = float(event["answer"]["cost"])
            self.rows[event["node"]].cost += cost
            self.spent += cost
        elif kind == "step" and event["step"]["requests"]:
            # Answers were counted as they came; a judge's verdict comes with the step.
            judged = float((event["step"]["verdict"] or {}).get("cost", 0.0))
            self.rows[event["step"]["node"]].cost += judged
            self.spent += judged
        elif kind == "node":
            result = event["result"]
            row = self.rows[result["node"]]
            row.state = result["status"]
            row.worker = result["worker"] or result["reason"] or row.worker
            return result["node"]
        return None


@contextmanager
def progress(plan: Plan, told: dict[str, str]) -> Generator[Callable[[dict[str, Any]], None]]:
    """An observer that shows what happens, on the error stream."""
    console, watch = messages(), _Watch(plan)
    for name, words in told.items():
        say(console, (f"{name}: ", "dim"), words)
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda event: _line(console, watch, watch.take(event))
        return
    from rich.live import Live

    with Live(_table(watch), console=console, transient=True, auto_refresh=False) as live:

        def show(event: dict[str, Any]) -> None:
            watch.take(event)
            live.update(_table(watch), refresh=True)

        yield show


def _line(console: Console, watch: _Watch, node: int | None) -> None:
    if node is not None:
        row = watch.rows[node]
        told = f"[{node}] {row.tool}: {row.state}"
        say(console, visible(told), (f"  {row.worker} {_usd(row.cost)}", "dim"))


def _table(watch: _Watch) -> Table:
    table = plain_table("#", "subtask", "state", "worker", "tries", "cost", right=("#", "tries"))
    for index, row in enumerate(watch.rows[:_ROWS]):
        style = {"runs": "cyan", "failed": "red", "succeeded": "green"}.get(row.state, "dim")
        table.add_row(
            str(index), visible(row.tool), row.state, visible(row.worker), str(row.tries),
            _usd(row.cost), style=style,
        )  # fmt: skip
    if len(watch.rows) > _ROWS:
        table.add_row("", f"and {len(watch.rows) - _ROWS} more", "", "", "", _usd(watch.spent))
    return table


def show_result(folder: RunFolder, found: Execution, preset: Preset, as_json: bool) -> None:
    """The nodes, the sums, the last outputs, and where to look next; or all of it as JSON."""
    reward = found.earned(preset).value
    if as_json:
        typer.echo(json.dumps(_json(folder, found, reward), indent=2, ensure_ascii=False))
        return
    console = output()
    table = plain_table(
        "#", "subtask", "after", "result", "worker", "tries", "USD", "seconds",
        right=("#", "tries", "USD", "seconds"),
    )  # fmt: skip
    for node in found.nodes:
        mine = [step for step in found.steps if step.node == node.node]
        asked = [step for step in mine if step.worker is not None]
        result = node.status if node.checked or not node.kept else f"{node.status}, unchecked"
        table.add_row(
            str(node.node),
            visible(found.plan.nodes[node.node].tool),
            ", ".join(str(p) for p in found.plan.nodes[node.node].parents),
            result if node.kept or node.status == "skipped" else f"{result}: {node.reason}",
            visible(node.worker or ""),
            str(len(asked)),
            _usd(sum(step.cost for step in mine)),
            f"{node.seconds:.2f}",
        )
    console.print(table)
    say(console)
    before = counted(found.resumed, "node")
    state = "succeeded" if found.success else f"failed{f', {found.reason}' if found.reason else ''}"
    facts(
        console,
        [
            ("execution", state + (" (a mock: no model was asked)" if found.mock else "")),
            ("cost", f"{_usd(found.total_cost)} USD"),
            ("latency", f"{found.total_latency_ms / 1000:.2f} s along {_path(found)}"),
            ("reward", f"{number(reward)} ({preset})"),
            *([("resumed", f"{before} done before")] if found.resumed else []),
        ],
    )
    _show_outputs(console, found)
    path = shown_path(folder.path)
    say(console, ("\nTrace:", "bold"), f" tutelage show {found.rollout} --run {path}")
    if found.reason == DEADLINE:
        say(console, ("What had ended is kept in ", "dim"), path)


def _show_outputs(console: Console, found: Execution) -> None:
    """What the last nodes gave."""
    for node, text in found.answers.items():
        say(console, (f"\n[{node}] {visible(found.plan.nodes[node].tool)}", "bold"))
        lines = visible(text).split("\n")
        for line in lines[:_OUTPUT_LINES]:
            say(console, f"  {line}")
        if len(lines) > _OUTPUT_LINES:
            say(console, (f"  and {counted(len(lines) - _OUTPUT_LINES, 'more line')}", "dim"))


def _json(folder: RunFolder, found: Execution, reward: float) -> dict[str, Any]:
    """The result as one object."""
    from tutelage.orchestration.execution.journal import plan_json

    first = ("id", "success", "reason", "outputs")
    first += ("total_cost", "total_latency_ms", "verified_fraction")
    return {
        **{name: getattr(found, name) for name in first},
        "reward": reward,
        **{name: getattr(found, name) for name in ("mock", "pool", "router", "path", "resumed")},
        "plan": plan_json(found.plan),
        "nodes": [asdict(node) for node in found.nodes],
        "steps": [step.to_json() for step in found.steps],
        "run": str(folder.path),
        "rollout": found.rollout,
    }


def _path(found: Execution) -> str:
    shown = " -> ".join(found.plan.nodes[node].tool for node in found.path)
    return one_line(shown or "nothing", 80)


def _usd(value: float) -> str:
    return f"{value:.6f}"
