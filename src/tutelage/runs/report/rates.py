"""Rates and means of the page: cells with their bars, and the tables.

`statistics/outcome.py` computed them when they were measured and `runs/stored_evaluation.py` reads
them; they are formatted here. `view.py` combines them with the other parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tutelage.runs.report.formatting import cut, percent, short
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
    """Table cell with a formatted rate or mean, and the CSS percentages of its optional bar."""

    value: str
    range: str = ""
    at: float = 0.0
    low: float = 0.0
    high: float = 0.0
    bar: bool = True


_RateRow = tuple[str, str, str, Sequence[Cell | None]]
"""Role, name, note and cells of one row."""


def make_rate_tables(source: ReportSource, kind: str) -> dict[str, Any]:
    """Return the tables of rates and means, in total and by task family."""
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
    return {"tables": list(_make_tables(source)), "families": families}


def report_quantities(source: ReportSource) -> tuple[Quantity, ...]:
    """Return the reported quantities of the run, with its main result first."""
    return quantities(source.kind.graded, source.kind.has_success)


def _cell(metric: Quantity, result: StoredEvaluation | None) -> Cell | None:
    """Return a cell with a value, or with the number of judged rollouts if many were lost."""
    message, value = metric.text(result, WORDS[metric]), metric.value_of(result)
    if value is None:
        return Cell(message, bar=False) if message else None
    if result is None or (metric is SUCCESS and not 0 <= value <= 1):
        return None
    low, high = metric.interval(result) or (value, value)
    # A bar is drawn from 0 to 1, which is where most rewards are.
    edges = [100 * min(1.0, max(0.0, edge)) for edge in (value, low, high)]
    return Cell(message, metric.format_range(result, WORDS[metric]), *edges, bar=0 <= value <= 1)


def _make_tables(source: ReportSource) -> Iterator[tuple[str, Sequence[_RateRow]]]:
    """Yield a table for each quantity, with its values before and after training and for the
    control run."""
    estimator = cut(control_estimator(source.result) or "another", 40)
    shown = "demonstrations" in source.result
    start = "after the cold start" if source.phase("cold_start") and not shown else "as it came"
    rows = (
        ("before", "Before", start),
        *[("demonstrations", "Demonstrations", "after the demonstrations alone")] * shown,
        ("after", "After", "after RL" if source.phase("rl") else "after training"),
        ("control", "Control", f"the same training, steps and rollouts with {estimator}"),
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
        if measured := [row for row in pairs if any(row[3])]:
            yield what.name.capitalize(), measured
