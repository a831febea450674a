"""What `tutelage compare` says, cell by cell, before anyone decides how it looks.

Runs are columns, since there are few of them and much to say of each. The terminal
(`compare.py`) and the files (`compare_page.py`) show the same cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tutelage.cli.console import number, percent
from tutelage.evaluate.compare import Comparison, Pair, Row
from tutelage.statistics.intervals import Difference, Verdict

UNKNOWN = "not known"
NOT_MEASURED = "not measured"
NO_SUCCESS = "no success named"

GOOD, BAD, DIM, PLAIN = "good", "bad", "dim", ""
"""Tones of a cell; each form of output has its own colours for them."""
_TONES = {Verdict.IMPROVED: GOOD, Verdict.REGRESSED: BAD, Verdict.NO_EVIDENCE: DIM}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: its label, a cell for each run, the tone of each cell."""

    label: str
    cells: tuple[str, ...]
    tones: tuple[str, ...] = ()
    strong: bool = False

    def tone(self, index: int) -> str:
        """The tone of a cell."""
        return self.tones[index] if self.tones else PLAIN


def title(found: Comparison) -> str:
    """What is compared on what."""
    held_out = "" if any(row.run.trained_on for row in found.rows) else "held-out "
    if len(found.rows) == 1:
        return f"1 run on {found.shared_tasks} {held_out}test tasks"
    runs = f"{len(found.rows)} runs"
    if found.same_tasks and found.shared_tasks:
        return f"{runs} on the same {found.shared_tasks} {held_out}test tasks"
    if found.shared_tasks:
        return f"{runs} on different test tasks, of which they share {found.shared_tasks}"
    return f"{runs} that share no test task"


def sections(found: Comparison) -> list[list[Line]]:
    """The lines, in groups: what was trained, what it earned, what it cost."""
    rows = found.rows

    def line(label: str, cell: Callable[[Row], str], *, strong: bool = False) -> Line:
        return Line(label, tuple(cell(row) for row in rows), strong=strong)

    trained = [
        line("trained", lambda r: f"{r.run.trained}, by {r.run.algorithm}"),
        line("base model", lambda r: r.run.base),
        line("training", lambda r: r.run.updates),
        line("grader", lambda r: r.run.grader),
        line("tested", _tested),
    ]
    verdicts = tuple(UNKNOWN if r.verdict is None else r.verdict.value for r in rows)
    tones = tuple(DIM if r.verdict is None else _TONES[r.verdict] for r in rows)
    earned = [
        line("reward", lambda r: course(r.means.reward_before, r.means.reward_after, _three)),
        line("exact", _exact),
        line("judged", _judged),
        line("gain in reward", lambda r: UNKNOWN if r.reward is None else signed(r.reward.mean)),
        line("  95 % interval", lambda r: interval(r.reward)),
        line("gain in exact", _gain_in_exact),
        line("  95 % interval", lambda r: interval(r.exact, _bare_points)),
        line("wins/losses/ties", lambda r: record(r.reward)),
        Line("verdict", verdicts, tones, strong=True),
    ]
    cost = [
        line("cost", lambda r: dollars(r.run.spent.dollars)),
        line("rollouts", lambda r: count(r.run.spent.rollouts)),
        line("  of them tests", lambda r: count(r.run.spent.test_rollouts)),
        line("model calls", lambda r: count(r.run.spent.calls)),
        line("optimiser calls", lambda r: count(r.run.spent.optimiser_calls)),
        line("tokens", lambda r: count(r.run.spent.tokens)),
        line("minutes", lambda r: minutes(r.run.spent.seconds)),
    ]
    return [trained, earned, cost]


PAIR_HEAD = ("pair", "in", "difference", "95 % interval", "w/l/t", "verdict")


@dataclass(frozen=True, slots=True)
class PairLine:
    """One line about a pair; `tone` is the verdict's, which is the last cell."""

    cells: tuple[str, ...]
    tone: str


def pair_lines(pair: Pair) -> Iterator[PairLine]:
    """Who against whom: in reward, and in exact answers."""
    versus = f"{pair.second} over {pair.first}"
    found = (
        ("reward", pair.reward, pair.verdict, signed),
        ("exact", pair.exact, pair.exact_verdict, _bare_points),
    )
    if pair.reward is None:
        yield PairLine((versus, "", "", "", "", "no task in common"), DIM)
        return
    for index, (name, difference, verdict, words) in enumerate(found):
        if difference is None or verdict is None:
            continue
        mean = points(difference.mean) if name == "exact" else signed(difference.mean)
        cells = (name, mean, interval(difference, words), record(difference))
        told = _PAIR_VERDICTS[verdict]
        yield PairLine(("" if index else versus, *cells, told), _TONES[verdict])


_PAIR_VERDICTS = {
    Verdict.IMPROVED: "better",
    Verdict.NO_EVIDENCE: "no evidence",
    Verdict.REGRESSED: "worse",
}


def footnotes(found: Comparison) -> Iterator[str]:
    """What numbers mean, and what stands in the way of reading them."""
    if found.conclusion is not None:
        yield found.conclusion
    if any(row.reward is not None for row in found.rows):
        yield (
            "Gains are after minus before on the same tasks; intervals are 95 %, by 10,000 paired "
            "bootstrap draws over tasks; below 50 tasks the exact sign test gives the verdict."
        )
    if any(row.run.spent.dollars == 0 for row in found.rows):
        yield (
            "Cost is what was paid for model calls: $ 0.00 where every model ran on this machine "
            "or is free."
        )
    yield from found.remarks


def caveats(found: Comparison) -> list[str]:
    """What else differs between two runs than their training, each said once."""
    by_text: dict[str, list[str]] = {}
    for pair in found.pairs:
        for text in pair.caveats:
            by_text.setdefault(text, []).append(f"{pair.first} and {pair.second}")
    return [f"{'; '.join(who)}: {text}" for text, who in by_text.items()]


def artefacts(found: Comparison) -> list[tuple[str, str]]:
    """Where the best prompt or policy of each run lies."""
    return [(row.run.name, row.run.best or "nothing was left") for row in found.rows]


# ---------------------------------------------------------------- numbers in words


def course(before: float | None, after: float | None, words: Callable[[float], str]) -> str:
    """`0.31 -> 0.94`; what was not measured is said."""
    if before is None and after is None:
        return NOT_MEASURED
    first, second = ("?" if value is None else words(value) for value in (before, after))
    return f"{first} -> {second}"


def _three(value: float) -> str:
    return f"{value:.3f}"


def signed(value: float) -> str:
    """`+0.120`."""
    return f"{value:+.3f}"


def points(value: float) -> str:
    """A difference of shares: 0.12 as `+12.0 points`."""
    return f"{_bare_points(value)} points"


def _bare_points(value: float) -> str:
    return f"{100 * value:+.1f}"


def interval(found: Difference | None, words: Callable[[float], str] = signed) -> str:
    """`+0.05 to +0.19`."""
    return UNKNOWN if found is None else f"{words(found.low)} to {words(found.high)}"


def record(found: Difference | None) -> str:
    """Tasks won, lost and tied."""
    return UNKNOWN if found is None else f"{found.wins}/{found.losses}/{found.ties}"


def count(value: int | None) -> str:
    """A count; thousands are set apart."""
    return UNKNOWN if value is None else number(value)


def dollars(value: float | None) -> str:
    """US dollars, as fine as they are."""
    if value is None:
        return "price not known"
    return f"$ {value:.2f}" if value >= 1 or value == 0 else f"$ {value:.4f}"


def minutes(seconds: float | None) -> str:
    """Minutes with one decimal."""
    return UNKNOWN if seconds is None else f"{seconds / 60:.1f}"


def _exact(row: Row) -> str:
    if _no_success(row):
        return NO_SUCCESS
    return course(row.means.exact_before, row.means.exact_after, percent)


def _gain_in_exact(row: Row) -> str:
    if _no_success(row):
        return NO_SUCCESS
    return UNKNOWN if row.exact is None else points(row.exact.mean)


def _no_success(row: Row) -> bool:
    """Whether there are scores, of a graded reward that does not say what succeeds."""
    means = row.means
    return means.reward_after is not None and means.exact_after is None and row.exact is None


def _judged(row: Row) -> str:
    """`200 of 200`, before and after where they differ."""
    sides = [p for p in row.played if p is not None]
    told = dict.fromkeys(f"{p.judged} of {p.rollouts}" for p in sides)
    return " -> ".join(told) or UNKNOWN


def _tested(row: Row) -> str:
    if row.measure is None:
        return "no"
    return f"{row.tasks} tasks, {row.measure}" if row.tasks else row.measure


# ---------------------------------------------------------------- the picture


@dataclass(frozen=True, slots=True)
class Mark:
    """One interval of the picture, as shares of its width from the left."""

    name: str
    low: float
    mean: float
    high: float
    tone: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Gains with their intervals on one axis. `zero` is the share at which 0 lies."""

    marks: tuple[Mark, ...]
    zero: float
    left: float
    right: float


def picture(rows: Sequence[Row]) -> Picture | None:
    """The gains in reward of runs; None where no run has one."""
    found = [(row, row.reward) for row in rows if row.reward is not None]
    if not found:
        return None
    left = min(0.0, *(d.low for _, d in found))
    right = max(0.0, *(d.high for _, d in found))
    if right - left < 1e-9:
        left, right = left - 0.05, right + 0.05
    room = 0.04 * (right - left)
    left, right = left - room, right + room

    def place(value: float) -> float:
        return (value - left) / (right - left)

    marks = [
        Mark(
            row.run.name,
            place(d.low),
            place(d.mean),
            place(d.high),
            PLAIN if row.verdict is None else _TONES[row.verdict],
        )
        for row, d in found
    ]
    return Picture(tuple(marks), place(0.0), left, right)
