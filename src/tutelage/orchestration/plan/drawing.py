"""A plan as an SVG picture: one column a level, one box a subtask, a curve for each wait.

Drawn with the standard library alone and the same bytes every time; colours follow the page's, so a
picture can stand in a light or a dark one. `dag.py` has the text and the Mermaid form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from tutelage.orchestration.plan.dag import Plan, levels

WIDE, HIGH, GAP_X, GAP_Y, EDGE = 200, 34, 70, 22, 20
LINE = 16
"""What a line of notes adds to a box."""
_LETTERS, _NOTE_LETTERS = 26, 32


def to_svg(plan: Plan, notes: Mapping[int, Sequence[str]] | None = None, footer: str = "") -> str:
    """The picture; `notes` are further lines in the boxes, such as workers, `footer` one below."""
    notes = notes or {}
    columns = levels(plan)
    tallest = max((len(column) for column in columns), default=0)
    high = HIGH + LINE * max((len(lines) for lines in notes.values()), default=0)
    below = 2 * LINE if footer else 0
    height = 2 * EDGE + tallest * high + max(0, tallest - 1) * GAP_Y
    width = 2 * EDGE + len(columns) * WIDE + max(0, len(columns) - 1) * GAP_X
    places: dict[int, tuple[int, int]] = {}
    for x, column in enumerate(columns):
        own = len(column) * high + (len(column) - 1) * GAP_Y
        top = (height - own) // 2
        for y, node in enumerate(column):
            places[node] = (EDGE + x * (WIDE + GAP_X), top + y * (high + GAP_Y))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + below}" '
        f'width="{width}" height="{height + below}" font-family="sans-serif" font-size="13" '
        'role="img">',
        f"<title>{escape(_clean(plan.instruction))}</title>",
        "<style>.b{fill:#eef3fb;stroke:#5b7db1}.t{fill:#14233b}.n{fill:#4a5a73;font-size:11px}"
        ".e{fill:none;stroke:#7a8aa3;stroke-width:1.5}</style>",
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#7a8aa3"/></marker></defs>',
    ]
    for before, after in plan.edges:
        (x1, y1), (x2, y2) = places[before], places[after]
        x1, y1, y2 = x1 + WIDE, y1 + high // 2, y2 + high // 2
        bend = max(30, (x2 - x1) // 2)
        lines.append(
            f'<path class="e" marker-end="url(#a)" d="M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} '
            f'{x2} {y2}"/>'
        )
    for node, (x, y) in places.items():
        label = f"{node}  {plan.nodes[node].tool}"
        lines.append(f'<rect class="b" x="{x}" y="{y}" width="{WIDE}" height="{high}" rx="8"/>')
        lines.append(f'<text class="t" x="{x + 12}" y="{y + 22}">{escape(_short(label))}</text>')
        for place, note in enumerate(notes.get(node, ())):
            lines.append(
                f'<text class="n" x="{x + 12}" y="{y + 40 + LINE * place}">'
                f"{escape(_short(note, _NOTE_LETTERS))}</text>"
            )
    if footer:
        lines.append(f'<text class="n" x="{EDGE}" y="{height + 8}">{escape(_clean(footer))}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _clean(text: str) -> str:
    """XML allows no control characters but tab and line ends."""
    return "".join(c if c.isprintable() else " " for c in text)


def _short(text: str, letters: int = _LETTERS) -> str:
    text = _clean(text)
    return text if len(text) <= letters else text[: letters - 1] + "…"
