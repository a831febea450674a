"""What a run came to: the before/after table, the totals, and the commands to try next.

Made from `result.json` alone, so that the end of a training and `tutelage show RUN` say the same.
A number that a run did not measure has no row. The job that fills `result.json` is in `train/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tutelage.cli.console import (
    duration,
    facts,
    number,
    one_line,
    percent,
    plain_table,
    prose,
    say,
    shown_path,
)
from tutelage.train.folder import RunFolder

_ROWS = (
    ("sampled", "success_{}_sampled"),
    ("greedy", "success_{}_greedy"),
)
_COLUMNS = ("before", "after", "control")
_CHANGE = "change"
_NO_TOOLS = "success_no_tools_greedy"
_SKILL = "skill_greedy"


def before_after(result: Mapping[str, Any]) -> Table | None:
    """Held-out success before and after training and of the control; None without any."""
    shown = [name for name in _COLUMNS if _measured(result, name)]
    without = _share(result, _NO_TOOLS)
    if without is not None and "after" not in shown:
        shown.append("after")
    if not shown:
        return None
    if {"before", "after"} <= set(shown):
        shown.insert(2, _CHANGE)
    tasks = result.get("test_tasks")
    head = "held-out success" + (f", {tasks} tasks" if tasks else "")
    table = plain_table(head, *shown, right=shown)
    for label, key in _ROWS:
        shares = {name: _share(result, key.format(name)) for name in _COLUMNS}
        cells = {name: _cell(share) for name, share in shares.items()}
        cells[_CHANGE] = _change(shares["before"], shares["after"])
        if any(share is not None for share in shares.values()):
            table.add_row(label, *(cells[name] for name in shown))
    if without is not None:
        table.add_row("greedy, no tools", *(_cell(without) if n == "after" else "" for n in shown))
    return table


def show_outcome(console: Console, folder: RunFolder, result: Mapping[str, Any]) -> None:
    """The table with its footnotes, the totals, and where things lie."""
    table = before_after(result)
    if table is not None:
        console.print(table)
        for line in _footnotes(result):
            prose(console, line, "dim")
        say(console)
    facts(console, _totals(folder, result))


def show_next(console: Console, folder: RunFolder) -> None:
    """Commands that go on from this run."""
    path = shown_path(folder.path)
    say(console, ("Next", "bold"))
    for command in (
        f'tutelage ask {path} "What is 17 * 23 + 5?"',
        f"tutelage show {path}",
        f"tutelage eval {path} --test FILE.jsonl",
        "tutelage runs",
    ):
        say(console, "  ", command)


def _footnotes(result: Mapping[str, Any]) -> Iterator[str]:
    if _measured(result, "control"):
        yield "control: about the same time of supervised training on its own successful rollouts."
    if _share(result, _NO_TOOLS) is not None:
        yield "no tools: without them the policy must know the answers by heart."
    skill = _share(result, _SKILL)
    if skill is not None:
        yield f"greedy success after the clean demonstrations alone: {percent(skill)}."


def _totals(folder: RunFolder, result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "status" in result:
        yield "status", str(result["status"])
    counts = {"rl_steps": "steps", "rollouts": "rollouts", "tokens": "tokens"}
    if "sft_steps" in result:
        counts = {"sft_steps": "supervised steps"} | counts
        counts.pop("rl_steps")
    words = [
        f"{number(result[key])} {name}"
        for key, name in counts.items()
        if result.get(key) is not None
    ]
    if "wall_seconds" in result:
        words.append(f"{duration(result['wall_seconds'])} wall time")
    if "seed" in result:
        words.append(f"seed {result['seed']}")
    yield "done", ", ".join(words)
    first: Mapping[str, str] = result.get("first_failures") or {}
    for cause, count in (result.get("failures") or {}).items():
        told = f" (the first: {one_line(first[cause], 200)})" if cause in first else ""
        yield "failed", f"{number(count)} {cause}{told}"
    yield "run", shown_path(folder.path)
    if folder.policy.is_dir():
        yield "policy", f"{shown_path(folder.policy)} (an ordinary Hugging Face folder)"
    if folder.report.is_file():
        yield "report", shown_path(folder.report)


def _measured(result: Mapping[str, Any], when: str) -> bool:
    return any(_share(result, key.format(when)) is not None for _, key in _ROWS)


def _share(result: Mapping[str, Any], key: str) -> float | None:
    value = result.get(key)
    return float(value) if isinstance(value, (int, float)) else None


def _cell(share: float | None) -> Text:
    return Text("") if share is None else Text(percent(share))


def _change(before: float | None, after: float | None) -> Text:
    if before is None or after is None:
        return Text("")
    points = 100 * (after - before)
    return Text(f"{points:+.1f}", style="green" if points > 0 else "red" if points < 0 else "")
