"""A comparison as a file: a Markdown section, a page of HTML that stands alone, or JSON.

The page has no script and asks for nothing, follows the reader's light or dark scheme, and holds
every text escaped. The cells are those of the terminal (`compare_words.py`).
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from pathlib import Path

from tutelage.cli import compare_words as words
from tutelage.cli.console import visible
from tutelage.errors import ConfigError, RunError
from tutelage.evaluate.compare import Comparison
from tutelage.files import write_new

KINDS = (".html", ".md", ".json")

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --muted: #667079; --line: #d9dee3;
  --paper: #ffffff; --good: #14733d; --bad: #b3261e; --soft: #f3f5f7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ea; --muted: #98a2ab; --line: #363c42;
  --paper: #16191c; --good: #5cc98a; --bad: #ff8a80; --soft: #1f2428; } }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem 1rem .3rem 0; vertical-align: top;
  overflow-wrap: anywhere; }
thead th { border-bottom: 2px solid var(--line); }
tbody th { color: var(--muted); font-weight: normal; white-space: nowrap; }
tr.first th, tr.first td { border-top: 1px solid var(--line); }
tr.strong th { color: var(--ink); } tr.strong { font-weight: 600; background: var(--soft); }
.good { color: var(--good); } .bad { color: var(--bad); } .dim { color: var(--muted); }
p.conclusion { font-weight: 600; } p.remark, li { color: var(--muted); }
svg { width: 100%; height: auto; } svg text { fill: var(--muted); font-size: 13px; }
svg .axis { stroke: var(--line); } svg .good { stroke: var(--good); fill: var(--good); }
svg .bad { stroke: var(--bad); fill: var(--bad); }
svg .dim, svg .plain { stroke: var(--muted); fill: var(--muted); }
"""


def check_file(path: Path) -> None:
    """Raise `ConfigError` for a file whose kind cannot be written, before anything is read."""
    if path.suffix not in KINDS:
        raise ConfigError(
            f"--out {str(path)!r} must end in {', '.join(KINDS[:-1])} or {KINDS[-1]}, which says "
            "what is written"
        )


def write_comparison(path: Path, found: Comparison) -> None:
    """Write it. Raises `RunError` where the place cannot be written."""
    makers = {".html": as_html, ".md": as_markdown, ".json": _as_json}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    write_new({path: makers[path.suffix](found)}, "--out")


def _as_json(found: Comparison) -> str:
    return json.dumps(found.to_dict(), indent=2, allow_nan=False) + "\n"


# ---------------------------------------------------------------- Markdown


def as_markdown(found: Comparison) -> str:
    """A section for a README: the table, the pairs, the remarks."""
    names = [row.run.name for row in found.rows]
    lines = [f"**{_md(words.title(found))}**", ""]
    lines += _md_table(["", *names], list(_md_rows(found)))
    if found.pairs:
        pairs = [line.cells for pair in found.pairs for line in words.pair_lines(pair)]
        lines += ["", *_md_table(list(words.PAIR_HEAD), [[_md(c) for c in row] for row in pairs])]
    lines += [""]
    for index, text in enumerate(words.footnotes(found)):
        strong = index == 0 and found.conclusion is not None
        lines.append(f"{'**' if strong else ''}{_md(text)}{'**' if strong else ''}\n")
    lines += [f"- {_md(text)}" for text in words.caveats(found)]
    lines += [f"- best of {_md(name)}: `{place}`" for name, place in words.artefacts(found)]
    return "\n".join(lines) + "\n"


def _md_rows(found: Comparison) -> Iterator[list[str]]:
    for group in words.sections(found):
        for line in group:
            cells = [_md(cell) for cell in line.cells]
            if line.strong:
                cells = [f"**{cell}**" for cell in cells]
            yield [_md(line.label.strip()), *cells]


def _md_table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _md(text: str) -> str:
    shown = visible(" ".join(text.split())).replace("->", "→")
    for mark in "\\|*_`<>[]":
        shown = shown.replace(mark, f"\\{mark}")
    return shown


# ---------------------------------------------------------------- HTML


def as_html(found: Comparison) -> str:
    """The page."""
    title = _h(words.title(found))
    notes = list(words.footnotes(found))
    body: list[str] = [f"<h1>{title}</h1>"]
    if found.conclusion is not None:
        body.append(f'<p class="conclusion">{_h(notes.pop(0))}</p>')
    body += ['<div class="wide">', *_html_table(found), "</div>"]
    drawn = words.picture(found.rows)
    if drawn is not None:
        body += ["<h2>Gain in reward, with its 95 % interval</h2>", as_svg(drawn)]
    if found.pairs:
        body += ["<h2>Against each other, after training</h2>", *_html_pairs(found)]
    body += [f'<p class="remark">{_h(text)}</p>' for text in notes]
    told = [*words.caveats(found)]
    told += [f"best of {name}: {place}" for name, place in words.artefacts(found)]
    body += ["<ul>", *(f"<li>{_h(text)}</li>" for text in told), "</ul>"]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _html_table(found: Comparison) -> Iterator[str]:
    heads = "".join(f'<th scope="col">{_h(row.run.name)}</th>' for row in found.rows)
    yield f'<table>\n<thead><tr><th scope="col"></th>{heads}</tr></thead>\n<tbody>'
    for number, group in enumerate(words.sections(found)):
        for index, line in enumerate(group):
            kinds = ["first"] if number and not index else []
            kinds += ["strong"] if line.strong else []
            cells = "".join(
                f'<td class="{line.tone(i)}">{_h(cell)}</td>' for i, cell in enumerate(line.cells)
            )
            label = f'<th scope="row">{_h(line.label)}</th>'
            yield f'<tr class="{" ".join(kinds)}">{label}{cells}</tr>'
    yield "</tbody>\n</table>"


def _html_pairs(found: Comparison) -> Iterator[str]:
    heads = "".join(f'<th scope="col">{_h(name)}</th>' for name in words.PAIR_HEAD)
    yield f'<div class="wide"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>'
    for line in (line for pair in found.pairs for line in words.pair_lines(pair)):
        *cells, verdict = line.cells
        shown = "".join(f"<td>{_h(cell)}</td>" for cell in cells)
        yield f'<tr>{shown}<td class="{line.tone}">{_h(verdict)}</td></tr>'
    yield "</tbody>\n</table></div>"


def as_svg(drawn: words.Picture) -> str:
    """Gains and intervals on one axis."""
    left, width, step = 200, 560, 30
    height = step * len(drawn.marks) + 30

    def x(share: float) -> float:
        return round(left + share * width, 1)

    label = "Gain in reward of each run, with its 95 % interval"
    parts = [f'<svg viewBox="0 0 {left + width + 20} {height}" role="img" aria-label="{label}">']
    zero = x(drawn.zero)
    parts.append(f'<line class="axis" x1="{zero}" x2="{zero}" y1="0" y2="{height - 22}"/>')
    for index, mark in enumerate(drawn.marks):
        y = step * index + 18
        tone = mark.tone or "plain"
        parts.append(f'<text x="0" y="{y + 4}">{_h(mark.name[:28])}</text>')
        low, mean, high = x(mark.low), x(mark.mean), x(mark.high)
        ends = "".join(f"M{at} {y - 5}V{y + 5}" for at in (low, high))
        path = f"M{low} {y}H{high}{ends}"
        parts.append(f'<path class="{tone}" d="{path}" fill="none" stroke-width="2"/>')
        parts.append(f'<circle class="{tone}" cx="{mean}" cy="{y}" r="4"/>')
    scale = ((0.0, f"{drawn.left:+.2f}"), (drawn.zero, "0"), (1.0, f"{drawn.right:+.2f}"))
    shown = [s for s in scale if s[1] == "0" or abs(s[0] - drawn.zero) > 0.08]
    for share, text in shown:
        parts.append(f'<text x="{x(share)}" y="{height - 6}" text-anchor="middle">{text}</text>')
    return "".join([*parts, "</svg>"])


def _h(text: str) -> str:
    return html.escape(visible(text).replace("->", "→"))
