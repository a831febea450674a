"""Rates and means on the page: cells with their bars, the headline cards, the tables.

What there is to tell, and where nothing is, `statistics/outcome.py` decided when it was measured
and `runs/stored_evaluation.py` reads; here it is formatted. `view.py` puts it beside the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tutelage.runs.report.formatting import cut, percent, points, short
from tutelage.runs.report.source import ReportSource
from tutelage.runs.stored_evaluation import (
    KINDS,
    REWARD,
    SUCCESS,
    Quantity,
    StoredEvaluation,
    control_estimator,
    quantities,
    read_evaluation,
)

WORDS: Mapping[Quantity, Callable[[float], str]] = {SUCCESS: percent, REWARD: short}


@dataclass(frozen=True, slots=True)
class Cell:
    """One rate or mean: formatted, and as CSS percentages for its bar, if it has one."""

    value: str
    range: str = ""
    at: float = 0.0
    low: float = 0.0
    high: float = 0.0
    bar: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """One of the headline cards: `scale` are the marks below its bar, `ranges` roles and words."""

    title: str
    difference: str
    before: Cell
    after: Cell
    scale: Sequence[str]
    ranges: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _RateTable:
    """Before and after in one quantity; a row is its role, name, note and cells."""

    title: str
    rows: Sequence[tuple[str, str, str, Sequence[Cell | None]]]
    unmeasured: Sequence[str]


def rate_parts(source: ReportSource, kind: str) -> dict[str, Any]:
    """The headline cards and the tables of a page; families by this kind of evaluation, in each
    quantity."""
    sides = [source.families.get(f"{when}/{kind}", {}) for when in ("before", "after")]
    families: list[tuple[str, list[tuple[str, int, Cell | None, Cell | None]]]] = []
    for what in report_quantities(source):
        rows: list[tuple[str, int, Cell | None, Cell | None]] = []
        for name in dict.fromkeys([*sides[1], *sides[0]]):
            before, after = (side.get(name) for side in sides)
            known = after or before
            number = 0 if known is None else known.rollouts or 0
            rows.append((cut(name, 40), number, _cell(what, before), _cell(what, after)))
        if rows:
            families.append((what.name.capitalize(), rows))
    return {
        "changes": list(_changes(source)),
        "tables": list(_tables(source)),
        "families": families,
    }


def report_quantities(source: ReportSource) -> tuple[Quantity, ...]:
    """What the run is told in, the headline first."""
    return quantities(source.kind.graded, source.kind.has_success)


def _cell(what: Quantity, found: StoredEvaluation | None) -> Cell | None:
    """The cell; how many were judged where that is all there is to tell."""
    message, value = what.cell(found, WORDS[what]), what.of(found)
    if value is None:
        return Cell(message, bar=False) if message else None
    if found is None or (what is SUCCESS and not 0 <= value <= 1):
        return None
    low, high = what.interval(found) or (value, value)
    # A bar is drawn from 0 to 1, which is where most rewards are.
    edges = [100 * min(1.0, max(0.0, edge)) for edge in (value, low, high)]
    return Cell(message, what.ends(found, WORDS[what]), *edges, bar=0 <= value <= 1)


def _changes(source: ReportSource) -> Iterator[Change]:
    """The cards: before and after, sampled and greedy, in the headline's quantity."""
    what = report_quantities(source)[0]
    for kind in KINDS:
        sides = [read_evaluation(source.result, f"{when}_{kind}") for when in ("before", "after")]
        before, after = (_cell(what, side) for side in sides)
        old, new = (what.of(side) for side in sides)
        if before is None or after is None or old is None or new is None:
            continue
        name = "Sampled, as in training" if kind == "sampled" else "Greedy"
        message, scale = points(new - old), ("0", "50", percent(1.0))
        if what is REWARD:
            name, scale = f"Mean reward, {kind}", ("0", "0.5", "1")
            message = f"{new - old:+.3f}".replace("-", "−")
        ends = [("before", before.range), ("after", after.range)]
        ranges = [(role, f"interval {words}") for role, words in ends if words]
        yield Change(name, message, before, after, scale, ranges)


def _tables(source: ReportSource) -> Iterator[_RateTable]:
    """Before, after and the control, in each quantity."""
    estimator = cut(control_estimator(source.result) or "another", 40)
    shown = "demonstrations" in source.result
    start = "after the cold start" if source.phase("cold_start") and not shown else "as it came"
    rows = (
        ("before", "Before", start),
        *[("demonstrations", "Demonstrations", "after the demonstrations alone")] * shown,
        ("after", "After", "after RL" if source.phase("rl") else "after training"),
        ("control", "Control", f"the same training with {estimator}"),
        ("no_tools", "After, without tools", "out of the prompt, results withheld"),
    )
    for what in report_quantities(source):
        pairs = [
            (
                key,
                name,
                note,
                [_cell(what, read_evaluation(source.result, f"{key}_{kind}")) for kind in KINDS],
            )
            for key, name, note in rows
        ]
        if shown := [row for row in pairs if any(row[3])]:
            missing = [name for _, name, _, cells in pairs if not any(cells)]
            yield _RateTable(what.name.capitalize(), shown, missing)
