"""Execution logs become a training set: what worked, and of several ways the cheapest.

A label is never what a planner guessed: only executions that succeeded count, and of several that
did the same instruction the cheapest is kept (then the fastest). Executions whose verifiers were
found to be wrong (`correct` false), and those in which a subtask failed and a further plan took its
place, are left out. `workflows.py` reads the lines, `planner/fit.py` learns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tutelage.errors import DataError, counted
from tutelage.files import write_new
from tutelage.orchestration.data.rows import objects, read_rows
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.data.workflows import Workflow, catalog_of, workflow_of
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool, read_catalog, tools_of

_LOST = ("failed", "skipped", "cancelled")


@dataclass(slots=True)
class PreparedLogs:
    """The training set and what became of the log."""

    workflows: list[Workflow] = field(default_factory=list[Workflow])
    executions: int = 0
    failed: int = 0
    """Executions that did not succeed, or only by a further plan."""
    repeated: int = 0
    """Executions of an instruction that another did for less."""
    tools: dict[str, CatalogTool] = field(default_factory=dict[str, CatalogTool])
    """Descriptions of tools by name, as the last line has them that has one."""


def log_files(paths: Sequence[str | Path]) -> list[Path]:
    """Return the JSONL files of files and folders, sorted. Raises `DataError` if there is none."""
    items = [sorted(p.rglob("*.jsonl")) if p.is_dir() else [p] for p in map(Path, paths)]
    if [] in items:
        raise DataError(
            f"{str(paths[items.index([])])!r} has no execution log (*.jsonl); write one with: "
            f"tutelage orchestrate collect"
        )
    return [file for inside in items for file in inside]


def prepare(paths: Sequence[str | Path], catalog: Catalog | None = None) -> PreparedLogs:
    """Make a training set of logs.

    Raises `DataError` with file and row, and when no execution succeeded.
    """
    made = PreparedLogs()
    best: dict[str, tuple[tuple[float, float], Workflow]] = {}
    for path in log_files(paths):
        for index, row in enumerate(read_rows(path)):
            made.executions += 1
            lost = any(node.get("status") in _LOST for node in objects(row.get("nodes")))
            if lost or not row.get("success") or row.get("correct") is False:
                made.failed += 1
                continue
            try:
                workflow = workflow_of(row, catalog)
                described = tools_of(each for each in objects(row.get("tools")) if "schema" in each)
            except DataError as error:
                raise DataError(f"{str(path)!r}, row {index}: {error}") from error
            made.tools |= {tool.name: tool for tool in described}
            price = (-workflow.rewards.get("cost", 0.0), -workflow.rewards.get("latency", 0.0))
            known = best.get(workflow.instruction)
            made.repeated += known is not None
            if known is None or price < known[0]:
                best[workflow.instruction] = (price, workflow)
    if not best:
        raise DataError(
            f"of {counted(made.executions, 'execution')} none succeeded, so there is nothing to "
            "learn from; collect more, or with better workers"
        )
    made.workflows = [workflow for _, workflow in best.values()]
    return made


def write_training_set(
    logs: Sequence[str | Path], output: Path, catalog: Path | None = None
) -> tuple[PreparedLogs, Path]:
    """Write a training set of logs to `output`, and the tools that its numbers mean beside it.
    Returns what became of the logs, and the file of the tools.

    Raises `DataError` as `prepare` does, and for a file that is there already.
    """
    known = None if catalog is None else read_catalog(catalog)
    made = prepare(logs, known)
    if known is None:
        own, used = builtin_graph().catalog, {tool for w in made.workflows for tool in w.tools}
        known = own if used <= set(own.names) else catalog_of(made.workflows, made.tools)
    tools = output.with_name(f"{output.stem}.catalog.json")
    examples = [workflow.to_row(known) for workflow in made.workflows]
    rows = {output: examples, tools: [tool.to_row() for tool in known.tools]}
    texts = {p: json.dumps(of, indent=1, ensure_ascii=False) + "\n" for p, of in rows.items()}
    write_new(texts, "output file")
    return made, tools
