"""Charts of a report: the metrics that are shown, with explanations.

Each function reads curves from a `ReportSource` and returns a `Chart`, or None if the run has no
such metric. To add a diagnostic, add a line to `_DIAGNOSTICS`. `svg.py` draws the curves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tutelage.runs.report.formatting import cut, join_words, percent, short
from tutelage.runs.report.source import Points, ReportSource
from tutelage.runs.report.svg import Series, Style, Unit, draw
from tutelage.runs.stored_evaluation import control_estimator
from tutelage.tasks.overlap import split_name, success_title
from tutelage.tools.loading import display_name

_WIDE = (460, 280)
_SMALL = (300, 126)
MAX_DLOGP = 1e-4
"""Maximum of max |Δ log p| between engine and trainer in fp32."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Chart with title, explanation and legend (role, style and label of each curve). `value` is
    the last y."""

    title: str
    note: str
    svg: str
    legend: Sequence[tuple[str, str, str]] = ()
    value: str = ""


@dataclass(frozen=True, slots=True)
class _Diagnostic:
    title: str
    note: str
    metric: str
    unit: str = ""
    scale: Literal["plain", "share", "log"] = "plain"
    bar: float | None = None


_DIAGNOSTICS = (
    _Diagnostic(
        "Entropy",
        "Uncertainty of the sampled tokens. At 0 the policy has stopped exploring.",
        "entropy",
        unit="nats",
    ),
    _Diagnostic(
        "Clip fraction",
        "Share of the tokens whose probability moved out of the trusted range.",
        "ratio/clip_fraction",
        scale="share",
    ),
    _Diagnostic(
        "Max |Δ log p|",
        "Largest gap between engine and trainer at a sampled token. Dashed: the bar of fp32.",
        "max_dlogp",
        scale="log",
        bar=MAX_DLOGP,
    ),
    _Diagnostic(
        "Groups without variance",
        "Share of the tasks whose rollouts all earned the same, which teaches nothing.",
        "group/zero_variance",
        scale="share",
    ),
    _Diagnostic("Turns", "Model calls in one rollout, on average.", "rollout/turns"),
    _Diagnostic("Gradient norm", "Before clipping.", "grad_norm"),
    _Diagnostic(
        "Tokens per second",
        "Sampled tokens per second of sampling and training.",
        "tokens_per_second",
    ),
)


def draw_charts(source: ReportSource) -> dict[str, Any]:
    """Create the charts of a report: learning curves, RL and control run, diagnostics."""
    curves = (*_supervised_charts(source), _reward_chart(source))
    small = [_diagnostic_chart(source, d) for d in (*_DIAGNOSTICS, *_reward_diagnostics(source))]
    small.append(_tool_errors_chart(source))
    return {
        "control_chart": _control_chart(source),
        "curves": [chart for chart in curves if chart is not None],
        "diagnostics": [chart for chart in small if chart is not None],
    }


def moving_average(points: Points, window: int) -> Points:
    """Compute the moving average of points over `window` points."""
    ys = [y for _, y in points]
    return tuple(
        (x, sum(ys[max(0, i + 1 - window) : i + 1]) / min(window, i + 1))
        for i, (x, _) in enumerate(points)
    )


def _metric_curves(points: Points, label: str) -> list[tuple[Series, str]]:
    """Return the curve of a metric with its legend, smoothed if there are many steps."""
    window = max(1, len(points) // 20)
    if window == 1:
        return [(Series(points, "train"), label)]
    smooth = Series(moving_average(points, window), "train")
    return [(Series(points, "train", "thin"), ""), (smooth, f"{label}, mean of {window} steps")]


def _reward_chart(source: ReportSource) -> Chart | None:
    """Create the chart of the mean reward per RL step, with success if it was measured."""
    reward, what = source.curve("rl", "reward/mean"), _val_metric(source)
    sampled = source.curve("rl", f"val/{what}_sampled")
    greedy = source.curve("rl", f"val/{what}_greedy")
    return _make_chart(
        f"Reward and {success_title(source.result, what, 'val')}",
        "Reward is the mean over the rollouts of a step, on training tasks.",
        [
            *_metric_curves(reward, "reward"),
            (
                Series(greedy, "after", "dashes"),
                success_title(source.result, f"{what}, greedy", "val"),
            ),
            (
                Series(sampled, "after", "marks"),
                success_title(source.result, f"{what}, sampled", "val"),
            ),
        ],
        x_label="RL step",
        percent_axis=all(0 <= y <= 1 for _, y in (*reward, *sampled, *greedy)),
    )


def _val_metric(source: ReportSource) -> str:
    """Return the name of the validation metric: `success` if it is defined, else `reward`."""
    return "success" if source.kind.has_success else "reward"


def _supervised_charts(source: ReportSource) -> Iterator[Chart | None]:
    """Yield the charts of the supervised loss, and of greedy success in a cold start."""
    phase = "sft" if source.phase("sft") else "cold_start"
    loss, held = source.curve(phase, "loss/sft"), source.curve(phase, "val/loss")
    other = f"loss on {split_name(source.result, 'val')} demonstrations"
    yield _make_chart(
        "Supervised training" if phase == "sft" else "Cold start",
        "Nats for each token that the assistant wrote in the demonstrations.",
        [*_metric_curves(loss, "loss"), (Series(held, "after", "marks"), other)],
        x_label="step",
        percent_axis=False,
    )
    success = Series(source.curve("cold_start", "val/success_greedy"), "before", "dashes")
    yield _make_chart(
        "Success in the cold start",
        "Between its steps; with --level hard, on tasks of the default level.",
        [(success, success_title(source.result, "success, greedy", "val"))],
        x_label="step",
    )


def _control_chart(source: ReportSource) -> Chart | None:
    """Create the chart that compares RL with the control run by validation success or mean reward,
    over time if possible."""
    phases, quantity = ("rl", "control"), _val_metric(source)
    metric = f"val/{quantity}_sampled"
    curves = {phase: source.curve(phase, metric) for phase in phases}
    measured = all(len(points) > 1 for points in curves.values())
    if not measured:
        metric = "reward/mean"
        curves = {phase: source.curve(phase, metric) for phase in phases}
    if any(len(points) < 2 for points in curves.values()):
        return None
    timed = {phase: _points_by_minute(source, phase, metric) for phase in phases}
    have_time = all(len(timed[phase]) == len(curves[phase]) for phase in curves)
    timed = timed if have_time else curves
    window = 1 if measured else max(1, max(map(len, curves.values())) // 20)
    measured_on = f"Sampled {quantity} on {split_name(source.result, 'val')} tasks"
    what = measured_on if measured else "Mean reward on training tasks"
    if window > 1:
        what += f", mean of {window} steps"
    styles: tuple[Style, Style] = ("dashes", "marks") if measured else ("line", "line")
    estimator = cut(display_name(control_estimator(source.result) or "another"), 40)
    config = source.settings
    own = "its own estimator" if config is None else display_name(config.algorithm.adv_estimator)
    return _make_chart(
        "The same start, two ways to learn",
        f"{what}: with {own}, and with {estimator} for the control.",
        [
            (Series(moving_average(timed["control"], window), "control", styles[0]), "control"),
            (Series(moving_average(timed["rl"], window), "after", styles[1]), "RL"),
        ],
        x_label="minutes since the first step" if have_time else "step",
        percent_axis=all(0 <= y <= 1 for points in curves.values() for _, y in points),
    )


def _make_chart(
    title: str,
    note: str,
    curves: Sequence[tuple[Series, str]],
    *,
    x_label: str,
    percent_axis: bool = True,
) -> Chart | None:
    """Create a chart of the curves that have points, or return None if all curves are empty."""
    drawn = [(series, label) for series, label in curves if series.points]
    if not drawn:
        return None
    unit = "percent" if percent_axis else "plain"
    picture = draw([series for series, _ in drawn], unit, size=_WIDE, x_label=x_label)
    legend = [(s.role, s.style, label) for s, label in reversed(drawn) if label]
    return Chart(title, note, picture, legend)


def _points_by_minute(source: ReportSource, phase: str, metric: str) -> Points:
    times = dict(source.curve(phase, "time/elapsed"))
    start = min(times.values(), default=0.0)
    points = source.curve(phase, metric)
    return tuple(((times[x] - start) / 60, y) for x, y in points if x in times)


def _diagnostic_chart(source: ReportSource, diagnostic: _Diagnostic) -> Chart | None:
    points = source.curve("rl", diagnostic.metric)
    if not points:
        return None
    above, unit = tuple((x, y) for x, y in points if y > 0), diagnostic.scale
    if unit == "log" and not above:
        unit = "plain"
    curves = [series for series, _ in _metric_curves(above if unit == "log" else points, "")]
    text = f"{(percent if unit == 'share' else short)(points[-1][1])} {diagnostic.unit}".strip(" ")
    return _small_chart(diagnostic.title, diagnostic.note, curves, unit, text, diagnostic.bar)


def _tool_errors_chart(source: ReportSource) -> Chart | None:
    """Create the chart of the fraction of failed tool calls per step."""
    named = [name for name in source.metric_names("rl") if name.startswith("tools/")]
    counts = [name for name in named if name.endswith("/calls") and name.count("/") > 1]
    tools = [name.removeprefix("tools/").removesuffix("/calls") for name in counts]
    calls, failed = defaultdict[float, float](float), defaultdict[float, float](float)
    for tool in tools:
        share = dict(source.curve("rl", f"tools/{tool}/errors"))
        for x, number in source.curve("rl", f"tools/{tool}/calls"):
            calls[x] += number
            failed[x] += number * share.get(x, 0.0)
    points = tuple((x, failed[x] / number) for x, number in sorted(calls.items()) if number > 0)
    if not points:
        return None
    note = f"Share of the calls of {join_words([cut(tool, 40) for tool in tools])} that failed."
    curves = [Series(points, "train")]
    return _small_chart("Tool errors", note, curves, "share", percent(points[-1][1]))


def _reward_diagnostics(source: ReportSource) -> Iterator[_Diagnostic]:
    """Yield a diagnostic for each named part of the reward."""
    totals = {f"reward/{name}" for name in ("mean", "std", "min", "max", "baseline")}
    names = source.metric_names("rl")
    for metric in names:
        part = metric.removeprefix("reward/")
        if part != metric and metric not in totals:
            few = "'s rollouts that have it; those that failed have none."
            end = few if f"rollout/with_{part}" in names else "."
            note = f"One named part of the reward, mean over the step{end}"
            yield _Diagnostic(f"Reward part {cut(part, 40)}", note, metric)


def _small_chart(
    title: str,
    note: str,
    curves: Sequence[Series],
    unit: Unit,
    value: str,
    bar: float | None = None,
) -> Chart:
    picture = draw(curves, unit, bar, size=_SMALL, x_label="RL step", font=10)
    return Chart(title, note, picture, value=value)
