"""What a run came to: the before/after table, the totals, and the commands to try next.

Made from `result.json` alone, so that the end of a training and `tutelage show RUN` say the same.
A number that a run did not measure has no row. A graded reward has its mean as headline, with the
interval; `runs/measured.py` reads what there is to tell. The job that fills `result.json` is in
`weights/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tutelage.cli.console import (
    counted,
    duration,
    facts,
    number,
    one_line,
    plain_table,
    prose,
    say,
    shown_path,
    visible,
)
from tutelage.cli.rates import mean_cell, rate_cell
from tutelage.runs.folder import RunFolder
from tutelage.runs.measured import (
    TOO_MANY_LOST,
    Measured,
    all_judged,
    control_estimator,
    is_graded,
    judged_words,
    read,
)
from tutelage.tasks.overlap import footnote, title

_QUESTION = '"What is 17 * 23 + 5?"'
_KINDS = ("sampled", "greedy")
_COLUMNS = ("before", "after", "control")
_CHANGE = "change"
_NO_TOOLS = "no_tools_greedy"
_CLEAN = "clean_greedy"


@dataclass(frozen=True, slots=True)
class _Quantity:
    """What a table is about: its head, and how an evaluation fills a cell of it."""

    head: str
    cell: Callable[[Measured | None], str]
    value: Callable[[Measured], float | None]
    interval: Callable[[Measured], tuple[float, float] | None] | None
    change: Callable[[float], str]


_SUCCESS = _Quantity(
    "success", rate_cell, lambda m: m.success, None, lambda gap: f"{100 * gap:+.1f}"
)
_REWARD = _Quantity(
    "mean reward",
    mean_cell,
    lambda m: m.reward,
    lambda m: m.reward_interval,
    lambda gap: f"{gap:+.3f}",
)


def before_after(result: Mapping[str, Any]) -> list[Table]:
    """What was measured before and after training and of the control: the mean reward where it is
    graded, and success where there is one."""
    wanted = (_REWARD, _SUCCESS) if is_graded(result) else (_SUCCESS,)
    tables = [_table(result, quantity) for quantity in wanted]
    return [table for table in tables if table is not None]


def _headline(result: Mapping[str, Any]) -> _Quantity:
    return _REWARD if is_graded(result) else _SUCCESS


def _table(result: Mapping[str, Any], what: _Quantity) -> Table | None:
    shown = [name for name in _COLUMNS if any(_told(result, name, k, what) for k in _KINDS)]
    without = read(result, _NO_TOOLS)
    without = without if without is not None and _has(without, what) else None
    if without is not None and "after" not in shown:
        shown.append("after")
    if not shown:
        return None
    if {"before", "after"} <= set(shown):
        shown.insert(2, _CHANGE)
    tasks = result.get("test_tasks")
    heads = [_head(result, name) for name in shown]
    head = title(result, what.head) + (f", {tasks} tasks" if tasks else "")
    table = plain_table(head, *heads, right=heads)
    for kind in _KINDS:
        row = {name: _told(result, name, kind, what) for name in _COLUMNS}
        if not any(row.values()):
            continue
        cells = {name: Text(what.cell(found)) for name, found in row.items()}
        cells[_CHANGE] = _change(row["before"], row["after"], what)
        table.add_row(kind, *(cells[name] for name in shown))
        if what.interval is not None:
            ends = {name: _ends(found, what) for name, found in row.items()}
            table.add_row("  95 % interval", *(ends.get(name, "") for name in shown), style="dim")
    if without is not None:
        told = what.cell(without)
        table.add_row("greedy, no tools", *(told if n == "after" else "" for n in shown))
    return table


def _head(result: Mapping[str, Any], name: str) -> str:
    """A column's title; the control's names its estimator."""
    estimator = control_estimator(result)
    return name if name != "control" or estimator is None else f"control: {visible(estimator)}"


def show_outcome(console: Console, folder: RunFolder, result: Mapping[str, Any]) -> None:
    """The tables with their footnotes, the totals, and where things lie."""
    tables = before_after(result)
    for table in tables:
        console.print(table)
    if tables:
        for line in _footnotes(result):
            prose(console, line, "dim")
        say(console)
    facts(console, _totals(folder, result))


def show_next(console: Console, folder: RunFolder, result: Mapping[str, Any]) -> None:
    """Commands that go on from this run."""
    path = shown_path(folder.path)
    supervised = "sft_steps" in result
    say(console, ("Next", "bold"))
    for command in (
        f"tutelage ask {path} {'QUESTION' if supervised else _QUESTION}",
        f"tutelage show {path}",
        f"tutelage eval {path} --test FILE.jsonl",
        "tutelage runs",
    ):
        say(console, "  ", command)


def _footnotes(result: Mapping[str, Any]) -> Iterator[str]:
    if shared := footnote(result):
        yield shared
    yield from _judged(result)
    estimator = control_estimator(result)
    if estimator is not None and any(read(result, f"control_{kind}") for kind in _KINDS):
        yield (
            f"control: the same training from the same start with the estimator "
            f"{visible(estimator)}, as many steps and rollouts."
        )
    if read(result, _NO_TOOLS) is not None:
        yield "no tools: without them the policy must know the answers by heart."
    clean = read(result, _CLEAN)
    if clean is not None and _has(clean, what := _headline(result)):
        yield (f"after the clean demonstrations alone, on these tasks: {what.cell(clean)}, greedy.")


def _judged(result: Mapping[str, Any]) -> Iterator[str]:
    """How many rollouts were judged: once where all were, else of each evaluation."""
    names = [f"{name}_{kind}" for name in _COLUMNS for kind in _KINDS]
    found = {n: m for n in [*names, _NO_TOOLS] if (m := read(result, n)) is not None}
    each = all_judged(found.values())
    if each is not None:
        yield f"judged: {each} of {each} rollouts in each cell, none failed."
        return
    for name, one in found.items():
        if words := judged_words(one):
            when, kind = name.rsplit("_", 1)
            yield f"{when.replace('_', ' ')}, {kind}: {visible(words)}."
    if any(one.withheld for one in found.values()):
        yield TOO_MANY_LOST


def _totals(folder: RunFolder, result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "status" in result:
        yield "status", str(result["status"])
    words = list(_done(result))
    if "wall_seconds" in result:
        words.append(f"{duration(result['wall_seconds'])} wall time")
    if "seed" in result:
        words.append(f"seed {result['seed']}")
    yield "done", ", ".join(words)
    for name in ("train", "val"):
        before, after = (result.get(f"{name}_loss_{when}") for when in ("before", "after"))
        if after is not None:
            course = number(after) if before is None else f"{number(before)} -> {number(after)}"
            what = "of the first and the last batch" if name == "train" else "of the --val file"
            yield f"{name} loss", f"{course} nats a token, {what}"
    first: Mapping[str, str] = result.get("first_failures") or {}
    for cause, count in (result.get("failures") or {}).items():
        told = f" (the first: {one_line(first[cause], 200)})" if cause in first else ""
        yield "failed", f"{number(count)} {cause}{told}"
    yield "run", shown_path(folder.path)
    if folder.policy.is_dir():
        yield "policy", f"{shown_path(folder.policy)} (an ordinary Hugging Face folder)"
    if folder.report.is_file():
        yield "report", shown_path(folder.report)


def _done(result: Mapping[str, Any]) -> Iterator[str]:
    """What was done, counted: of a supervised run what it learned from, else what it played."""
    if "sft_steps" not in result:
        for key, noun in (("rl_steps", "step"), ("rollouts", "rollout"), ("tokens", "token")):
            if result.get(key) is not None:
                yield counted(result[key], noun)
        return
    yield counted(result["sft_steps"], "supervised step")
    if "examples" in result:
        epochs = f" in {number(result['epochs'])} epochs" if "epochs" in result else ""
        yield f"{counted(result['examples'], 'example')}{epochs}"
    if "trained_tokens" in result:
        yield counted(result["trained_tokens"], "trained token")
    if result.get("rollouts"):
        yield f"{counted(result['rollouts'], 'rollout')} of measurements"


def _has(found: Measured, what: _Quantity) -> bool:
    return what.value(found) is not None or found.withheld


def _told(result: Mapping[str, Any], when: str, kind: str, what: _Quantity) -> Measured | None:
    found = read(result, f"{when}_{kind}")
    return found if found is not None and _has(found, what) else None


def _ends(found: Measured | None, what: _Quantity) -> str:
    ends = None if found is None or what.interval is None else what.interval(found)
    return "" if ends is None else f"{number(ends[0])} to {number(ends[1])}"


def _change(before: Measured | None, after: Measured | None, what: _Quantity) -> Text:
    values = [None if found is None else what.value(found) for found in (before, after)]
    if values[0] is None or values[1] is None:
        return Text("")
    gap = values[1] - values[0]
    return Text(what.change(gap), style="green" if gap > 0 else "red" if gap < 0 else "")
