"""`tutelage compare RUN RUN ...`: runs of any kind in one table, with their paired differences.

Prompts, weights and orchestrations are compared by their rewards on held-out tasks and by their
costs. `evaluate/compare.py` computes the statistics; this module formats them for the terminal, as
a Markdown section, or as JSON. Each run is a column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer
from rich.console import Console

from tutelage.cli.console import (
    build_table,
    echo,
    echo_pairs,
    echo_text,
    escape,
    format_path,
    messages,
    number,
    output,
    percent,
    show_status,
)
from tutelage.cli.options import AsJson
from tutelage.config.fields import Section
from tutelage.errors import ConfigError, pluralize
from tutelage.evaluate.compare import Comparison, ComparisonRow
from tutelage.files import write_files
from tutelage.runs.figures import Table, TableRow
from tutelage.runs.report.formatting import join_words
from tutelage.statistics.intervals import Difference, Verdict

T = TypeVar("T")

_LABEL_WIDTH = 17
"""Width of the label column, in characters."""
_COLUMN_WIDTH = 20
"""Minimum width of a run's column, in characters; columns that do not fit form a second table."""
_UNKNOWN, _NOT_MEASURED, _NO_SUCCESS = "not known", "not measured", "no success named"

_VERDICTS: Mapping[Verdict | None, tuple[str, str]] = {
    Verdict.IMPROVED: ("good", "better"),
    Verdict.NO_EVIDENCE: ("dim", "no evidence"),
    Verdict.REGRESSED: ("bad", "worse"),
    None: ("dim", ""),
}
"""Tone and text of the verdict on the second run of a pair; a pair without a verdict has a
caveat."""


class _CompareOptions(Section):
    """Options of `compare`."""

    measure: Literal["auto", "greedy", "sampled"] = "auto"
    """Compare greedy or sampled tests; auto chooses."""
    out: Path | None = None
    """Also write the comparison to a file: .md or .json."""


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs, by name or folder.")],
    options: _CompareOptions,
    as_json: AsJson = False,
) -> None:
    """Compare runs: gains on held-out tasks, and cost."""
    from tutelage.cli.kinds import find_kind

    measure, out = None if options.measure == "auto" else options.measure, options.out
    makers = {".md": _format_markdown, ".json": _format_json}
    if out is not None and out.suffix not in makers:
        raise ConfigError(f"--out {str(out)!r} must end in .md or .json")
    with show_status("reading runs ..."):
        from tutelage.evaluate.compare import compare as compare_runs
        from tutelage.evaluate.compared import read_facts
        from tutelage.runs.folder import find

        folders = list({folder.path.resolve(): folder for folder in map(find, runs)}.values())
        comparison = compare_runs([read_facts(f, find_kind(f)) for f in folders], measure)
    if as_json:
        typer.echo(_format_json(comparison), nl=False)
    else:
        _show_comparison(output(), comparison)
    if out is not None:
        write_files({out: makers[out.suffix](comparison)}, "--out")
        echo(messages(), "written: ", format_path(out))


def _show_comparison(console: Console, comparison: Comparison) -> None:
    """Print the comparison table, the pairwise differences and the notes."""
    echo(console, (_format_title(comparison), "bold"))
    table = _build_table(comparison)
    count = max(1, (console.width - _LABEL_WIDTH) // _COLUMN_WIDTH)
    for first in range(1, len(table.columns), count):
        indices = range(first, min(first + count, len(table.columns)))
        grid = build_table(table, (0, *indices))
        grid.columns[0].no_wrap = True
        grid.columns[0].width = _LABEL_WIDTH
        echo(console)
        console.print(grid)
    echo(console)
    show_pairs(console, comparison)
    echo(console)
    paths = [(escape(name), format_path(Path(p))) for name, p in _best_paths(comparison)]
    echo_pairs(console, [(f"best of {name}", path) for name, path in paths])


def show_pairs(console: Console, comparison: Comparison) -> None:
    """Print the pairwise differences, the conclusion and the notes."""
    if comparison.pairs:
        console.print(build_table(_build_pairs_table(comparison)))
        echo(console)
    if comparison.conclusion is not None:
        echo_text(console, comparison.conclusion, "bold")
    for text in _list_footnotes(comparison):
        echo_text(console, text, "dim")
    for text in _group_caveats(comparison):
        echo_text(console, text, "yellow")


# ---------------------------------------------------------------- as a file


def _format_json(comparison: Comparison) -> str:
    return json.dumps(comparison.to_dict(), indent=2, allow_nan=False) + "\n"


def _format_markdown(comparison: Comparison) -> str:
    """Return a Markdown section with the table, the pairwise differences and the notes."""
    title, conclusion = _format_title(comparison), comparison.conclusion
    lines = [f"**{_escape_md(title)}**", "", *_markdown_rows(_build_table(comparison))]
    if comparison.pairs:
        lines += ["", *_markdown_rows(_build_pairs_table(comparison))]
    lines += ["", f"**{_escape_md(conclusion)}**\n"] if conclusion else [""]
    lines += [f"{_escape_md(text)}\n" for text in _list_footnotes(comparison)]
    lines += [f"- {_escape_md(text)}" for text in _group_caveats(comparison)]
    lines += [f"- best of {_escape_md(name)}: `{path}`" for name, path in _best_paths(comparison)]
    return "\n".join(lines) + "\n"


def _markdown_rows(table: Table) -> Iterator[str]:
    rows = [list(table.columns), ["---"] * len(table.columns)]
    for row in table.rows:
        label, *cells = [_escape_md(cell.strip()) for cell in row.cells]
        rows.append([label, *(f"**{cell}**" if row.strong else cell for cell in cells)])
    return ("| " + " | ".join(cells) + " |" for cells in rows)


def _escape_md(text: str) -> str:
    return re.sub(r"[\\|*_`<>\[\]]", r"\\\g<0>", escape(" ".join(text.split())).replace("->", "→"))


def _best_paths(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the names of trained runs, each with the path of its best prompt or policy."""
    trained = (row.run for row in comparison.rows if not row.run.evaluation)
    return [(run.name, run.best or "nothing was left") for run in trained]


# ---------------------------------------------------------------- words


def _format_title(comparison: Comparison) -> str:
    """Return a title with the numbers of runs and test tasks."""
    held_out = "" if any(row.run.trained_on for row in comparison.rows) else "held-out "
    if len(comparison.rows) == 1:
        return f"1 run on {comparison.shared_tasks} {held_out}test tasks"
    runs = f"{len(comparison.rows)} runs"
    if comparison.same_tasks and comparison.shared_tasks:
        return f"{runs} on the same {comparison.shared_tasks} {held_out}test tasks"
    if comparison.shared_tasks:
        return f"{runs} on different test tasks, of which they share {comparison.shared_tasks}"
    if without := [row.run.name for row in comparison.rows if not row.tasks]:
        return f"{runs}, without scores by task of {join_words(without)}"
    return f"{runs} that share no test task"


def _build_table(comparison: Comparison) -> Table:
    """Return the table of training, rewards and costs, with one column per run."""
    rows = comparison.rows

    def to_row(name: str, fmt: Callable[[ComparisonRow], str], *, first: bool = False) -> TableRow:
        return TableRow((name, *map(fmt, rows)), ("dim", *[""] * len(rows)), first=first)

    def change_text(row: ComparisonRow, metric: str, fmt: Callable[[float], str]) -> str:
        """Return `0.31 -> 0.94`, or `0.94` for an evaluation."""
        before, after = (row.means[f"{metric}_{when}"] for when in ("before", "after"))
        if before is None and after is None:
            return _NOT_MEASURED
        if row.run.evaluation and after is not None:
            return fmt(after)
        first, second = ("?" if value is None else fmt(value) for value in (before, after))
        return f"{first} -> {second}"

    def success_text(row: ComparisonRow, fmt: Callable[[ComparisonRow], str]) -> str:
        """Return `fmt(row)`, or a note if success is not defined for a graded reward."""
        graded = row.means["reward_after"] is not None and row.means["exact_after"] is None
        return _NO_SUCCESS if graded and row.exact is None else fmt(row)

    def cost_text(value: float | None) -> str:
        if value is None:
            return "price not known"
        return f"$ {value:.2f}" if value >= 1 or value == 0 else f"$ {value:.4f}"

    def judged_text(row: ComparisonRow) -> str:
        """Return `200 of 200`, or `200 of 200 -> 190 of 200` if the counts differ."""
        sides = dict.fromkeys(f"{p.judged} of {p.rollouts}" for p in row.played if p is not None)
        return " -> ".join(sides) or _UNKNOWN

    def test_text(row: ComparisonRow) -> str:
        if row.measure is None:
            return "no"
        return f"{pluralize(row.tasks, 'task')}, {row.measure}" if row.tasks else row.measure

    def gain_text(row: ComparisonRow) -> str:
        return _format(row.exact, lambda gap: f"{_points_text(gap.mean)} points")

    def training_text(row: ComparisonRow) -> str:
        return (
            "nothing: evaluated"
            if row.run.evaluation
            else f"{row.run.trained}, by {row.run.algorithm}"
        )

    verdicts = [_format(r.verdict, lambda verdict: verdict.value) for r in rows]
    tones = ["", *(_VERDICTS[r.verdict][0] for r in rows)]
    gains = (
        to_row("gain in reward", lambda r: _format(r.reward, lambda gap: _signed_text(gap.mean))),
        to_row("  95 % interval", lambda r: _interval_text(r.reward, _signed_text)),
        to_row("gain in exact", lambda r: success_text(r, gain_text)),
        to_row("  95 % interval", lambda r: _interval_text(r.exact, _points_text)),
        to_row("wins/losses/ties", lambda r: _tally_text(r.reward)),
        TableRow(("verdict", *verdicts), tones, strong=True),
    )
    return Table(
        ("", *(row.run.name for row in rows)),
        (
            to_row("trained", training_text),
            to_row("agent", lambda r: Path(r.run.agent).name or _UNKNOWN),
            to_row("base model", lambda r: r.run.base),
            *[to_row("training", lambda r: r.run.updates)] * any(r.run.updates for r in rows),
            to_row("grader", lambda r: r.run.grader),
            to_row("tested", test_text),
            to_row("reward", lambda r: change_text(r, "reward", "{:.3f}".format), first=True),
            to_row("exact", lambda r: success_text(r, lambda r: change_text(r, "exact", percent))),
            to_row("judged", judged_text),
            *(() if all(r.run.evaluation for r in rows) else gains),
            to_row("cost", lambda r: cost_text(r.run.spent.dollars), first=True),
            to_row("rollouts", lambda r: _format(r.run.spent.rollouts, number)),
            to_row("  of them tests", lambda r: _format(r.run.spent.test_rollouts, number)),
            to_row("model calls", lambda r: _format(r.run.spent.calls, number)),
            to_row("optimiser calls", lambda r: _format(r.run.spent.optimiser_calls, number)),
            to_row("tokens", lambda r: _format(r.run.spent.tokens, number)),
            to_row("minutes", lambda r: _format(r.run.spent.seconds, lambda s: f"{s / 60:.1f}")),
        ),
    )


def _build_pairs_table(comparison: Comparison) -> Table:
    """Return the table of pairwise comparisons by reward and by success."""
    head = ("pair", "in", "difference", "95 % interval", "w/l/t", "verdict")
    rows: list[TableRow] = []
    for pair in comparison.pairs:
        versus = f"{pair.second} over {pair.first}"
        for name, gap, verdict, fmt, unit in (
            ("reward", pair.reward, pair.verdict, _signed_text, ""),
            ("exact", pair.exact, pair.exact_verdict, _points_text, " points"),
        ):
            cells = ("",) * 4
            if gap is not None:
                cells = (name, fmt(gap.mean) + unit, _interval_text(gap, fmt), _tally_text(gap))
            if gap is not None or name == "reward":
                tone, message = _VERDICTS[verdict]
                rows.append(
                    TableRow((versus, *cells, message or pair.caveats[0]), ("",) * 5 + (tone,))
                )
                versus = ""
    return Table(head, rows, right=(2, 3, 4))


def _list_footnotes(comparison: Comparison) -> Iterator[str]:
    """Yield footnotes on intervals and costs, and the remarks of the comparison."""
    if any(item.reward is not None for item in (*comparison.rows, *comparison.pairs)):
        yield (
            "Gains and differences are of the same tasks; intervals are 95 %, by 10,000 paired "
            "bootstrap draws over tasks; below 50 tasks the exact sign test gives the verdict."
        )
    if any(row.run.spent.dollars == 0 for row in comparison.rows):
        yield (
            "Cost is what was paid for model calls: $ 0.00 where every model ran on this machine "
            "or is free."
        )
    yield from comparison.remarks


def _group_caveats(comparison: Comparison) -> list[str]:
    """Return the caveats of the pairwise comparisons, each with the pairs of runs concerned."""
    by_text: dict[str, list[str]] = {}
    for pair in comparison.pairs:
        for text in pair.caveats:
            by_text.setdefault(text, []).append(f"{pair.first} and {pair.second}")
    return [f"{'; '.join(names)}: {text}" for text, names in by_text.items()]


def _format(value: T | None, fmt: Callable[[T], str]) -> str:
    return _UNKNOWN if value is None else fmt(value)


def _signed_text(value: float) -> str:
    return f"{value:+.3f}"


def _points_text(value: float) -> str:
    return f"{100 * value:+.1f}"


def _interval_text(difference: Difference | None, fmt: Callable[[float], str]) -> str:
    """Format an interval as `+0.05 to +0.19`."""
    return _format(difference, lambda gap: f"{fmt(gap.low)} to {fmt(gap.high)}")


def _tally_text(difference: Difference | None) -> str:
    """Format the numbers of tasks won, lost and tied as `12/3/5`."""
    return _format(difference, lambda gap: f"{gap.wins}/{gap.losses}/{gap.ties}")
