"""Curves as inline SVG that takes its colours from the page and has the same bytes every time.

matplotlib draws with placeholder colours, one for each role; `_themed` turns them into CSS
variables, so that one drawing serves light and dark pages, and removes what an inline drawing does
not need (prologue, metadata, namespaces, identifiers that would repeat within the page). Only the
object API is used: no window system, no global figure. `charts.py` says what is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal

from tutelage.errors import MissingExtraError
from tutelage.runs.report.source import Points
from tutelage.runs.report.words import percent, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROLES: Mapping[str, str] = {
    "ink": "#010101",
    "muted": "#010102",
    "grid": "#010103",
    "before": "#010104",
    "after": "#010105",
    "control": "#010106",
    "train": "#010107",
    "card": "#010108",
}
"""Placeholder colour of each role; the page has a CSS variable of the role's name."""

Style = Literal["line", "faint", "marks", "dashes"]


@dataclass(frozen=True, slots=True)
class Series:
    """One curve of a panel: how it is drawn, and in which role's colour."""

    points: Points
    role: str
    style: Style = "line"


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes. `unit` scales y and words its ticks; `bar` is a line across at that height.

    `shaded` marks a range of x with a label; `height` is the panel's share of the drawing.
    """

    series: Sequence[Series]
    unit: Literal["plain", "share", "percent", "log"] = "plain"
    title: str = ""
    bar: float | None = None
    shaded: tuple[float, float, str] | None = None
    height: float = 1.0


def draw(
    panels: Sequence[Panel], *, size: tuple[int, int], x_label: str, salt: str, font: float = 12
) -> str:
    """Panels one above the other over the same x, as one SVG element.

    `size` is in pixels at natural size; the element fills the width it is given. `salt` keeps the
    identifiers of two drawings of one page apart. Raises `MissingExtraError` without matplotlib.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "the report needs matplotlib: pip install 'tutelage[train]'"
        ) from error
    settings: dict[Any, Any] = dict(matplotlib.rcParamsDefault)
    del settings["backend"]  # the one setting that the context would not put back
    settings |= {
        "svg.hashsalt": ascii(salt),  # a tool's name may hold what has no encoding
        "svg.fonttype": "none",
        "font.size": font,
        "font.family": ["DejaVu Sans"],  # ships with matplotlib: the layout is the same everywhere
        "path.simplify": True,
        "axes.unicode_minus": True,
    }
    # rc_context starts from this process's settings; the defaults make the bytes independent of it.
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(size[0] / 72, size[1] / 72), dpi=72, layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_visible(False)
        grid = figure.subplots(
            len(panels),
            1,
            sharex=True,
            squeeze=False,
            gridspec_kw={"height_ratios": [p.height for p in panels]},
        )
        for axes, panel in zip(grid[:, 0], panels, strict=True):
            _draw_panel(axes, panel, font)
        grid[-1, 0].set_xlabel(x_label, color=ROLES["muted"], fontsize=font)
        out = StringIO()
        empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", metadata=empty)
    return _themed(out.getvalue())


def _draw_panel(axes: Axes, panel: Panel, font: float) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.patch.set_visible(False)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(ROLES["grid"])
    axes.grid(axis="y", color=ROLES["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=5, labelsize=font, labelcolor=ROLES["muted"])
    if panel.title:
        axes.set_title(panel.title, loc="left", fontsize=font, color=ROLES["muted"])
    for series in panel.series:
        _draw_series(axes, series)
    if panel.shaded is not None:
        _shade(axes, panel.shaded, font)
    ys = [y for s in panel.series for _, y in s.points]
    if panel.bar is not None:
        axes.axhline(panel.bar, color=ROLES["before"], linewidth=1.2, linestyle=(0, (5, 4)))
    if panel.unit == "log":
        axes.set_yscale("log")
        _log_limits(axes, [*ys, *([] if panel.bar is None else [panel.bar])])
    elif panel.unit == "percent":
        axes.set_ylim(min(0.0, *ys) - 0.03, max(1.0, *ys) + 0.03)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.yaxis.set_major_formatter(_worded(percent))
    else:
        low, high = min(0.0, *ys), max(0.0, *ys)
        room = 0.06 * (high - low) or (0.01 if panel.unit == "share" else 1.0)
        axes.set_ylim(low - (room if low < 0 else room / 3), high + room)
        axes.yaxis.set_major_locator(MaxNLocator(3, min_n_ticks=2))
        axes.yaxis.set_major_formatter(_worded(percent if panel.unit == "share" else short))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(_worded(short))
    axes.margins(x=0.02)
    if len(xs := {x for s in panel.series for x, _ in s.points}) == 1:
        axes.set_xlim(min(xs) - 1, max(xs) + 1)


def _worded(words: Callable[[float], str]) -> Any:
    from matplotlib.ticker import FuncFormatter

    def worded(value: float, _: int | None) -> str:
        return words(value)

    return FuncFormatter(worded)


def _log_limits(axes: Axes, values: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    above = [v for v in values if v > 0] or [1.0]
    axes.set_ylim(min(above) / 3, max(above) * 3)
    axes.yaxis.set_major_locator(LogLocator(10, numticks=4))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(_worded(short))


def _draw_series(axes: Axes, series: Series) -> None:
    if not series.points:
        return
    xs, ys = zip(*series.points, strict=True)
    color = ROLES[series.role]
    lonely = len(xs) == 1
    if series.style == "faint":
        axes.plot(xs, ys, color=color, linewidth=1, alpha=0.35, marker="o" if lonely else None)
    elif series.style == "line":
        axes.plot(xs, ys, color=color, linewidth=2, marker="o" if lonely else None, markersize=5)
    else:
        axes.plot(
            xs,
            ys,
            color=color,
            linewidth=1.6,
            linestyle="-" if series.style == "marks" else (0, (3, 2)),
            marker="o",
            markersize=5,
            markerfacecolor=color if series.style == "marks" else ROLES["card"],
            markeredgecolor=color,
            markeredgewidth=1.4,
            clip_on=False,
            zorder=4,
        )


def _shade(axes: Axes, shaded: tuple[float, float, str], font: float) -> None:
    low, high, label = shaded
    axes.axvspan(low, high, color=ROLES["before"], alpha=0.12, linewidth=0)
    axes.annotate(
        label,
        (low, 0.06),
        xycoords=("data", "axes fraction"),
        xytext=(-6, 0),
        textcoords="offset points",
        ha="right",
        fontsize=font,
        color=ROLES["before"],
    )


def _themed(svg: str) -> str:
    """The drawing as an element of a page; see the module's paragraph."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(
        r"<metadata>.*?</metadata>|<!--.*?-->|<style[^>]*>.*?</style>", "", svg, flags=re.S
    )
    head, body = svg.split(">", 1)
    view = re.search(r'viewBox="[^"]*"', head)
    head = f'<svg {view.group(0) if view else ""} aria-hidden="true" focusable="false"'
    body = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", body).replace("xlink:href", "href")
    svg = f"{head}>{body}".strip()
    for role, color in ROLES.items():
        svg = svg.replace(color, f"var(--{role})")
    return re.sub(r"\s*\n\s*", "\n", svg)
