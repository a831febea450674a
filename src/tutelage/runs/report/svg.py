"""Curves as inline SVG with the colours of the page and reproducible bytes.

A curve is a group with the class of its role, whose colour is in `style.css`, and the class of its
style, so that one drawing serves light and dark pages. All elements are plain lines, circles and
texts. `charts.py` selects what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Literal

from tutelage.runs.report.formatting import percent, short
from tutelage.runs.report.source import Points

Style = Literal["line", "thin", "marks", "dashes"]
_FAR = 1e300
"""Limit to which larger numbers are clipped, so that differences stay finite."""


@dataclass(frozen=True, slots=True)
class Series:
    """Curve of a chart, with its style and role."""

    points: Points
    role: str
    style: Style = "line"


Unit = Literal["plain", "share", "percent", "log"]
"""Scale of y and format of its ticks."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """Axis that maps the values from `first` to `last` to the pixels from `start` to `end`."""

    first: float
    last: float
    start: float
    end: float
    log: bool = False

    def pixel(self, value: float) -> float:
        value = max(-_FAR, min(_FAR, value))
        value = math.log10(value) if self.log else value
        share = (value - self.first) / ((self.last - self.first) or 1.0)
        return round(self.start + share * (self.end - self.start), 1)


def draw(
    curves: Sequence[Series],
    unit: Unit,
    bar: float | None = None,
    *,
    size: tuple[int, int],
    x_label: str,
    font: float = 12,
) -> str:
    """Draw curves as an SVG element that fills the available width. `size` is in pixels, and `bar`
    is the y value of a horizontal line."""
    width, height = size
    low, high, ticks, words = _scale(curves, unit, bar)
    left = 0.64 * font * max((len(words(tick)) for tick in ticks), default=0) + font / 2
    xs = [max(-_FAR, min(_FAR, x)) for s in curves for x, _ in s.points] or [0.0]
    room = 0.02 * (max(xs) - min(xs)) or 1.0
    x = _Axis(min(xs) - room, max(xs) + room, left, width - font)
    bottom = height - 3.2 * font
    y = _Axis(low, high, bottom, 0.7 * font, log=unit == "log")
    parts: list[str] = []
    for tick in ticks:
        parts.append(_draw_line(x, y.pixel(tick), "rule"))
        parts.append(_draw_text(left - font / 2, y.pixel(tick) + 0.35 * font, words(tick), "end"))
    parts += [_draw_curve(series, x, y) for series in curves if series.points]
    if bar is not None:
        parts.append(_draw_line(x, y.pixel(bar), "limit before"))
    parts += [
        _draw_text(x.pixel(tick), bottom + 1.4 * font, short(tick), "middle")
        for tick in _ticks(min(xs), max(xs), 5, integers=True)
    ]
    parts.append(_draw_text((left + width) / 2, height - 0.3 * font, x_label, "middle"))
    return (
        f'<svg viewBox="0 0 {width} {height}" font-size="{font:g}" aria-hidden="true" '
        f'focusable="false">\n' + "\n".join(parts) + "\n</svg>"
    )


_Scale = tuple[float, float, Sequence[float], Callable[[float], str]]
"""Range of y, its ticks, and their format."""


def _scale(curves: Sequence[Series], unit: Unit, bar: float | None) -> _Scale:
    ys = [max(-_FAR, min(_FAR, y)) for s in curves for _, y in s.points] or [0.0]
    if unit == "log":
        above = [v for v in (*ys, bar or 0.0) if v > 0] or [1.0]
        low, high = math.log10(min(above) / 3), math.log10(max(above) * 3)
        powers = range(math.ceil(low), math.floor(high) + 1)
        return low, high, [10.0**n for n in powers[:: -(-len(powers) // 4) or 1]], short
    if unit == "percent":
        return min(0.0, *ys) - 0.03, max(1.0, *ys) + 0.03, (0, 0.25, 0.5, 0.75, 1), percent
    low, high = min(0.0, *ys), max(0.0, *ys)
    room = 0.06 * (high - low) or (0.01 if unit == "share" else 1.0)
    low, high = low - (room if low < 0 else room / 3), high + room
    return low, high, _ticks(low, high, 3), percent if unit == "share" else short


def _ticks(low: float, high: float, count: int, *, integers: bool = False) -> list[float]:
    """Return round numbers from `low` to `high` in about `count` steps."""
    rough = (high - low) / count
    if rough <= 0:
        return [low]
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(n * size for n in (1, 2, 5, 10) if n * size >= rough * (1 - 1e-9))
    step = max(1.0, step) if integers else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * n for n in range(first, last + 1)]


def _draw_curve(series: Series, x: _Axis, y: _Axis) -> str:
    points = [(x.pixel(a), y.pixel(b)) for a, b in series.points]
    dots = points if series.style in ("marks", "dashes") or len(points) == 1 else []
    if len(points) > 2 * (x.end - x.start):  # what lies in one column is drawn as its ends
        columns = [(a, [b for _, b in some]) for a, some in groupby(points, lambda p: round(p[0]))]
        points = [(a, end) for a, some in columns for end in (min(some), max(some))]
    line = " ".join(f"{a:g},{b:g}" for a, b in points)
    circles = "".join(f'<circle cx="{a:g}" cy="{b:g}" r="2.5"/>' for a, b in dots)
    return f'<g class="{series.role} {series.style}"><polyline points="{line}"/>{circles}</g>'


def _draw_line(x: _Axis, y: float, name: str) -> str:
    return f'<line class="{name}" x1="{x.start:g}" x2="{x.end:g}" y1="{y:g}" y2="{y:g}"/>'


def _draw_text(x: float, y: float, text: str, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="muted" {place}>{escape(text)}</text>'
