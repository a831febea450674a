"""`tutelage compare RUN RUN ...`: runs of any kind in one table, with what can be said of them.

Prompts, weights and orchestrations are compared on what they earn on held-out tasks and on what
they cost. `evaluate/compare.py` has the statistics, `compare_words.py` the words of each cell; this
file puts them on the terminal, or into a file: a Markdown section, a page of HTML that stands alone
(of the parts of other pages), or JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from tutelage.cli import compare_words as words
from tutelage.cli.compare_words import Picture
from tutelage.cli.console import (
    TONES,
    drawn_table,
    facts,
    is_utf8,
    messages,
    one_line,
    output,
    prose,
    say,
    shown_path,
    visible,
    waiting,
)
from tutelage.errors import ConfigError, RunError
from tutelage.evaluate.compare import Comparison
from tutelage.files import write_new
from tutelage.runs.figures import MEASURES, Measure, Table

_LABEL = 17
"""Columns of the labels."""
_COLUMN = 20
"""Columns that a run needs at least; where not all fit, they go on below."""


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs, by name or folder.")],
    measure: Annotated[
        str, typer.Option(metavar="KIND", help="Tests played greedy or sampled; auto chooses.")
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write it to a file, .html, .md or .json, too."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare runs of any kind: what they gained on held-out tasks, and what it cost."""
    from tutelage.cli.kinds import kind_of

    chosen = _measure(measure)
    if out is not None:
        _check_file(out)
    with waiting("reading runs ..."):
        from tutelage.evaluate.compare import compare as compare_runs
        from tutelage.evaluate.compared import read_facts
        from tutelage.runs.folder import find

        folders = list({folder.path.resolve(): folder for folder in map(find, runs)}.values())
        found = compare_runs([read_facts(f, kind_of(f)) for f in folders], chosen)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        _show_comparison(output(), found)
    if out is not None:
        _write_comparison(out, found)
        say(messages(), "written: ", shown_path(out))


def _measure(text: str) -> Measure | None:
    if text == "auto":
        return None
    known: dict[str, Measure] = {name: name for name in MEASURES}
    if text not in known:
        raise ConfigError(f"--measure {text!r} is not one of auto, {', '.join(MEASURES)}")
    return known[text]


def _show_comparison(console: Console, found: Comparison) -> None:
    """The table, the picture of gains, the pairs, and what must be said about them."""
    say(console, (words.title(found), "bold"))
    table = words.table(found)
    each = max(1, (console.width - _LABEL) // _COLUMN)
    for first in range(1, len(table.columns), each):
        shown = range(first, min(first + each, len(table.columns)))
        drawn = drawn_table(table, (0, *shown))
        drawn.columns[0].no_wrap = True
        drawn.columns[0].width = _LABEL
        say(console)
        console.print(drawn)
    picture = words.picture(found.rows)
    if picture is not None:
        say(console)
        for line in draw(picture, console.width, utf8=is_utf8(console)):
            say(console, line)
    if found.pairs:
        say(console)
        console.print(drawn_table(words.pairs(found)))
    say(console)
    if found.conclusion is not None:
        prose(console, found.conclusion, "bold")
    for text in words.footnotes(found):
        prose(console, text, "dim")
    for text in words.caveats(found):
        prose(console, text, "yellow")
    say(console)
    places = [(visible(name), shown_path(Path(p))) for name, p in words.artefacts(found)]
    facts(console, [(f"best of {name}", place) for name, place in places])


def draw(drawn: Picture, width: int, *, utf8: bool) -> list[Text]:
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
    ends = f"{drawn.left:+.2f}", f"{drawn.right:+.2f}"
    at = place(drawn.zero)
    scale = [" "] * size
    for text, start in (("0", at), (ends[0], 0), (ends[1], size - len(ends[1]))):
        if all(cell == " " for cell in scale[max(0, start - 1) : start + len(text) + 1]):
            scale[start : start + len(text)] = text
    lines.append(Text(" " * (room + 2) + "".join(scale).rstrip(), "dim"))
    return lines


# ---------------------------------------------------------------- as a file

_KINDS = (".html", ".md", ".json")


def _check_file(path: Path) -> None:
    """Raise `ConfigError` for a file whose kind cannot be written, before anything is read."""
    if path.suffix not in _KINDS:
        raise ConfigError(
            f"--out {str(path)!r} must end in {', '.join(_KINDS[:-1])} or {_KINDS[-1]}, which says "
            "what is written"
        )


def _write_comparison(path: Path, found: Comparison) -> None:
    """Write it. Raises `RunError` where the place cannot be written."""
    makers = {".html": _as_html, ".md": _as_markdown, ".json": _as_json}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    write_new({path: makers[path.suffix](found)}, "--out")


def _as_json(found: Comparison) -> str:
    return json.dumps(found.to_dict(), indent=2, allow_nan=False) + "\n"


def _as_markdown(found: Comparison) -> str:
    """A section for a README: the table, the pairs, the remarks."""
    lines = [f"**{_md(words.title(found))}**", "", *_md_table(words.table(found))]
    if found.pairs:
        lines += ["", *_md_table(words.pairs(found))]
    lines += ["", *([] if found.conclusion is None else [f"**{_md(found.conclusion)}**\n"])]
    lines += [f"{_md(text)}\n" for text in words.footnotes(found)]
    lines += [f"- {_md(text)}" for text in words.caveats(found)]
    lines += [f"- best of {_md(name)}: `{place}`" for name, place in words.artefacts(found)]
    return "\n".join(lines) + "\n"


def _md_table(table: Table) -> Iterator[str]:
    rows = [list(table.columns), ["---"] * len(table.columns)]
    for row in table.rows:
        label, *cells = [_md(cell.strip()) for cell in row.cells]
        rows.append([label, *(f"**{cell}**" if row.strong else cell for cell in cells)])
    return ("| " + " | ".join(cells) + " |" for cells in rows)


def _md(text: str) -> str:
    shown = visible(" ".join(text.split())).replace("->", "→")
    for mark in "\\|*_`<>[]":
        shown = shown.replace(mark, f"\\{mark}")
    return shown


def _as_html(found: Comparison) -> str:
    from tutelage.runs.report.page import render_page

    places = [f"best of {name}: {place}" for name, place in words.artefacts(found)]
    return render_page(
        "cli/compare.html.j2",
        name="compare",
        what="comparison of runs",
        headline=words.title(found),
        pill=None,
        story=(),
        conclusion=found.conclusion,
        table=words.table(found),
        gains=words.picture(found.rows),
        pairs=words.pairs(found),
        footnotes=list(words.footnotes(found)),
        told=[*words.caveats(found), *places],
    )
