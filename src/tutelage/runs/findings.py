"""Findings of a run over its steps, each reported once with the steps for which it held.

`health.py` examines the metrics after a step; findings are kept as JSON in checkpoints and in
`result.json`, so that a resumed run reports none twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from tutelage.runs.health import Finding, Metrics, Setup, examine
from tutelage.runs.misled import examine_learning
from tutelage.types import JSON


def add_findings(
    records: list[JSON], steps: Sequence[Metrics], setup: Setup, *, number: int, run: str = "RUN"
) -> list[Finding]:
    """Update the stored findings of a run after its step `number`, and return the new findings.

    A finding that no longer holds is kept with the step that ended it.
    """
    new: list[Finding] = []
    found = (*examine(steps, setup), *examine_learning(steps, setup))
    holding = {finding.name: finding for finding in found}
    for entry in records:
        finding = holding.pop(entry["name"], None)
        if finding is None and entry["until"] is None:
            entry["until"] = number
        elif finding is not None:
            entry["until"] = None
    for finding in holding.values():
        remedy = finding.remedy.replace("show RUN", f"show {run}")
        finding = replace(finding, remedy=remedy)
        records.append({"step": number, "until": None, **asdict(finding)})
        new.append(finding)
    return new


def list_warnings(records: Sequence[JSON], unit: str = "step") -> list[str]:
    """Format the stored findings that are warnings, with the range of steps of each warning."""
    out: list[str] = []
    for entry in records:
        if entry["warning"]:
            until = "" if entry["until"] is None else f" to {entry['until']}"
            finding = Finding(entry["name"], entry["text"], entry["remedy"])
            out.append(f"{'from ' if not until else ''}{unit} {entry['step']}{until}: {finding}")
    return out
