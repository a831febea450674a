"""A comparison as a file: a Markdown section, a page of HTML that stands alone, or JSON.

The cells are those of the terminal (`compare_words.py`); the page is made of the parts of other
pages (`runs/report`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tutelage.cli import compare_words as words
from tutelage.cli.console import visible
from tutelage.errors import ConfigError, RunError
from tutelage.evaluate.compare import Comparison
from tutelage.files import write_new
from tutelage.runs.figures import Table

_KINDS = (".html", ".md", ".json")


def check_file(path: Path) -> None:
    """Raise `ConfigError` for a file whose kind cannot be written, before anything is read."""
    if path.suffix not in _KINDS:
        raise ConfigError(
            f"--out {str(path)!r} must end in {', '.join(_KINDS[:-1])} or {_KINDS[-1]}, which says "
            "what is written"
        )


def write_comparison(path: Path, found: Comparison) -> None:
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
