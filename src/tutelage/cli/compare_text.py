"""What `tutelage compare` says, cell by cell, before anyone decides how it looks.

Runs are columns, since there are few of them and much to say of each. The terminal and the files
(`compare.py`) show the same cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.text import Text

from tutelage.cli.console import TONES, number, one_line, percent
from tutelage.errors import counted
from tutelage.evaluate.compare import Comparison, ComparisonRow
from tutelage.runs.figures import Table, TableRow
from tutelage.runs.report.formatting import listed
from tutelage.statistics.intervals import Difference, Verdict

T = TypeVar("T")

_UNKNOWN = "not known"
_NOT_MEASURED = "not measured"
_NO_SUCCESS = "no success named"

_VERDICTS: Mapping[Verdict | None, tuple[str, str]] = {
    Verdict.IMPROVED: ("good", "better"),
    Verdict.NO_EVIDENCE: ("dim", "no evidence"),
    Verdict.REGRESSED: ("bad", "worse"),
    None: ("dim", ""),
}
"""The tone of a verdict, and what it says of the second run of a pair; None has a caveat."""


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
    without = [row.run.name for row in found.rows if not row.tasks]
    return (
        f"{runs}, without scores by task of {listed(without)}"
        if without
        else (f"{runs} that share no test task")
    )


def table(found: Comparison) -> Table:
    """What was trained, what it earned, what it cost: a line each, and a column a run."""
    rows = found.rows

    def line(label: str, cell: Callable[[ComparisonRow], str], *, first: bool = False) -> TableRow:
        return TableRow((label, *map(cell, rows)), ("dim", *[""] * len(rows)), first=first)

    verdicts = [_of(r.verdict, lambda verdict: verdict.value) for r in rows]
    tones = ["", *(_VERDICTS[r.verdict][0] for r in rows)]
    gains = (
        line("gain in reward", lambda r: _of(r.reward, lambda gap: _signed(gap.mean))),
        line("  95 % interval", lambda r: _interval(r.reward, _signed)),
        line("gain in exact", _gain_in_exact),
        line("  95 % interval", lambda r: _interval(r.exact, _points)),
        line("wins/losses/ties", lambda r: _record(r.reward)),
        TableRow(("verdict", *verdicts), tones, strong=True),
    )
    return Table(
        ("", *(row.run.name for row in rows)),
        (
            line("trained", _trained),
            line("agent", lambda r: Path(r.run.agent).name or _UNKNOWN),
            line("base model", lambda r: r.run.base),
            *[line("training", lambda r: r.run.updates)] * any(r.run.updates for r in rows),
            line("grader", lambda r: r.run.grader),
            line("tested", _tested),
            line("reward", _reward, first=True),
            line("exact", _exact),
            line("judged", _judged),
            *(() if all(r.run.evaluation for r in rows) else gains),
            line("cost", lambda r: _dollars(r.run.spent.dollars), first=True),
            line("rollouts", lambda r: _of(r.run.spent.rollouts, number)),
            line("  of them tests", lambda r: _of(r.run.spent.test_rollouts, number)),
            line("model calls", lambda r: _of(r.run.spent.calls, number)),
            line("optimiser calls", lambda r: _of(r.run.spent.optimiser_calls, number)),
            line("tokens", lambda r: _of(r.run.spent.tokens, number)),
            line("minutes", lambda r: _of(r.run.spent.seconds, lambda s: f"{s / 60:.1f}")),
        ),
    )


def pairs(found: Comparison) -> Table:
    """Pairwise comparisons: in reward, and in exact answers."""
    head = ("pair", "in", "difference", "95 % interval", "w/l/t", "verdict")
    rows: list[TableRow] = []
    for pair in found.pairs:
        versus = f"{pair.second} over {pair.first}"
        for name, gap, verdict, words, unit in (
            ("reward", pair.reward, pair.verdict, _signed, ""),
            ("exact", pair.exact, pair.exact_verdict, _points, " points"),
        ):
            cells = ("",) * 4
            if gap is not None:
                cells = (name, words(gap.mean) + unit, _interval(gap, words), _record(gap))
            if gap is not None or name == "reward":
                tone, message = _VERDICTS[verdict]
                rows.append(
                    TableRow((versus, *cells, message or pair.caveats[0]), ("",) * 5 + (tone,))
                )
                versus = ""
    return Table(head, rows, right=(2, 3, 4))


def footnotes(found: Comparison) -> Iterator[str]:
    """What numbers mean, and what stands in the way of reading them."""
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


# ---------------------------------------------------------------- numbers in words


def _course(row: ComparisonRow, part: str, words: Callable[[float], str]) -> str:
    """`0.31 -> 0.94`, `0.94` of an evaluation; what was not measured is said."""
    before, after = (row.means[f"{part}_{when}"] for when in ("before", "after"))
    if before is None and after is None:
        return _NOT_MEASURED
    if row.run.evaluation and after is not None:
        return words(after)
    first, second = ("?" if value is None else words(value) for value in (before, after))
    return f"{first} -> {second}"


def _trained(row: ComparisonRow) -> str:
    if row.run.evaluation:
        return "nothing: evaluated"
    return f"{row.run.trained}, by {row.run.algorithm}"


def _of(value: T | None, words: Callable[[T], str]) -> str:
    return _UNKNOWN if value is None else words(value)


def _signed(value: float) -> str:
    return f"{value:+.3f}"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def _interval(found: Difference | None, words: Callable[[float], str]) -> str:
    """`+0.05 to +0.19`."""
    return _of(found, lambda gap: f"{words(gap.low)} to {words(gap.high)}")


def _record(found: Difference | None) -> str:
    """Tasks won, lost and tied."""
    return _of(found, lambda gap: f"{gap.wins}/{gap.losses}/{gap.ties}")


def _dollars(value: float | None) -> str:
    """US dollars, as fine as they are."""
    if value is None:
        return "price not known"
    return f"$ {value:.2f}" if value >= 1 or value == 0 else f"$ {value:.4f}"


def _reward(row: ComparisonRow) -> str:
    return _course(row, "reward", "{:.3f}".format)


def _exact(row: ComparisonRow) -> str:
    if _no_success(row):
        return _NO_SUCCESS
    return _course(row, "exact", percent)


def _gain_in_exact(row: ComparisonRow) -> str:
    if _no_success(row):
        return _NO_SUCCESS
    return _of(row.exact, lambda gap: f"{_points(gap.mean)} points")


def _no_success(row: ComparisonRow) -> bool:
    """True if there are scores of a graded reward that does not define success."""
    means = row.means
    graded = means["reward_after"] is not None and means["exact_after"] is None
    return graded and row.exact is None


def _judged(row: ComparisonRow) -> str:
    """`200 of 200`, before and after where they differ."""
    sides = [p for p in row.played if p is not None]
    fields = dict.fromkeys(f"{p.judged} of {p.rollouts}" for p in sides)
    return " -> ".join(fields) or _UNKNOWN


def _tested(row: ComparisonRow) -> str:
    if row.measure is None:
        return "no"
    return f"{counted(row.tasks, 'task')}, {row.measure}" if row.tasks else row.measure


# ---------------------------------------------------------------- the picture


@dataclass(frozen=True, slots=True)
class _Mark:
    """One interval of the picture, as shares of its width from the left."""

    name: str
    low: float
    mean: float
    high: float
    tone: str


@dataclass(frozen=True, slots=True)
class _Picture:
    """Gains with their intervals on one axis. `zero` is the share at which 0 lies."""

    marks: Sequence[_Mark]
    zero: float
    left: float
    right: float


def gain_chart(rows: Sequence[ComparisonRow]) -> _Picture | None:
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
        _Mark(r.run.name, place(d.low), place(d.mean), place(d.high), _VERDICTS[r.verdict][0])
        for r, d in found
    ]
    return _Picture(marks, place(0.0), left, right)


def draw(drawn: _Picture, width: int, *, utf8: bool) -> list[Text]:
    """Gains with their intervals as lines of text, on one axis whose zero is marked."""
    room = min(24, max(len(mark.name) for mark in drawn.marks))
    size = max(20, min(72, width - room - 2))
    open_, line, close, dot, axis = "├─┤●│" if utf8 else "|-|o:"

    def place(share: float) -> int:
        return min(size - 1, max(0, round(share * (size - 1))))

    lines = [Text("gain in reward, with its 95 % interval", "dim")]
    for mark in drawn.marks:
        cells = [" "] * size
        cells[place(drawn.zero)] = axis
        low, mean, high = place(mark.low), place(mark.mean), place(mark.high)
        cells[low : high + 1] = line * (high + 1 - low)
        cells[low], cells[high], cells[mean] = open_, close, dot
        name = f"{one_line(mark.name, room):<{room}}  "
        lines.append(Text.assemble((name, "dim"), ("".join(cells).rstrip(), TONES[mark.tone])))
    left, right = f"{drawn.left:+.2f}", f"{drawn.right:+.2f}"
    scale = " " * size
    for text, start in (("0", place(drawn.zero)), (left, 0), (right, size - len(right))):
        end = start + len(text)
        if not scale[max(0, start - 1) : end + 1].strip():
            scale = scale[:start] + text + scale[end:]
    return [*lines, Text(" " * (room + 2) + scale.rstrip(), "dim")]
