"""Conversion of execution logs into a training set of the cheapest successful executions.

Labels come only from executions that succeeded. If an instruction was executed several times, the
cheapest execution is kept (the fastest if costs are equal). Executions with a false positive of a
verifier (`correct` is false) and executions in which a subtask failed and the workflow was
replanned are skipped. `workflows.py` reads the lines, `planner/fit.py` trains on the set.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tutelage.errors import DataError, pluralize
from tutelage.files import write_files
from tutelage.orchestration.data.rows import objects, read_rows
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.data.workflows import Workflow, build_catalog, parse_workflow
from tutelage.orchestration.plan.catalog import Catalog, read_catalog

_LOST = ("failed", "skipped", "cancelled")


def find_logs(paths: Sequence[str | Path]) -> list[Path]:
    """Find log files: files are returned unchanged, folders are searched for JSONL files. Raises
    `DataError` for a folder without JSONL files."""
    items = [sorted(p.rglob("*.jsonl")) if p.is_dir() else [p] for p in map(Path, paths)]
    if [] in items:
        raise DataError(
            f"no execution log (*.jsonl) in {str(paths[items.index([])])!r}; create one with: "
            "tutelage orchestrate collect"
        )
    return [file for inside in items for file in inside]


def prepare(
    paths: Sequence[str | Path], catalog: Catalog | None = None
) -> tuple[list[Workflow], dict[str, int]]:
    """Convert logs to training workflows; return them with counts: `executions`, `failed`
    (including success after replanning) and `examples`.

    Raises `DataError` with file and row for an invalid row, and if no execution succeeded.
    """
    executions = failed = 0
    best: dict[str, tuple[tuple[float, float], Workflow]] = {}
    for path in find_logs(paths):
        for index, row in enumerate(read_rows(path)):
            executions += 1
            lost = any(node.get("status") in _LOST for node in objects(row.get("nodes")))
            if lost or not row.get("success") or row.get("correct") is False:
                failed += 1
                continue
            try:
                workflow = parse_workflow(row, catalog)
            except DataError as error:
                raise DataError(f"{str(path)!r}, row {index}: {error}") from error
            price = (-workflow.rewards.get("cost", 0.0), -workflow.rewards.get("latency", 0.0))
            known = best.get(workflow.instruction)
            if known is None or price < known[0]:
                best[workflow.instruction] = (price, workflow)
    if not best:
        raise DataError(
            f"0 of {pluralize(executions, 'execution')} succeeded, so there is nothing to train "
            "on; collect more executions or use better workers"
        )
    workflows = [workflow for _, workflow in best.values()]
    return workflows, {"executions": executions, "failed": failed, "examples": len(workflows)}


def write_training_set(
    logs: Sequence[str | Path], output: Path, catalog: Path | None = None
) -> tuple[dict[str, int], Path]:
    """Convert logs to a training set and write it to `output`, with its tool catalog in the same
    folder. Return the counts of `prepare` and the path of the catalog.

    Raises `DataError` as `prepare` does, and if an output file already exists.
    """
    known = None if catalog is None else read_catalog(catalog)
    workflows, counts = prepare(logs, known)
    if known is None:
        own, used = builtin_graph().catalog, {tool for w in workflows for tool in w.tools}
        known = own if used <= set(own.names) else build_catalog(workflows)
    tools = output.with_name(f"{output.stem}.catalog.json")
    examples = [workflow.to_row(known) for workflow in workflows]
    rows = {output: examples, tools: [tool.to_row() for tool in known.tools]}
    texts = {p: json.dumps(of, indent=1, ensure_ascii=False) + "\n" for p, of in rows.items()}
    write_files(texts, "output file")
    return counts, tools
