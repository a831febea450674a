"""What `tutelage orchestrate run` prints at the end: nodes, sums, outputs, or all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from tutelage.orchestration.evaluation.judged import DEADLINE
from tutelage.orchestration.execution.record import steps_by_node

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.orchestration.evaluation.rewards import Preset
    from tutelage.orchestration.execution.record import Execution
    from tutelage.orchestration.planner.choose import Sure
    from tutelage.runs.folder import RunFolder

_OUTPUT_LINES = 6
_SHOWN = 120
"""Characters of a call, or of its result."""
_REASON = 300
"""Characters of why a node failed."""


def show_result(
    folder: RunFolder, found: Execution, preset: Preset, as_json: bool, sure: Sure | None
) -> None:
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

    reward = found.earned(preset).value
    if as_json:
        typer.echo(json.dumps(_json(folder, found, reward, sure), indent=2, ensure_ascii=False))
        return
    console = output()
    table = plain_table(
        "#", "subtask", "after", "result", "worker", "tries", "USD", "seconds",
        right=("#", "tries", "USD", "seconds"),
    )  # fmt: skip
    steps = steps_by_node(found.steps)
    for node in found.nodes:
        mine = steps.get(node.node, ())
        tries = sum(step.worker is not None for step in mine)
        result = node.status if node.checked or not node.kept else f"{node.status}, unchecked"
        planned, parents = found.plan.nodes[node.node], found.plan.nodes[node.node].parents
        first = node.status == "cancelled" and node.reason == "failed"
        reason = "another subtask failed (fail_fast)" if first else node.reason
        whole = result if node.kept or node.status == "skipped" else f"{result}: {reason}"
        words = (
            visible(planned.tool),
            ", ".join(map(str, parents)),
            one_line(whole, _REASON),
            visible(node.worker or ""),
        )
        numbers = (str(tries), usd(sum(step.cost for step in mine)), f"{node.seconds:.2f}")
        table.add_row(str(node.node), *words, *numbers)
    console.print(table)
    say(console)
    facts(console, _told(found, preset, reward, sure).items())
    _show_outputs(console, found, _show_calls(console, found))
    kept = shown_path(folder.path)
    say(console, ("\nTrace:", "bold"), f" tutelage show {found.rollout} --run {kept}")
    if found.reason == DEADLINE:
        say(console, ("What had ended is kept in ", "dim"), kept)


def _told(found: Execution, preset: Preset, reward: float, sure: Sure | None) -> dict[str, str]:
    """The sums, in words."""
    from tutelage.cli.console import number, one_line
    from tutelage.errors import counted

    path = " -> ".join(found.plan.nodes[node].tool for node in found.path) or "nothing"
    planning = f", {found.plan.seconds:.2f} of them planning," if found.plan.seconds else ""
    reason = "ended at the first failed subtask (fail_fast)"
    reason = reason if found.reason == "failed" else found.reason
    state = "succeeded" if found.success else f"failed{f', {reason}' if reason else ''}"
    fields = {
        "execution": state + (" (a mock: no model was asked)" if found.mock else ""),
        "cost": f"{usd(found.total_cost)} USD",
        "latency": f"{found.total_latency_ms / 1000:.2f} s{planning} along {one_line(path, 80)}",
        "reward": f"{number(reward)} ({preset})",
    }
    if sure is not None:
        own, least = (f"{100 * share:.0f} %" for share in sure)
        fields["planner"] = f"{own} sure of its plan; {least} is the least"
    if found.abandoned:
        lost = counted(len(found.abandoned), "node")
        fields["replanned"] = f"{lost} failed or skipped, replaced by nodes of a further plan"
    if found.overspent:
        fields["overspent"] = found.overspent
    if found.unplanned:
        fields["no further plan"] = one_line(found.unplanned, 200)
    if found.resumed:
        fields["resumed"] = f"{counted(found.resumed, 'node')} done before"
    return fields


def _show_calls(console: Console, found: Execution) -> set[int]:
    """What tools were given, and what they gave, by node: of the last nodes more than a line.
    Returns the nodes whose results are shown."""
    from tutelage.cli.console import one_line, say, visible
    from tutelage.orchestration.plan.arguments import shown_type

    shown, last = set[int](), found.answers
    for step in found.steps:
        answer = step.answer
        if answer is None or answer.arguments is None:
            continue
        called = f"\n[{step.node}] {visible(found.plan.nodes[step.node].tool)} "
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
            _show_lines(console, answer.output)
        else:
            say(console, (f"{kind} ", "dim"), one_line(answer.output, _SHOWN))
    return shown


def _show_outputs(console: Console, found: Execution, shown: Container[int]) -> None:
    """What the last nodes gave that is not shown yet."""
    from tutelage.cli.console import say, visible

    for node, text in found.answers.items():
        if node not in shown:
            say(console, (f"\n[{node}] {visible(found.plan.nodes[node].tool)}", "bold"))
            _show_lines(console, text)


def _show_lines(console: Console, text: str) -> None:
    """The first lines of a text."""
    from tutelage.cli.console import say, visible
    from tutelage.errors import counted

    lines = visible(text).split("\n")
    for line in lines[:_OUTPUT_LINES]:
        say(console, f"  {line}")
    if len(lines) > _OUTPUT_LINES:
        say(console, (f"  and {counted(len(lines) - _OUTPUT_LINES, 'more line')}", "dim"))


def _json(folder: RunFolder, found: Execution, reward: float, sure: Sure | None) -> dict[str, Any]:
    """The result as one object."""
    from tutelage.cli.console import shown_path
    from tutelage.orchestration.execution.journal import plan_json

    first = ("id", "success", "reason", "outputs")
    first += ("total_cost", "total_latency_ms", "verified_fraction")
    return {
        **{name: getattr(found, name) for name in first},
        "reward": reward,
        **{name: getattr(found, name) for name in ("mock", "pool", "router", "path", "resumed")},
        "confidence": sure and sure.confidence,
        "min_confidence": sure and sure.least,
        "plan": plan_json(found.plan),
        "nodes": [asdict(node) for node in found.nodes],
        "steps": [step.to_json() for step in found.steps],
        "run": shown_path(folder.path),
        "rollout": found.rollout,
    }


def usd(value: float) -> str:
    return f"{value:.6f}"
