"""Outputs made from an execution: a rollout with its spans in the store, and a line of a log.

All of it is computed from the finished execution (`record.py`). Each worker response is a call, and
each node is an agent. These spans surround the spans of the calls:

    invoke_workflow {instruction}
    ├── plan                one
    │   └── chat planner    requests to a language model planner, also for further plans
    └── execute_tool {type} one for each node, from its first try to its end
        └── chat {worker}   the calls

The span of a node has an event for each decision with the worker, its cost and the verdict. The
event contains the identifier of the resulting call, which `tracing/tree.py` uses to place the call
below the node.

A log is a JSONL file with the fields `timestamp, instruction, success, cost, latency_ms,
planner_outputs, execution_result` of the original format. Additional fields give the run, the pool,
the router, if the workers were mocks, and the result of each node. `data/workflows.py` reads these
lines.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tutelage.errors import DataError, RunError
from tutelage.orchestration.evaluation.rewards import (
    DEADLINE,
    RESULT_FIELDS,
    ExecutionResult,
    Preset,
)
from tutelage.orchestration.execution.prompts import node_prompt, worker_messages
from tutelage.orchestration.execution.record import Execution, NodeStep, group_steps
from tutelage.orchestration.execution.workers import Worker
from tutelage.orchestration.plan.dag import Plan, adjacency, is_valid_dag
from tutelage.runs.signals import defer_signals
from tutelage.seeds import SeedTree
from tutelage.store import StoreWriter
from tutelage.tracing import names
from tutelage.tracing.records import (
    Identity,
    SpanEvent,
    SpanRecord,
    make_span_id,
    make_trace_id,
)
from tutelage.types import (
    Attempt,
    Call,
    Failure,
    FailureCause,
    Message,
    Mode,
    Rollout,
    RolloutStatus,
    Sampled,
    Sampling,
    StopReason,
    Task,
)

# ---------------------------------------------------------------- rollouts


def make_rollout(
    seeds: SeedTree,
    run_id: str,
    task: Task,
    label: str,
    *,
    mode: Mode = Mode.TEST,
    step: int = 0,
    failure: Failure | None = None,
    **attempt: Any,
) -> Rollout:
    """Create a rollout with a single attempt; its identifiers are derived from `seeds`."""
    status = RolloutStatus.SUCCEEDED if failure is None else RolloutStatus.FAILED
    stop = "answer" if failure is None else None
    tried = Attempt(seeds.id("att"), 0, status, failure=failure, stop=stop, **attempt)
    return Rollout(seeds.id("roll", run_id), run_id, task, mode, step, task.id, 0, (tried,), label)


def make_call(
    call_id: str,
    agent: str,
    index: int,
    messages: tuple[Message, ...],
    reply: str,
    sampling: Sampling = Sampling(),  # noqa: B008
    stop: StopReason = StopReason.STOP,
    **times: Any,
) -> Call:
    """Create a model call without tokens, which is not used for training; `times` are `started` and
    `seconds`."""
    sampled, said = Sampled((), (), (), stop, 0), Message("assistant", reply)
    return Call(call_id, agent, index, messages, (), sampled, said, sampling, policy=None, **times)


@dataclass(frozen=True, slots=True)
class ExecutionRecorder:
    """Writes executions and their rewards to a store, as rollouts of a run."""

    writer: StoreWriter
    run_id: str
    preset: Preset = "normalized"
    label: str = "orchestrate"

    def __call__(self, execution: Execution, sampling: Sampling, start: float, plan: float) -> None:
        """Write an execution that started at `start` (seconds since 1970); `plan` is the planning
        time in seconds."""
        failure = None
        if not execution.success:
            lost = [node for node in execution.nodes if not node.is_ok]
            message = "; ".join(f"node {node.node}: {node.reason or node.status}" for node in lost)
            late = execution.reason == DEADLINE
            cause = FailureCause.TIMEOUT if late else FailureCause.AGENT_ERROR
            if execution.server_error is not None:
                cause = FailureCause.ENGINE_ERROR
            failure = Failure(cause, message or "an answer was kept that no verifier passed")
        judged = failure is None or not failure.cause.infrastructure
        rollout = make_rollout(
            execution.seeds,
            self.run_id,
            Task(execution.id, {"instruction": execution.plan.instruction}),
            self.label,
            calls=_make_calls(execution, sampling, start + plan),
            answer="\n\n".join(execution.answers.values()) or None,
            reward=execution.compute_reward(self.preset) if judged else None,
            failure=failure,
            seconds=execution.wall_seconds + plan,
            started=start,
        )
        with defer_signals():
            # Spans first: a collector joins the spans that exist when the rollout arrives.
            self.writer.submit_spans(self.run_id, _spans(execution, rollout, start, plan))
            self.writer.submit([rollout])


def _call_id(execution: Execution, step: NodeStep) -> str | None:
    """Return the identifier of the step's call, or None if the worker returned no text."""
    said = step.answer is not None and step.answer.output
    return execution.seeds.child("step", step.index).id("call") if said else None


def _planner_call_id(execution: Execution, index: int) -> str:
    return execution.seeds.child("planner", index).id("call")


def _make_calls(execution: Execution, sampling: Sampling, origin: float) -> tuple[Call, ...]:
    """Return the calls of the planner, followed by the calls of workers in the order of dispatch.
    Tool calls and requests without output are omitted."""
    outputs = {node.node: node.output for node in execution.nodes if node.output is not None}
    calls = [
        make_call(
            _planner_call_id(execution, index),
            "planner",
            index,
            tuple(Message(role, text) for role, text in call.messages),
            call.reply,
            started=call.started,
            seconds=call.seconds,
        )
        for index, call in enumerate(execution.plan.calls)
    ]
    for step in execution.steps:
        call_id, answer = _call_id(execution, step), step.answer
        if call_id is None or answer is None or answer.arguments is not None:
            continue
        cut = answer.error is not None and answer.error.kind == "truncated"
        stop = StopReason.LENGTH if cut else StopReason.STOP
        before = sum(request.seconds for request in step.requests[:-1])
        agent = f"{execution.plan.nodes[step.node].tool} #{step.node}"
        messages = worker_messages(node_prompt(execution.plan, step.node, outputs))
        times = {"started": origin + step.started + step.queued + before}
        times["seconds"] = answer.seconds
        number, said = len(calls), answer.output
        calls.append(make_call(call_id, agent, number, messages, said, sampling, stop, **times))
    return tuple(calls)


def _spans(execution: Execution, rollout: Rollout, start: float, plan: float) -> list[SpanRecord]:
    """Return the spans that enclose the spans of the calls, with parents before children."""
    identity = Identity(rollout.run_id, rollout.id, rollout.last.id)
    trace, origin = make_trace_id(identity), int((start + plan) * 1e9)
    shared: dict[str, Any] = {
        names.PROVIDER: "tutelage",
        names.ROLLOUT_ID: identity.rollout_id,
        names.ATTEMPT_ID: identity.attempt_id,
    }
    top = SpanRecord(
        trace,
        make_span_id(trace, "workflow"),
        make_span_id(trace),
        f"{names.INVOKE_WORKFLOW} {' '.join(execution.plan.instruction.split())[:60]}",
        start_ns=int(start * 1e9),
        end_ns=origin + int(execution.wall_seconds * 1e9),
        attributes={
            names.OPERATION: names.INVOKE_WORKFLOW,
            names.WORKFLOW: execution.id,
            names.COST: execution.total_cost,
            names.MOCK: execution.mock,
            **({} if execution.success else {names.ERROR_TYPE: execution.reason or "failed"}),
            **shared,
        },
        status="ok" if execution.success else "error",
        resource={names.SERVICE: "tutelage", names.RUN_ID: identity.run_id},
        scope="tutelage.orchestration",
        rollout_id=identity.rollout_id,
        attempt_id=identity.attempt_id,
    )
    asked = [
        SpanEvent(
            names.DECISION,
            int(call.started * 1e9),
            {
                names.RESPONSE_ID: _planner_call_id(execution, index),
                names.REQUEST_MODEL: "planner",
                names.COST: call.cost,
                names.INPUT_TOKENS: call.tokens_in,
                names.OUTPUT_TOKENS: call.tokens_out,
            },
        )
        for index, call in enumerate(execution.plan.calls)
    ]
    planned = replace(
        top,
        span_id=make_span_id(trace, "workflow", "plan"),
        parent_id=top.span_id,
        name=names.PLAN,
        end_ns=origin,
        attributes={names.OPERATION: names.PLAN, **shared},
        events=tuple(asked),
        status="unset",
    )
    spans, steps = [top, planned], group_steps(execution.steps)
    for node in execution.nodes:
        if node.status == "skipped":
            continue
        mine, tool = steps.get(node.node, []), execution.plan.nodes[node.node].tool
        called = [s.answer for s in mine if s.answer and s.answer.arguments is not None]
        attributes = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL: tool,
            names.NODE: node.node,
            names.NODE_STATUS: node.status,
            names.WORKER: node.worker,
            names.ERROR_TYPE: None if node.is_ok else node.reason or node.status,
            names.TOOL_ARGUMENTS: called[-1].arguments if called else None,
            names.TOOL_RESULT: called[-1].output if called else None,
            **shared,
        }
        started = origin + int(min((s.started for s in mine), default=0.0) * 1e9)
        ended = origin + int(max((s.ended for s in mine), default=0.0) * 1e9)
        decisions = tuple(
            SpanEvent(names.DECISION, origin + int(s.started * 1e9), _decision_fields(execution, s))
            for s in mine
        )
        spans.append(
            replace(
                planned,
                span_id=make_span_id(trace, "node", node.node),
                name=f"{names.EXECUTE_TOOL} {tool}",
                # Add 1 ns per node to keep the order of nodes that begin at the same time.
                start_ns=started + node.node,
                end_ns=max(started, ended) + node.node,
                attributes={name: value for name, value in attributes.items() if value is not None},
                events=decisions,
                status="ok" if node.status == "succeeded" else "unset" if node.is_ok else "error",
            )
        )
    return spans


def _decision_fields(execution: Execution, step: NodeStep) -> dict[str, Any]:
    """Return the span attributes of a decision: action, worker, cost, verdict and call."""
    answer, verdict, call_id = step.answer, step.verdict, _call_id(execution, step)
    error = None if answer is None or answer.error is None else answer.error.kind
    if verdict is not None and not verdict.passed:
        error = error or verdict.reason
    fields = {
        names.ACTION: step.action,
        names.REQUEST_MODEL: step.worker,
        names.RESPONSE_MODEL: step.worker,
        names.COST: None if step.worker is None else step.cost,
        names.RESPONSE_ID: call_id,
        names.INPUT_TOKENS: None if answer is None else answer.tokens_in,
        names.OUTPUT_TOKENS: None if answer is None else answer.tokens_out,
        names.VERDICT: None if verdict is None else "passed" if verdict.passed else "failed",
        names.ERROR_TYPE: error,
    }
    return {name: value for name, value in fields.items() if value is not None}


# ---------------------------------------------------------------- logs

FILE = "executions.jsonl"
"""File name of the log in its folder."""


class ExecutionLogger:
    """Appends executions to `{folder}/executions.jsonl`, or to a file that ends in `.jsonl`."""

    def __init__(
        self,
        folder: str | Path,
        *,
        run_id: str = "",
        workers: Sequence[Worker] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the log. `workers` determines the numbers of the model selections; by default, the
        workers of each execution are used. Raises `RunError` if the folder is a file or cannot be
        created."""
        self.path = Path(folder)
        if self.path.suffix != ".jsonl" or self.path.is_dir():
            self.path /= FILE
        self.run_id, self._clock = run_id, clock
        self._workers = tuple(worker.name for worker in workers)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"cannot write to {str(folder)!r}: {error.strerror}; use a folder, or a file that "
                "ends in .jsonl"
            ) from error

    def log_execution(
        self,
        *,
        instruction: str,
        planner_outputs: Mapping[str, Any] | Plan,
        execution_result: ExecutionResult | Mapping[str, Any],
    ) -> dict[str, Any]:
        """Append an execution to the log and return the line. The result can be a mapping of its
        fields. Raises `DataError` if the planner outputs contain no valid plan and `RewardError` if
        the result is invalid."""
        result, clock = ExecutionResult.validate(execution_result), self._clock()
        own = result if isinstance(result, Execution) else None
        workers = self._workers or (() if own is None else own.workers)
        row: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(clock, UTC).isoformat(timespec="seconds"),
            "instruction": instruction,
            "success": result.success,
            "cost": result.total_cost,
            "latency_ms": result.total_latency_ms,
            "planner_outputs": _make_planner_outputs(planner_outputs, own, workers),
            "execution_result": {name: getattr(result, name) for name in RESULT_FIELDS},
            "run_id": self.run_id,
            "workers": list(workers),
        }
        if own is not None:
            same = ("pool", "router", "mock", "reason", "correct")
            # The identifier is the same in all runs with this seed; a log may contain many runs.
            mark = repr((self.run_id, instruction, clock)).encode("utf-8", "replace")
            digest = hashlib.blake2b(mark, digest_size=8).hexdigest()
            kept = ("node", "status", "worker", "seconds", "checked", "reason")
            row |= {name: getattr(own, name) for name in same} | {
                "id": f"{own.id}_{digest}",
                "seed": own.seeds.seed,
                "nodes": [
                    {name: getattr(n, name) for name in kept} | {"type": own.plan.nodes[k].tool}
                    for k, n in enumerate(own.nodes)
                ],
            }
        try:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False, default=str) + "\n"
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(line)
        except (OSError, ValueError) as error:
            raise RunError(f"cannot write the execution to {str(self.path)!r}: {error}") from error
        return row


def _make_planner_outputs(
    source: Mapping[str, Any] | Plan, execution: Execution | None, workers: Sequence[str]
) -> dict[str, Any]:
    """Return the planner outputs for a log line: the tool names of the plan and, for each node, the
    worker of the kept answer, else the last worker that was tried. The values of a mapping take
    precedence. Raises `DataError` if there is no valid plan, or if a list does not have one entry
    per node."""
    plan = source if isinstance(source, Plan) else execution and execution.plan
    outputs: dict[str, Any] = {}
    if plan is not None:
        outputs = {
            "task_types": [node.tool for node in plan.nodes],
            "subtasks": [node.description for node in plan.nodes],
            "workflow_graph": {"adjacency": adjacency(plan)},
        }
        if any(node.arguments for node in plan.nodes):
            outputs["arguments"] = [dict(node.arguments) for node in plan.nodes]
    if execution is not None:
        asked = {step.node: step.worker for step in execution.steps if step.worker is not None}
        kept = [node.worker or asked.get(node.node) for node in execution.nodes]
        if kept and None not in kept:
            outputs["model_selections"] = [
                workers.index(name) if name in workers else name for name in kept
            ]
    # Scores of a planner have no adjacency; the executed plan was decoded from them.
    if not isinstance(source, Plan) and "adjacency" in source.get("workflow_graph", ()):
        listed = {key: value for key, value in source.items() if key != "subtask_embeddings"}
        text = json.dumps(listed, default=lambda v: getattr(v, "tolist", v.__str__)())
        outputs |= json.loads(text)
    matrix = outputs.get("workflow_graph", {}).get("adjacency")
    if matrix is None or not is_valid_dag(matrix):
        raise DataError(
            "planner_outputs needs a workflow_graph whose adjacency is a square 0/1 matrix without "
            f"cycles, got {matrix!r:.80}; pass one, or a Plan"
        )
    for name in ("task_types", "subtasks", "arguments", "model_selections"):
        entries = outputs.get(name, matrix)
        if not isinstance(entries, list) or len(entries) != len(matrix):
            raise DataError(f"{name} must be a list of length {len(matrix)}, got {entries!r:.80}")
    known = {*workers, *range(len(workers))}
    for worker in outputs.get("model_selections", ()):
        if workers and worker not in known:
            raise DataError(
                f"unknown worker {worker!r:.80} in model_selections; use names or numbers of the "
                f"workers {list(workers)!r}"
            )
    return outputs
