"""Result tables of planning and routing, which the command line prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tutelage.runs.figures import Table, TableRow
from tutelage.statistics.intervals import LEAST, has_interval

_SCORES: Mapping[str, str] = {
    "node_f1": "node F1",
    "edge_f1": "edge F1",
    "exact_nodes": "exact tools",
    "exact": "exact plan",
}
_ROUTING: Mapping[str, str] = {
    "success": "success",
    "cost": "USD",
    "latency": "seconds",
    "reward": "reward",
    "gain": "gain",
    "tries": "tries",
}
NO_INTERVAL = (
    f"Where fewer than {LEAST} independent queries, or groups of them, were tested, or all values "
    "are equal, there is no interval and no verdict."
)


def planning_table(test: Mapping[str, Any]) -> Table:
    """Return a table of the scores of the planner and of its gains over the baselines."""
    rows = [
        [name, *(_percent(scores.get(key)) for key in _SCORES)]
        for name, scores in test["scores"].items()
    ]
    for name, gains in test["gains"].items():
        rows.append([f"gain over {name}"])
        for key in _SCORES:
            mean, low, high = (100 * gains[key][each] for each in ("mean", "low", "high"))
            mark = " ~" if low <= 0 <= high else ""
            rows[-1].append(f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]{mark}")
    planner = test["scores"]["planner"]
    lead = (
        f"{test['workflows']} test workflows. Of the plans {_percent(planner['validity'])} % are "
        f"DAGs as decoded ({_percent(planner['raw_validity'])} % before decoding). Gains have 95 % "
        "intervals of a paired bootstrap; ~ marks an interval that contains 0."
    )
    return _table("Planning, in percent", lead, ("", *_SCORES.values()), rows)


def routing_tables(results: Mapping[str, Any] | None) -> list[Table]:
    """Return the tables of a router evaluation, or an empty list without an evaluation."""
    if not results:
        return []
    rows: list[list[str]] = []
    ends: list[tuple[float | None, float | None]] = []
    for row in results["rows"]:
        gap = results["differences"].get(row["name"])
        ends.append((row["reward_low"], row["reward_high"]))
        shown = {key: f"{row[key]:.3g}" for key in _ROUTING if key in row} | {
            "reward": _format_interval(row["reward"], *ends[-1]),
            "gain": "" if gap is None else _format_interval(gap["mean"], gap["low"], gap["high"]),
        }
        rows.append([row["name"], *(shown[key] for key in _ROUTING)])
    note = "" if all(has_interval(*each) for each in ends) else NO_INTERVAL
    lead = (
        f"{results['rows'][0]['workflows']} test workflows, run once by each router. Rewards with "
        "95 % intervals that count the queries that workflows share; gain is the reward of "
        f"{results['router']} less this one's. {note}"
    ).strip()
    return [_table("Routing", lead, ("", *_ROUTING.values()), rows)]


def _table(title: str, note: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table. All columns except the first are right-aligned."""
    return Table(columns, [TableRow(row) for row in rows], range(1, len(columns)), title, note)


def _format_interval(value: float, low: float | None, high: float | None) -> str:
    """Format a number, followed by its confidence interval if available."""
    return f"{value:.3g}" + (f" [{low:.3g}, {high:.3g}]" if has_interval(low, high) else "")


def _percent(value: object) -> str:
    return f"{100 * value:.1f}" if isinstance(value, (int, float)) else ""
