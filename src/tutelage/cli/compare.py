"""`tutelage compare RUN RUN ...`: runs of any kind in one table, with what can be said of them.

Prompts, weights and orchestrations are compared on what they earn on held-out tasks and on what
they cost. `evaluate/compare.py` has the statistics, `compare_words.py` the words of each cell; this
file puts them on the terminal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from tutelage.cli.compare_words import Picture
    from tutelage.evaluate.compare import Comparison, Measure

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
    from tutelage.cli.compare_page import check_file, write_comparison
    from tutelage.cli.console import messages, output, say, shown_path, waiting
    from tutelage.cli.kinds import kind_of

    chosen = _measure(measure)
    if out is not None:
        check_file(out)
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
        write_comparison(out, found)
        say(messages(), "written: ", shown_path(out))


def _measure(text: str) -> Measure | None:
    from tutelage.errors import ConfigError
    from tutelage.evaluate.compare import MEASURES

    if text == "auto":
        return None
    known: dict[str, Measure] = {name: name for name in MEASURES}
    if text not in known:
        raise ConfigError(f"--measure {text!r} is not one of auto, {', '.join(MEASURES)}")
    return known[text]


def _show_comparison(console: Console, found: Comparison) -> None:
    """The table, the picture of gains, the pairs, and what must be said about them."""
    from tutelage.cli import compare_words as words
    from tutelage.cli.console import drawn_table, facts, is_utf8, prose, say, shown_path, visible

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
    from rich.text import Text

    from tutelage.cli.console import TONES, one_line

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
