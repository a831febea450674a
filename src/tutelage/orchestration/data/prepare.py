"""Execution logs become a training set: what worked, and where it worked for less, the cheaper way.

A label is never what a planner guessed: only executions that succeeded count. Of several that did
the same instruction the cheapest is kept (then the fastest), and where a log has a cheaper
worker that also passed on a node, that worker is the label. Executions whose verifiers were told to
be wrong (`correct` false) are left out. `formats.py` reads the lines, `planner/fit.py` learns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tutelage.errors import DataError, counted
from tutelage.files import write_new
from tutelage.orchestration.data.formats import labelled
from tutelage.orchestration.data.rows import read_rows
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.data.workflows import LostResultError, Workflow, catalog_of
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool, read_catalog, tools_of
from tutelage.orchestration.plan.dag import Plan, numbered_calls


@dataclass(slots=True)
class PreparedLogs:
    """The training set and what became of the log."""

    workflows: list[Workflow] = field(default_factory=list[Workflow])
    executions: int = 0
    failed: int = 0
    """Executions that did not succeed and so say nothing about how it is done."""
    unusable: int = 0
    """Those that succeeded, and whose subtasks that succeeded are no plan without the others."""
    repeated: int = 0
    """Executions of an instruction that another did for less."""
    disagreed: int = 0
    """Instructions that were done by more than one plan."""
    cheaper: int = 0
    """Nodes whose label is a cheaper worker that also succeeded."""
    tools: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Descriptions of tools by name, as the last line has them that has one."""

    def catalog(self) -> Catalog:
        """The tools that the workflows use."""
        return catalog_of(self.workflows, [{"tools": list(self.tools.values())}])


def log_files(paths: Sequence[str | Path]) -> list[Path]:
    """Return the JSONL files of files and folders, sorted. Raises `DataError` if there is none."""
    items = [sorted(p.rglob("*.jsonl")) if p.is_dir() else [p] for p in map(Path, paths)]
    if [] in items:
        raise DataError(
            f"{str(paths[items.index([])])!r} has no execution log (*.jsonl); write one with: "
            f"tutelage orchestrate collect"
        )
    return [file for inside in items for file in inside]


def _described(row: Mapping[str, Any]) -> tuple[CatalogTool, ...]:
    """What a line says of tools, as `ExecutionLogger` writes it; nothing where it is otherwise."""
    listed = row.get("tools")
    tools = cast("list[Any]", listed) if isinstance(listed, list) else []
    written = all(isinstance(tool, Mapping) and "schema" in tool for tool in tools)
    return tools_of(tools) if written else ()


def _calls(plan: Plan, known: dict[str, int]) -> object:
    """What a plan does and in which order, equal for plans whose nodes alone stand otherwise."""
    numbers = numbered_calls(plan, known)
    return tuple(sorted(numbers)), tuple(sorted((numbers[i], numbers[j]) for i, j in plan.edges))


def prepare(paths: Sequence[str | Path], catalog: Catalog | None = None) -> PreparedLogs:
    """Make a training set of logs.

    Raises `DataError` with file and row, and when no execution succeeded.
    """
    made = PreparedLogs()
    best: dict[str, tuple[tuple[float, float], Workflow]] = {}
    calls: dict[str, int] = {}
    done: dict[str, set[object]] = {}
    for path in log_files(paths):
        for index, row in enumerate(read_rows(path)):
            made.executions += 1
            if not row.get("success") or row.get("correct") is False:
                made.failed += 1
                continue
            try:
                workflow, cheaper = labelled(row, catalog)
                described = _described(row)
            except LostResultError:
                made.unusable += 1
                continue
            except DataError as error:
                raise DataError(f"{str(path)!r}, row {index}: {error}") from error
            made.tools |= {tool.name: tool.to_row() for tool in described}
            plans = done.setdefault(workflow.instruction, set())
            plans.add(_calls(workflow.plan, calls))
            price = (-workflow.rewards.get("cost", 0.0), -workflow.rewards.get("latency", 0.0))
            known = best.get(workflow.instruction)
            if known is not None:
                made.repeated += 1
            if known is None or price < known[0]:
                best[workflow.instruction] = (price, workflow)
                made.cheaper += cheaper
    if not best:
        raise DataError(
            f"of {counted(made.executions, 'execution')} none succeeded, so there is nothing to "
            "learn from; collect more, or with better workers"
        )
    made.disagreed = sum(len(plans) > 1 for plans in done.values())
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
        known = own if used <= set(own.names) else made.catalog()
    tools = output.with_name(f"{output.stem}.catalog.json")
    listed = [tool.to_row() for tool in known.tools]
    rows = {output: [workflow.to_row(known) for workflow in made.workflows], tools: listed}
    texts = {p: json.dumps(of, indent=1, ensure_ascii=False) + "\n" for p, of in rows.items()}
    write_new(texts, "output file")
    return made, tools
