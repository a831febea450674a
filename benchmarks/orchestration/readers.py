"""The gold plans of NESTFUL (Apache-2.0, not shipped): calls that refer to each other by labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tutelage.orchestration.data.rows import read_rows
from tutelage.orchestration.data.workflows import Workflow, sort_workflow

_VARIABLE = re.compile(r"\$(var[\w-]*?)((?:\.[^$]*|\[[^$]*)?)\$")
_COLLECTED = "var_result"
"""The last entry, which collects answers and calls nothing."""


def read_nestful(path: str | Path) -> list[Workflow]:
    """Return the plans of a file: tools, and an edge for each label in a call's arguments."""
    workflows: list[Workflow] = []
    for row in read_rows(path):
        output = row["output"]
        listed = json.loads(output) if isinstance(output, str) else output
        calls = [
            ((call.get("label") or f"var{place}").strip("$"), call)
            for place, call in enumerate(listed, 1)
            if call["name"] != _COLLECTED
        ]
        labels = [label for label, _ in calls]
        parents = [
            [_meant(label, node, labels) for label in _labels(call.get("arguments"))]
            for node, (_, call) in enumerate(calls)
        ]
        tools = [call["name"] for _, call in calls]
        workflows.append(sort_workflow(row["input"], tools, parents))
    return workflows


def _meant(label: str, node: int, labels: list[str]) -> int:
    """Return the call that a label means at `node`: the last one before it, else the first."""
    places = [i for i, known in enumerate(labels) if known == label]
    return max((i for i in places if i < node), default=places[0])


def _labels(value: Any) -> list[str]:
    """Return the labels that an argument refers to, in order."""
    if isinstance(value, str):
        return [found[1] for found in _VARIABLE.finditer(value)]
    parts = value.values() if isinstance(value, dict) else value
    found: Iterable[Any] = parts if isinstance(value, dict | list) else ()
    return [text for part in found for text in _labels(part)]
