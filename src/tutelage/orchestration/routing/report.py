"""What phase 2 leaves to be read: `phase2.json`, `phase2.md` and plots.

The Markdown is a fragment that a larger report can take over. Plots are PNG, drawn off screen with
matplotlib's objects, so no display and no state of the process is touched.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tutelage.errors import MissingExtraError
from tutelage.orchestration.evaluation.judged import interval_note, workflow_words
from tutelage.orchestration.routing.choosers import LOOKAHEAD
from tutelage.orchestration.routing.curves import hull
from tutelage.orchestration.routing.evaluation import POLICY, RouterEvaluation, Row
from tutelage.orchestration.routing.query_level import CALIBRATED
from tutelage.statistics.intervals import Difference, has_interval

TRAINING = "training.png"
PLOTS = {
    "pareto.png": "Success against cost",
    "aiq.png": "Curves and their hulls",
    TRAINING: "Training",
}
"""By the file; the last one where something was trained."""


def write_report(
    folder: Path, found: RouterEvaluation, history: Sequence[Mapping[str, Any]], *, best_update: int
) -> None:
    """Write all files into `folder`. Raises `MissingExtraError`."""
    data = {"best_update": best_update, **found.to_json(), "history": list(history)}
    numbers = json.dumps(_finite(data), indent=1) + "\n"
    (folder / "phase2.json").write_text(numbers, encoding="utf-8")
    text = _markdown(found, best_update=best_update)
    (folder / "phase2.md").write_text(text, encoding="utf-8")
    _draw(folder, found, history, best_update=best_update)


def _markdown(found: RouterEvaluation, *, best_update: int) -> str:
    """The table and the differences as a fragment of Markdown."""
    lines = [
        "## Routing",
        "",
        f"{workflow_words(found.to_json()['rows'])} {_shipped(found, best_update)} Rewards and "
        "success with 95 % intervals, which count the groups of queries that workflows share. "
        + _note(found),
        "",
        *_HEAD,
        *map(_table_line, found.rows),
        "",
        f"Reward of {found.router} less that of the others, on the same workflows, with 95 % "
        "intervals:",
        "",
        *_difference_table(found.differences, "compared with"),
        "",
        "Mean reward under each preset, of routers that are told it, with 95 % intervals:",
        "",
        *_preset_table(found.presets),
        "",
        f"One try a query, without workflows, of {found.by_query.queries} queries, with 95 % "
        "intervals; accuracy and USD at the most accurate point of a router's curve:",
        "",
        "| router | AIQ | accuracy | USD |",
        "|---|---|---|---|",
        *map(_query_line, found.by_query.rows),
        "",
        f"AIQ of {CALIBRATED} less that of the others, on the same resampled queries:",
        "",
        *_difference_table(found.by_query.differences, "compared with"),
    ]
    drawn = [name for name in PLOTS if name != TRAINING or found.router == POLICY]
    lines += ["", *(f"![{PLOTS[name]}]({name})" for name in drawn), ""]
    return "\n".join(lines)


def _shipped(found: RouterEvaluation, best_update: int) -> str:
    if found.router == POLICY:
        return f"Validation picked the weights of update {best_update}."
    return f"The router is the {LOOKAHEAD}; nothing was trained but its predictor."


def _note(found: RouterEvaluation) -> str:
    gaps = [asdict(each) for each in found.differences.values()]
    presets = [row for rows in found.presets.values() for row in rows]
    queries = [asdict(each) for each in found.by_query.differences.values()]
    notes = (interval_note(found.rows, "reward_"), interval_note([*gaps, *presets, *queries], ""))
    return next(filter(None, notes), "")


def _difference_table(differences: Mapping[str, Difference], head: str) -> list[str]:
    lines = [f"| {head} | difference | interval | |", "|---|---|---|---|"]
    for name, gap in differences.items():
        verdict = "better" if gap.low > 0 else "worse" if gap.high < 0 else "a tie"
        ends = f"{gap.low:+.3f} to {gap.high:+.3f} | {verdict}"
        told = ends if has_interval(gap.low, gap.high) else "none | "
        lines.append(f"| {name} | {gap.mean:+.3f} | {told} |")
    return lines


def _preset_table(presets: Mapping[str, Sequence[Row]]) -> list[str]:
    cells: dict[str, list[str]] = {}
    for rows in presets.values():
        for row in rows:
            cells.setdefault(row["name"], []).append(_ranged(row, "reward", "", ".3f"))
    head = ["| router | " + " | ".join(presets) + " |", "|---" * (len(presets) + 1) + "|"]
    return head + [f"| {name} | {' | '.join(row)} |" for name, row in cells.items()]


def _query_line(row: Row) -> str:
    parts = [
        _ranged(row, key, f"{key}_", form)
        for key, form in (("aiq", ".3f"), ("accuracy", ".3f"), ("cost", ".6f"))
    ]
    return f"| {row['name']} | {' | '.join(parts)} |"


def _ranged(row: Row, key: str, ends: str, form: str) -> str:
    """A number with its interval, alone if there is none."""
    low, high = row[f"{ends}low"], row[f"{ends}high"]
    told = f" ({low:{form}} to {high:{form}})" if has_interval(low, high) else ""
    return f"{row[key]:{form}}{told}"


_HEAD = (
    "| router | reward | success | cost, USD | per success | latency, s | p95 | decisions "
    "| late | gap to oracle | AIQ | Pareto |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
)
_LINE = (
    "| {name} | {earned} "
    "| {success:.1f} % ({success_low:.1f} to {success_high:.1f}) | {cost:.6f} "
    "| {cost_per_success:.6f} | {latency:.2f} | {latency_p95:.2f} "
    "| {tries:.2f} | {late} | {gap_to_oracle:.3f} | {aiq} | {pareto} |"
)


def _table_line(row: Row) -> str:
    """A row of the Markdown table."""
    percent = {key: 100 * row[key] for key in ("success", "success_low", "success_high")}
    area = "" if row["aiq"] is None else f"{row['aiq']:.3f}"
    pareto = "x" if row["pareto"] else ""
    more = {"earned": _ranged(row, "reward", "reward_", ".3f"), "aiq": area, "pareto": pareto}
    return _LINE.format_map({**row, **percent, **more})


def _draw(
    folder: Path, found: RouterEvaluation, history: Sequence[Mapping[str, Any]], *, best_update: int
) -> None:
    """The plots. Raises `MissingExtraError` without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "the plots need matplotlib: pip install 'tutelage[train]'"
        ) from error

    def page(title: str, x: str, y: str) -> tuple[Any, Any]:
        figure: Any = Figure(figsize=(7.5, 4.8), dpi=110)
        FigureCanvasAgg(figure)
        axes: Any = figure.add_subplot()
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(alpha=0.3)
        return figure, axes

    pareto, axes = page("Success against cost", "USD a workflow", "success")
    for row in found.rows:
        marker = "*" if row["name"] == found.router else "o" if row["pareto"] else "x"
        axes.scatter(row["cost"], row["success"], marker=marker, s=160 if marker == "*" else 45)
    for name, x, y, left in _labels(found.rows):
        axes.annotate(name, (x, y), fontsize=8, ha="right" if left else "left",
                      xytext=(-7 if left else 7, 4), textcoords="offset points")  # fmt: skip
    front = sorted(
        (r["cost"], r["success"]) for r in found.rows if r["pareto"] and r["name"] != "oracle"
    )
    axes.plot(*zip(*front, strict=True), linewidth=1, color="grey", label="Pareto front")
    axes.legend(loc="lower right")

    areas, axes = page("Success as cost matters less", "USD a workflow", "success")
    for name, points in found.curves.items():
        drawn = hull(points)
        line = axes.plot(*zip(*drawn, strict=True), label=f"{name}")[0]
        axes.scatter(*zip(*points, strict=True), s=14, color=line.get_color())
    axes.legend(loc="lower right")

    figures = [pareto, areas]
    if found.router == POLICY:
        training, axes = page("Reward in training", "update", "mean reward")
        _draw_training(axes, history, best_update)
        figures.append(training)
    for name, figure in zip(PLOTS, figures, strict=False):
        figure.tight_layout()
        figure.savefig(folder / name, metadata={"Software": None})


def _draw_training(axes: Any, history: Sequence[Mapping[str, Any]], best_update: int) -> None:
    curves = {"train_reward": "sampled, training", "val_reward": "most probable, validation"}
    for key, label in curves.items():
        if values := [(line["step"], line[key]) for line in history if key in line]:
            axes.plot(*zip(*values, strict=True), label=label)
    axes.axvline(best_update, color="grey", linestyle=":", label="picked")
    axes.legend(loc="lower right")


def _labels(rows: Sequence[Row]) -> list[tuple[str, float, float, bool]]:
    """Names with their places, one for all that stand at one spot; whether to write to the left."""
    costs, rates = [row["cost"] for row in rows], [row["success"] for row in rows]
    wide, high = max(costs) - min(costs) or 1.0, max(rates) - min(rates) or 1.0
    spots: dict[tuple[float, float], list[str]] = {}
    for row in rows:
        own = row["cost"], row["success"]
        near = (p for p in spots if abs(own[0] - p[0]) < 0.03 * wide
                and abs(own[1] - p[1]) < 0.03 * high)  # fmt: skip
        spots.setdefault(next(near, own), []).append(row["name"])
    middle = min(costs) + 0.75 * wide
    return [(", ".join(names), x, y, x > middle) for (x, y), names in spots.items()]


def _finite(value: Any) -> Any:
    """JSON has no infinity: a cost per success without a success becomes null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}  # pyright: ignore
    if isinstance(value, list):
        return [_finite(inner) for inner in value]  # pyright: ignore
    return None if isinstance(value, float) and not math.isfinite(value) else value
