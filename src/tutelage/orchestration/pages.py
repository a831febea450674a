"""`report.html` of a planner's run: tables against baselines, and plans.

A pure function of the run folder that stands alone: no script, no network, no other file. It shares
the look and the escaping of other runs' reports. What the folder lacks is left out.
`evaluation/tables.py` words the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from tutelage.bounded import json_lines
from tutelage.orchestration.evaluation.tables import planning_tables, routing_tables
from tutelage.runs.folder import RunFolder, write_text
from tutelage.runs.report.page import render_page
from tutelage.statistics.intervals import has_interval

_EXAMPLES = 6


def write_report(folder: RunFolder) -> None:
    """Write the page. Raises `MissingExtraError` without the `train` extra."""
    result = folder.read_result() or {}
    phase1: Mapping[str, Any] = result.get("phase1", {})
    test = phase1.get("test")
    routing = routing_tables(result.get("phase2", {}))
    facts: list[tuple[str, str]] = []
    if phase1:
        learned = f"{phase1['train_workflows']} workflows over {phase1['tools']} tools"
        sizes = f"{phase1['parameters']} parameters, best after {phase1['epochs']} epochs"
        facts = [
            ("Learned from", learned),
            ("Network", sizes),
        ]
    page = render_page(
        "orchestration/report.html.j2",
        name=folder.name,
        what="planner",
        headline=_headline(test, result.get("phase2", {})),
        pill=None,
        story=facts,
        tables=[*(planning_tables(test) if test else []), *routing],
        examples=_examples(folder),
    )
    write_text(folder.report, page)


def _headline(test: Mapping[str, Any] | None, phase2: Mapping[str, Any]) -> str:
    if not test:
        return _routed(phase2) or "A planner was trained"
    planner = test["scores"]["planner"]
    message = f"{100 * planner['node_f1']:.0f} % node F1, {100 * planner['edge_f1']:.0f} % edge F1"
    near = test["gains"].get("nearest")
    if near is None:
        return message
    better = near["node_f1"]["low"] > 0
    verdict = "better than" if better else "not surely better than"
    return f"{message}: {verdict} copying the nearest plan"


def _routed(phase2: Mapping[str, Any]) -> str:
    """The result of phase 2; empty where it was not run."""
    found = phase2.get("evaluation")
    if not found:
        return ""
    rows = {row["name"]: row for row in found["rows"]}
    mine = rows[found["router"]]
    low, high = mine["reward_low"], mine["reward_high"]
    ends = f"95 % interval {low:.2f} to {high:.2f}, " if has_interval(low, high) else ""
    reward = f"{mine['reward']:.2f} a workflow ({ends}{mine['workflows']} judged)"
    gap, greedy = found["differences"]["greedy utility"], rows["greedy utility"]["reward"]
    if not has_interval(gap["low"], gap["high"]):
        return f"Routing earns {reward}, the greedy router {greedy:.2f}: too little for a verdict"
    message = "better than" if gap["low"] > 0 else "worse than" if gap["high"] < 0 else "a tie with"
    return f"Routing earns {reward}: {message} the greedy router's {greedy:.2f}"


def _examples(folder: RunFolder) -> list[tuple[str, str, str]]:
    path = folder.path / "predictions.jsonl"
    if not path.is_file():
        return []
    pairs: list[tuple[str, str, str]] = []
    for _, line in islice(json_lines(path.read_bytes()), _EXAMPLES):
        row = json.loads(line)
        made, wanted = row["plan"], row["wanted"]
        pairs.append((row["instruction"], made, "" if wanted == made else wanted))
    return pairs
