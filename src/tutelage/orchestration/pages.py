"""`report.html` of a planner run: tables with baselines, and plans.

The page depends only on the run folder and is self-contained: no scripts, no network access, no
other files. It has the same style and escaping as other reports. Missing results are omitted. The
plans are the rollouts in the store. `evaluation/tables.py` formats the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tutelage.orchestration.evaluation.tables import planning_tables, routing_tables
from tutelage.runs.folder import RunFolder, write_text
from tutelage.runs.report.page import render_page
from tutelage.runs.stored import open_run
from tutelage.statistics.intervals import has_interval

_EXAMPLES = 6


def write_report(folder: RunFolder) -> None:
    """Write the report. Raises `MissingExtraError` without the `train` extra."""
    result = folder.read_result() or {}
    phase1: Mapping[str, Any] = result.get("phase1", {})
    test, evaluation = phase1.get("test"), result.get("phase2", {}).get("evaluation")
    headline, facts, examples = "A planner was trained", dict[str, str](), list[tuple[str, ...]]()
    if phase1:
        learned = f"{phase1['train_workflows']} workflows over {phase1['tools']} tools"
        facts = {"Learned from": learned, "Best after": f"{phase1['epochs']} epochs"}
    if test:
        planner, near = test["scores"]["planner"], test["gains"].get("nearest")
        nodes, edges = 100 * planner["node_f1"], 100 * planner["edge_f1"]
        headline = f"{nodes:.0f} % node F1, {edges:.0f} % edge F1"
        if near is not None:
            verdict = "better" if near["node_f1"]["low"] > 0 else "not surely better"
            headline += f": {verdict} than copying the nearest plan"
        with open_run(folder) as (store, run_id):
            for rollout in store.rollouts(run_id, limit=_EXAMPLES):
                fields, made = rollout.task.fields, rollout.last.answer or ""
                wanted = "" if fields["expected"] == made else fields["expected"]
                examples.append((fields["instruction"], made, wanted))
    elif evaluation:
        rows = {row["name"]: row for row in evaluation["rows"]}
        mine, greedy = rows[evaluation["router"]], rows["greedy utility"]["reward"]
        low, high = mine["reward_low"], mine["reward_high"]
        ends = f"95 % interval {low:.2f} to {high:.2f}, " if has_interval(low, high) else ""
        headline = (
            f"Routing earns {mine['reward']:.2f} a workflow ({ends}{mine['workflows']} judged), "
            f"the greedy router {greedy:.2f}"
        )
    page = render_page(
        "orchestration/report.html.j2",
        name=folder.name,
        what="planner",
        headline=headline,
        pill=None,
        story=[*facts.items()],
        tables=[*(planning_tables(test) if test else []), *routing_tables(evaluation)],
        examples=examples,
    )
    write_text(folder.report, page)
