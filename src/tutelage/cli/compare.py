"""`tutelage compare RUN RUN ...`: runs of any kind in one table, with what can be said of them.

Prompts, weights and orchestrations are compared on what they earn on held-out tasks and on what
they cost. `evaluate/compare.py` has the statistics, `compare_text.py` the words of each cell; this
file puts them on the terminal, or into a file: a Markdown section, a page of HTML that stands alone
(of the parts of other pages), or JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tutelage.cli import compare_text as words
from tutelage.cli.console import (
    drawn_table,
    facts,
    is_utf8,
    messages,
    output,
    prose,
    say,
    shown_path,
    visible,
    waiting,
)
from tutelage.errors import ConfigError
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
    """Compare runs: gains on held-out tasks, and cost."""
    from tutelage.cli.kinds import kind_of

    known: dict[str, Measure] = {name: name for name in MEASURES}
    if measure not in ("auto", *known):
        raise ConfigError(f"invalid --measure {measure!r}; use auto, {', '.join(MEASURES)}")
    if out is not None and out.suffix not in _KINDS:
        kinds = f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]}"
        raise ConfigError(f"--out {str(out)!r} must end in {kinds}")
    with waiting("reading runs ..."):
        from tutelage.evaluate.compare import compare as compare_runs
        from tutelage.evaluate.compared import read_facts
        from tutelage.runs.folder import find

        folders = list({folder.path.resolve(): folder for folder in map(find, runs)}.values())
        comparison = compare_runs([read_facts(f, kind_of(f)) for f in folders], known.get(measure))
    if as_json:
        typer.echo(_as_json(comparison), nl=False)
    else:
        _show_comparison(output(), comparison)
    if out is not None:
        makers = {".html": _as_html, ".md": _as_markdown, ".json": _as_json}
        write_new({out: makers[out.suffix](comparison)}, "--out")
        say(messages(), "written: ", shown_path(out))


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
    if (picture := words.gain_chart(found.rows)) is not None:
        lines = words.draw(picture, console.width, utf8=is_utf8(console))
        console.print("", *lines, sep="\n", soft_wrap=True)
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
    places = [(visible(name), shown_path(Path(p))) for name, p in _artefacts(found)]
    facts(console, [(f"best of {name}", place) for name, place in places])


# ---------------------------------------------------------------- as a file

_KINDS = (".html", ".md", ".json")


def _as_json(found: Comparison) -> str:
    return json.dumps(found.to_dict(), indent=2, allow_nan=False) + "\n"


def _as_markdown(found: Comparison) -> str:
    """A section for a README: the table, the pairs, the remarks."""
    lines = [f"**{_md(words.title(found))}**", "", *_md_table(words.table(found))]
    if found.pairs:
        lines += ["", *_md_table(words.pairs(found))]
    lines += ["", *[f"**{_md(found.conclusion or '')}**\n"] * (found.conclusion is not None)]
    lines += [f"{_md(text)}\n" for text in words.footnotes(found)]
    lines += [f"- {_md(text)}" for text in words.caveats(found)]
    lines += [f"- best of {_md(name)}: `{place}`" for name, place in _artefacts(found)]
    return "\n".join(lines) + "\n"


def _md_table(table: Table) -> Iterator[str]:
    rows = [list(table.columns), ["---"] * len(table.columns)]
    for row in table.rows:
        label, *cells = [_md(cell.strip()) for cell in row.cells]
        rows.append([label, *(f"**{cell}**" if row.strong else cell for cell in cells)])
    return ("| " + " | ".join(cells) + " |" for cells in rows)


def _md(text: str) -> str:
    return re.sub(r"[\\|*_`<>\[\]]", r"\\\g<0>", visible(" ".join(text.split())).replace("->", "→"))


def _as_html(found: Comparison) -> str:
    from tutelage.runs.report.page import render_page

    places = [f"best of {name}: {place}" for name, place in _artefacts(found)]
    return render_page(
        "cli/compare.html.j2",
        name="compare",
        what="comparison of runs",
        headline=words.title(found),
        pill=None,
        story=(),
        conclusion=found.conclusion,
        table=words.table(found),
        gains=words.gain_chart(found.rows),
        pairs=words.pairs(found),
        footnotes=list(words.footnotes(found)),
        told=[*words.caveats(found), *places],
    )


def _artefacts(found: Comparison) -> list[tuple[str, str]]:
    """Where the best prompt or policy of each run lies."""
    trained = (row.run for row in found.rows if not row.run.evaluation)
    return [(run.name, run.best or "nothing was left") for run in trained]
