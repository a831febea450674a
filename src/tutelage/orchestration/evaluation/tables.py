"""The tables of a planner's outcome, for the terminal, the report and the docs.

A row whose interval contains 0 has a remark. `orchestration/pages.py` and the command line
draw them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from tutelage.orchestration.evaluation.judged import interval_note, workflow_words
from tutelage.runs.figures import Table, TableRow
from tutelage.statistics.intervals import has_interval

_SCORES: Mapping[str, str] = {
    "node_f1": "node F1",
    "node_f1_micro": "micro",
    "edge_f1": "edge F1",
    "edge_f1_micro": "micro",
    "exact_nodes": "exact tools",
    "exact": "exact plan",
}
_COMPARED = {key: name for key, name in _SCORES.items() if name != "micro"}


def planning_tables(test: Mapping[str, Any]) -> list[Table]:
    """Scores against baselines, gains with intervals, scores by shape, and the coverage curve."""
    tables = [_scores_table(test), _gains_table(test), _shapes_table(test)]
    return [*tables, _coverage_table(test)] if test.get("coverage") else tables


def _table(title: str, lead: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """With all columns but the first set to the right, and none that is empty in every row."""
    cells = [list(row) for row in rows]
    filled = [i for i in range(len(columns)) if i == 0 or any(row[i] for row in cells)]
    shown = [TableRow([row[i] for i in filled]) for row in cells]
    return Table([columns[i] for i in filled], shown, range(1, len(filled)), title, lead)


def _scores_table(test: Mapping[str, Any]) -> Table:
    """The planner and its baselines, in percent."""
    rows = [
        (name, *(_percent(found.get(key)) for key in _SCORES))
        for name, found in test["scores"].items()
    ]
    planner = test["scores"]["planner"]
    raw = planner.get("raw_validity")
    seen = int(test.get("in_training", 0))
    lead = (
        f"{test['workflows']} {'test' if seen else 'held-out'} workflows"
        + (f", of which {seen} are also training workflows" if seen else "")
        + f". Of the plans {_percent(planner['validity'])} % "
        f"are DAGs as decoded"
        + ("" if raw is None else f" ({_percent(raw)} % before decoding)")
        + f"; {_percent(planner['hallucination'])} % of the tools are made up."
    )
    if "before_learned" in test:
        lead += ' "before" is the older planner.'
        seen = test["before_learned"]
        if seen:
            lead += f" It learned {seen} of these workflows itself, which flatters it."
    return _table("Planning, in percent", lead, ("", *_SCORES.values()), rows)


def _gains_table(test: Mapping[str, Any]) -> Table:
    """The planner less each baseline, with 95 % intervals."""
    rows = [
        (name, *(_gain(gains[key]) if key in gains else "" for key in _COMPARED))
        for name, gains in test["gains"].items()
    ]
    lead = (
        "Points gained on the same workflows, with 95 % intervals of a paired bootstrap; "
        "~ marks an interval that contains 0."
    )
    before = "before" in test["gains"]
    title = "Gain over the older planner and the baselines" if before else "Gain over the baselines"
    return _table(title, lead, ("over", *_COMPARED.values()), rows)


def _shapes_table(test: Mapping[str, Any]) -> Table:
    """The planner's scores by the shape of what was wanted."""
    planner = test["scores"]["planner"]
    rows = [
        (shape, str(count), *(_percent(planner.get(f"{key}/{shape}")) for key in _COMPARED))
        for shape, count in test["shapes"].items()
    ]
    return _table("By shape", "", ("", "workflows", *_COMPARED.values()), rows)


def _coverage_table(test: Mapping[str, Any]) -> Table:
    """What declining the plans that the planner is least sure of is worth."""
    rows = [
        (_percent(each["coverage"]), _percent(each["accuracy"]), f"{each['confidence']:.2f}")
        for each in test["coverage"]
    ]
    lead = "The surest plans alone: how many of them have the right tools."
    return _table("Coverage and accuracy", lead, ("% planned", "exact tools", "confidence"), rows)


_ROUTING: Mapping[str, str] = {
    "name": "",
    "success": "success",
    "cost": "USD",
    "latency": "seconds",
    "reward": "reward",
    "gain": "gain",
    "gap_to_oracle": "below the oracle",
    "aiq": "AIQ",
    "tries": "tries",
    "late": "late",
    "pareto": "Pareto",
}


def routing_tables(phase2: Mapping[str, Any]) -> list[Table]:
    """The routers of phase 2: on workflows, and under each preset; none before it was measured."""
    found = phase2.get("evaluation")
    return [_workflow_table(found), _preset_table(found["presets"])] if found else []


def _workflow_table(found: Mapping[str, Any]) -> Table:
    gaps = found["differences"]
    rows: list[dict[str, Any]] = [
        {**row, **{key: gaps.get(row["name"], {}).get(key) for key in ("mean", "low", "high")}}
        for row in found["rows"]
    ]
    for row in rows:
        row["reward"] = _ranged(row, "reward", "reward_")
        row["gain"] = "" if row["mean"] is None else _ranged(row, "mean", "")
    keys = [key for key in _ROUTING if key in rows[0]]
    note = interval_note(rows, "reward_")
    lead = (
        f"{workflow_words(rows)} Rewards with 95 % intervals that count the queries that workflows "
        f"share; gain is the reward of {found['router']} less this one's. {note}"
    ).strip()
    shown = [[_cell(row.get(key)) for key in keys] for row in rows]
    return _table("Routing", lead, [_ROUTING[key] for key in keys], shown)


def _preset_table(presets: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    rows: dict[str, list[str]] = {}
    for listed in presets.values():
        for row in listed:
            rows.setdefault(row["name"], []).append(_ranged(row, "reward", ""))
    lead = "Mean reward of routers that are told the preset, with 95 % intervals."
    lead = f"{lead} {interval_note(chain.from_iterable(presets.values()), '')}".strip()
    return _table(
        "Routing under each preset", lead, ("", *presets), [(k, *v) for k, v in rows.items()]
    )


def _ranged(row: Mapping[str, float], key: str, ends: str) -> str:
    """A number with its interval, alone if there is none."""
    low, high = row[f"{ends}low"], row[f"{ends}high"]
    told = f" [{low:.3g}, {high:.3g}]" if has_interval(low, high) else ""
    return f"{row[key]:.3g}{told}"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _percent(value: object) -> str:
    return f"{100 * value:.1f}" if isinstance(value, (int, float)) else ""


def _gain(found: Mapping[str, float]) -> str:
    low, high = 100 * found["low"], 100 * found["high"]
    open_ = " ~" if low <= 0 <= high else ""
    return f"{100 * found['mean']:+.1f} [{low:+.1f}, {high:+.1f}]{open_}"
