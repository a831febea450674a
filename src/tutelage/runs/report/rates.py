"""Rates and means on the page: cells with their bars, the headline cards, the tables.

What there is to tell, and where nothing is, `statistics/outcome.py` decided when it was measured
and `runs/measured.py` reads; here it is worded. `view.py` puts it beside the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tutelage.runs.measured import (
    TOO_MANY_LOST,
    Measured,
    all_judged,
    control_estimator,
    judged_words,
    read,
)
from tutelage.runs.report.source import Source
from tutelage.runs.report.words import count, cut, percent, points, short

KINDS = (("sampled", "Sampled, as in training"), ("greedy", "Greedy"))


@dataclass(frozen=True, slots=True)
class Cell:
    """One rate or mean: worded, and as CSS percentages for its bar, if it has one."""

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
class Row:
    """One row of a table of before and after."""

    role: str
    name: str
    note: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, slots=True)
class RateTable:
    """Before and after in one quantity."""

    title: str
    rows: Sequence[Row]
    unmeasured: Sequence[str]


@dataclass(frozen=True, slots=True)
class Quantity:
    """Success or mean reward: how it is read and worded."""

    name: str
    value: Callable[[Measured], float | None]
    interval: Callable[[Measured], tuple[float, float] | None]
    words: Callable[[float], str]
    difference: Callable[[float], str]

    def cell(self, found: Measured | None) -> Cell | None:
        """The cell; how many were judged where that is all there is to tell."""
        if found is None:
            return None
        if found.withheld:
            return Cell(f"{found.judged} of {found.rollouts} judged", bar=False)
        value, ends = self.value(found), self.interval(found)
        if value is None or (self.name == "Success" and not 0 <= value <= 1):
            return None
        low, high = ends or (value, value)
        told = "" if ends is None else f"{self.words(low)} to {self.words(high)}"
        # A bar is drawn from 0 to 1, which is where most rewards are.
        edges = [100 * min(1.0, max(0.0, edge)) for edge in (value, low, high)]
        return Cell(self.words(value), told, *edges, bar=0 <= value <= 1)


SUCCESS = Quantity("Success", lambda m: m.success, lambda m: m.success_interval, percent, points)
REWARD = Quantity(
    "Mean reward",
    lambda m: m.reward,
    lambda m: m.reward_interval,
    short,
    lambda gap: f"{gap:+.3f}".replace("-", "−"),
)


def quantities(source: Source) -> tuple[Quantity, ...]:
    """What the run is told in, the headline first: a graded reward in its mean."""
    if not source.kind.graded:
        return (SUCCESS,)
    return (REWARD, SUCCESS) if source.kind.has_success else (REWARD,)


def changes(source: Source) -> list[Change]:
    """The cards: before and after, sampled and greedy, in the headline's quantity."""
    headline, found = quantities(source)[0], list[Change]()
    scale = ("0", "0.5", "1") if source.kind.graded else ("0", "50", percent(1.0))
    for kind, title in KINDS:
        sides = [read(source.result, f"{when}_{kind}") for when in ("before", "after")]
        before, after = (headline.cell(side) for side in sides)
        values = [None if side is None else headline.value(side) for side in sides]
        if before is None or after is None or values[0] is None or values[1] is None:
            continue
        name = title if headline is SUCCESS else f"{headline.name}, {kind}"
        told = headline.difference(values[1] - values[0])
        ends = [("before", before.range), ("after", after.range)]
        ranges = [(role, f"interval {words}") for role, words in ends if words]
        found.append(Change(name, told, before, after, scale, ranges))
    return found


def tables(source: Source) -> list[RateTable]:
    """Before, after and the control, in each quantity."""
    found: list[RateTable] = []
    for quantity in quantities(source):
        rows = _rows(source, quantity)
        shown = [row for row in rows if any(row.cells)]
        missing = [row.name for row in rows if not any(row.cells)]
        if shown:
            found.append(RateTable(quantity.name, shown, missing))
    return found


def judged(source: Source) -> Iterator[str]:
    """How many rollouts were judged: once where all were, else of each evaluation."""
    found = {
        f"{row}, {kind}": one
        for row, kind, key in _EVALUATIONS
        if (one := read(source.result, key)) is not None
    }
    each = all_judged(found.values())
    if each is not None:
        yield f"All of {count(each)} rollouts in each cell were judged; none failed."
        return
    for name, one in found.items():
        if words := judged_words(one):
            yield f"{name}: {cut(words, 300)}."
    if any(one.withheld for one in found.values()):
        yield TOO_MANY_LOST


_EVALUATIONS = (
    ("Before", "sampled", "before_sampled"),
    ("Before", "greedy", "before_greedy"),
    ("After", "sampled", "after_sampled"),
    ("After", "greedy", "after_greedy"),
    ("After, without tools", "greedy", "no_tools_greedy"),
    ("Control", "sampled", "control_sampled"),
    ("Control", "greedy", "control_greedy"),
)


def _rows(source: Source, quantity: Quantity) -> list[Row]:
    def row(role: str, name: str, note: str, *keys: str) -> Row:
        cells = tuple(quantity.cell(read(source.result, key)) for key in keys)
        return Row(role, name, note, cells)

    cold = "after the cold start" if source.phase("cold_start") else "as it came"
    control = f"the same training with {cut(control_estimator(source.result) or 'another', 40)}"
    trained = "after RL" if source.phase("rl") else "after training"
    return [
        row("before", "Before", cold, "before_sampled", "before_greedy"),
        row("after", "After", trained, "after_sampled", "after_greedy"),
        row(
            "control",
            "Control",
            control,
            "control_sampled",
            "control_greedy",
        ),
        row(
            "muted",
            "After, without tools",
            "out of the prompt, results withheld",
            "no_tools_sampled",
            "no_tools_greedy",
        ),
    ]
