"""Execution logs: one line of JSON an execution, in the published fields and ours.

`timestamp, instruction, success, cost, latency_ms, planner_outputs, execution_result` are the
document's; the rest says which run, pool and router it was, whether it was a mock, and the result
of every try: node, worker, cost, latency, verdict, log-probability, mask. `alternatives` are
further workers that were tried on nodes that had succeeded, so that `prepare` can prefer a cheaper
one. `data/formats.py` reads these lines back.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from tutelage.errors import DataError, RunError, check_given, counted
from tutelage.orchestration.data.formats import TRIED
from tutelage.orchestration.data.rows import spelled
from tutelage.orchestration.evaluation.rewards import ExecutionResult, check_result
from tutelage.orchestration.execution.record import Execution, NodeResult, NodeStep
from tutelage.orchestration.execution.workers import Worker
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import Plan, adjacency, is_valid_dag

_OUTPUTS = ("task_types", "subtasks", "workflow_graph", "arguments", "model_selections")
FILE = "executions.jsonl"
"""The log's name in the folder that was given."""


class ExecutionLogger:
    """Appends executions to `{folder}/executions.jsonl`, or to a file that ends in `.jsonl`."""

    def __init__(
        self,
        folder: str | Path,
        *,
        run_id: str = "",
        workers: Sequence[Worker] = (),
        catalog: Catalog | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`workers` are those that selections are numbered by; a line describes its plan's tools
        as `catalog` has them. Raises `RunError` when the folder cannot be made, or is a file."""
        check_given("the log", folder, (str, Path), "a folder, or a file that ends in .jsonl")
        check_given("workers", workers, (list, tuple), "those that selections are numbered by")
        for worker in workers:
            check_given("a worker", worker, Worker, "a Worker(name, ...)")
        given = Path(folder)
        named = given.suffix == ".jsonl" and not given.is_dir()
        self.path = given if named else given / FILE
        self.run_id, self._clock = run_id, clock
        self._workers, self._catalog = tuple(worker.name for worker in workers), catalog
        if given.is_file() and not named:
            raise RunError(
                f"{str(folder)!r} is a file, and a log is a folder, in which {FILE} is written, or "
                "a file that ends in .jsonl"
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot write to {str(folder)!r}: {error.strerror}") from error

    def log_execution(
        self,
        *,
        instruction: str,
        planner_outputs: Mapping[str, Any] | Plan,
        execution_result: ExecutionResult | Mapping[str, Any],
        alternatives: Sequence[Mapping[str, Any]] = (),
    ) -> dict[str, Any]:
        """Append one line and return it; a result may be given by its fields. Raises `DataError`
        for outputs that are no plan, nodes that the plan lacks and amounts that cannot be,
        `RewardError` for a result that is not valid."""
        result = ExecutionResult.read(execution_result)
        check_result(result)
        remedy = "a list with an object for each"
        check_given("alternatives", alternatives, (list, tuple), remedy, DataError)
        for each in alternatives:
            check_given("an alternative", each, Mapping, "an object with node, worker", DataError)
            spelled(each, TRIED, what="an alternative", wide=False)
        clock = self._clock()
        now = datetime.fromtimestamp(clock, UTC)
        sums = ("total_cost", "total_latency_ms", "verified_fraction")
        fields = {"outputs": dict(result.outputs), **{name: getattr(result, name) for name in sums}}
        row: dict[str, Any] = {
            "timestamp": now.isoformat(timespec="seconds"),
            "instruction": instruction,
            "success": result.success,
            "cost": result.total_cost,
            "latency_ms": result.total_latency_ms,
            "planner_outputs": _planned(planner_outputs, result, self._workers),
            "execution_result": {"success": result.success, **fields},
            "run_id": self.run_id,
            "workers": list(self._workers),
        }
        if isinstance(result, Execution):
            own = ("id", "seed", "pool", "router", "mock", "reason", "correct")
            row |= {
                **{name: getattr(result, name) for name in own},
                "id": f"{result.id}_{_mark(self.run_id, instruction, clock)}",
                "nodes": [_node_row(result.plan, node) for node in result.nodes],
                "tries": [_try_row(step) for step in result.steps],
            }
        if tools := self._described(row["planner_outputs"].get("task_types") or ()):
            row["tools"] = tools
        if alternatives or isinstance(result, Execution):
            row["alternatives"] = [dict(found) for found in alternatives]
        _check_row(row)
        try:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False, default=str) + "\n"
        except ValueError as error:
            raise DataError(
                f"the execution cannot be logged: {error}; give finite numbers"
            ) from error
        try:
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(line)
        except OSError as error:
            raise RunError(f"cannot write {str(self.path)!r}: {error.strerror}") from error
        return row

    def _described(self, names: Sequence[Any]) -> list[dict[str, Any]]:
        """The tools of a plan, where the catalog has schemas of them."""
        known = () if self._catalog is None else self._catalog.tools
        return [tool.to_row() for tool in known if tool.schema and tool.name in names]


def _mark(*parts: object) -> str:
    """A hash: executions of one seed have one identifier in each run, and a log has many."""
    return hashlib.blake2b(repr(parts).encode("utf-8", "replace"), digest_size=8).hexdigest()


def _check_row(row: Mapping[str, Any]) -> None:
    """Raises `DataError` for a row that no reader could make sense of."""
    outputs, told = row["planner_outputs"], row["execution_result"]["outputs"]
    if not isinstance(row["instruction"], str) or not row["instruction"].strip():
        raise DataError(f"instruction is {row['instruction']!r}; give what was to be done")
    matrix = outputs["workflow_graph"]["adjacency"]
    if not is_valid_dag(matrix):
        raise DataError(f"adjacency is {matrix!r:.80}; give a square of 0 and 1 without cycles")
    count = len(matrix)
    _check_arguments(outputs.get("arguments", ()))
    for name in ("task_types", "subtasks", "arguments", "model_selections"):
        if name not in outputs:
            continue
        check_given(name, outputs[name], (list, tuple), "a list with one for each node", DataError)
        if len(outputs[name]) != count:
            nodes = counted(count, "node")
            raise DataError(f"{name} has the length {len(outputs[name])} for {nodes}; give each")
    _check_choices(row)
    numbered = [int(name) for name in told if str(name).isdecimal()]
    listed = {"outputs": [{"node": node} for node in numbered]}
    for name in ("nodes", "tries", "alternatives"):
        listed[name] = row.get(name, [])
    for name, rows in listed.items():
        for place, each in enumerate(rows):
            _check_entry(f"{name}, entry {place}", each, count)


def _check_choices(row: Mapping[str, Any]) -> None:
    """Raises `DataError` for tools that have neither name nor number, and workers that are not
    those of the log, nor of the tries."""
    outputs = row["planner_outputs"]
    for name in outputs.get("task_types", ()):
        check_given("one of task_types", name, (str, int), "a tool's name or number", DataError)
    known = {*row["workers"], *(step["worker"] for step in row.get("tries", ()))}
    for worker in outputs.get("model_selections", ()):
        numbered = type(worker) is int and 0 <= worker < (len(row["workers"]) or math.inf)
        named = isinstance(worker, str) and (not row["workers"] or worker in known)
        if not (numbered or named):
            raise DataError(
                f"model_selections has {worker!r:.80}; the workers are {row['workers']!r}, to be "
                "given by name or number"
            )


def _check_arguments(given: object) -> None:
    """Raises `DataError` for what is no list of objects."""
    listed = cast("Sequence[object]", given)
    if not (isinstance(given, (list, tuple)) and all(isinstance(each, Mapping) for each in listed)):
        raise DataError(f"arguments is {given!r:.80}; give a list with an object for each node")


def _check_entry(where: str, entry: Mapping[str, Any], count: int) -> None:
    """Raises `DataError` for a node that is not among `count`, and for amounts that cannot be."""
    if entry.get("node") not in range(count):
        raise DataError(
            f"{where}: node is {entry.get('node')!r}, and the plan has "
            f"{counted(count, 'node')}, numbered from 0; name a node that exists"
        )
    for key in ("cost", "latency", "seconds"):
        value = entry.get(key, 0.0)
        if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise DataError(f"{where}: {key} is {value!r}; give a finite number >= 0")


def _node_row(plan: Plan, node: NodeResult) -> dict[str, Any]:
    values = ("status", "worker", "seconds", "checked", "reason")
    place = {"node": node.node, "type": plan.nodes[node.node].tool}
    return place | {name: getattr(node, name) for name in values}


def _try_row(step: NodeStep) -> dict[str, Any]:
    """One decision as logs hold it; `latency` is in seconds."""
    answer, verdict = step.answer, step.verdict
    return {
        **{name: getattr(step, name) for name in ("node", "attempt", "action", "worker", "cost")},
        "latency": step.seconds,
        "requests": len(step.requests),
        "passed": step.passed,
        "verdict": None if verdict is None else verdict.reason,
        "error": None if answer is None or answer.error is None else answer.error.kind,
        "log_prob": step.choice.log_prob,
        "mask": [int(m) for m in step.choice.mask],
    }


def _planned(
    given: Mapping[str, Any] | Plan, result: ExecutionResult, workers: Sequence[str]
) -> dict[str, Any]:
    """The document's form as it is given; anything else is written from the plan that ran."""
    if isinstance(given, Plan):
        return _plan_outputs(given, result, workers)
    known = _plan_outputs(result.plan, result, workers) if isinstance(result, Execution) else {}
    if not isinstance(cast("object", given), Mapping):
        raise DataError(
            f"planner_outputs is {given!r:.80}; give a Plan, or an object with model_selections "
            "and workflow_graph"
        )
    spelled(given, _OUTPUTS, what="planner_outputs")
    graph = given.get("workflow_graph")
    if isinstance(graph, Mapping) and "adjacency" in graph:
        return known | {key: _plain(value) for key, value in given.items() if key != _EMBEDDINGS}
    if known:
        return known  # scores of a planner, which the plan that ran was decoded from
    raise DataError("planner_outputs has no workflow_graph with an adjacency; give the plan's")


_EMBEDDINGS = "subtask_embeddings"


def _plan_outputs(plan: Plan, result: ExecutionResult, workers: Sequence[str]) -> dict[str, Any]:
    """A plan in the form of `planner_outputs`, types by name, with the worker whose answer each
    node kept, else the last one that was asked."""
    out: dict[str, Any] = {
        "task_types": [node.tool for node in plan.nodes],
        "subtasks": [node.description for node in plan.nodes],
        "workflow_graph": {"adjacency": adjacency(plan)},
    }
    if any(node.arguments for node in plan.nodes):
        out["arguments"] = [dict(node.arguments) for node in plan.nodes]
    if isinstance(result, Execution):
        asked = {step.node: step.worker for step in result.steps if step.worker is not None}
        names = [node.worker or asked.get(node.node) for node in result.nodes]
        if names and None not in names:
            out["model_selections"] = [workers.index(n) if n in workers else n for n in names]
    return out


def _plain(value: Any) -> Any:
    """What JSON has of a value, tensors and arrays as lists."""
    return json.loads(json.dumps(value, default=lambda v: getattr(v, "tolist", v.__str__)()))
