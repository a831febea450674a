"""Executions in the store: each is a rollout, what a worker answers a call, the rest are spans.

All of it is a function of the record of an execution and costs the execution nothing. Every node is
an agent of its own. What the calls themselves do not say stands around them:

    invoke_workflow {instruction}
    ├── plan                one, with the number of nodes
    │   └── chat planner    what a model that plans was asked, for further plans too
    └── execute_tool {type} one for each node, from its first try to its end
        └── chat {worker}   the calls

A node's span has an event for each decision, with the worker, its cost and verdict, and names the
resulting call, which is how `tracing/tree.py` brings that call below the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tutelage.orchestration.evaluation.judged import DEADLINE, UNSERVED, WRONG_PLAN
from tutelage.orchestration.evaluation.rewards import Preset, RewardWeights
from tutelage.orchestration.execution.prompts import node_prompt, worker_messages
from tutelage.orchestration.execution.record import Execution, NodeResult, NodeStep, steps_by_node
from tutelage.runs.signals import deferred_signals
from tutelage.seeds import SeedTree
from tutelage.store import StoreWriter
from tutelage.tracing import names
from tutelage.tracing.records import (
    Identity,
    SpanEvent,
    SpanRecord,
    span_id_of,
    trace_id_of,
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

SCOPE = "tutelage.orchestration"
_UNCHECKED = "an answer was kept that no verifier passed"
_NAME_LENGTH = 60
_CAUSES = {DEADLINE: FailureCause.TIMEOUT, UNSERVED: FailureCause.ENGINE_ERROR}
"""What failed an execution by its reason, where it was not the answers."""


@dataclass(frozen=True, slots=True)
class ExecutionRecorder:
    """Writes executions as rollouts of a run, with what they earn under a reward."""

    writer: StoreWriter
    run_id: str
    preset: Preset = "normalized"
    weights: RewardWeights | None = None
    label: str = "orchestrate"

    def __call__(self, execution: Execution, sampling: Sampling, began: float, plan: float) -> None:
        """Write one that began at `began`, in seconds since 1970, with planning for `plan`."""
        failure = _failure(execution)
        lost = failure is not None and failure.cause.infrastructure
        rollout = stored_rollout(
            execution.seeds,
            self.run_id,
            Task(execution.id, {"instruction": execution.plan.instruction}),
            self.label,
            calls=_calls(execution, sampling, began + plan),
            answer="\n\n".join(execution.answers.values()) or None,
            reward=None if lost else execution.earned(self.preset, self.weights),
            failure=failure,
            seconds=execution.wall_seconds + plan,
            started=began,
        )
        spans = _execution_spans(execution, rollout, began, plan)
        with deferred_signals():
            # Spans first: a collector joins what is there when the rollout comes.
            self.writer.submit_spans(self.run_id, spans)
            self.writer.submit([rollout])


def stored_rollout(
    place: SeedTree,
    run_id: str,
    task: Task,
    label: str,
    *,
    mode: Mode = Mode.TEST,
    step: int = 0,
    failure: Failure | None = None,
    **attempt: Any,
) -> Rollout:
    """A rollout of one attempt, whose identifiers come from `place`."""
    status = RolloutStatus.SUCCEEDED if failure is None else RolloutStatus.FAILED
    stop = "answer" if failure is None else None
    tried = Attempt(place.id("att"), 0, status, failure=failure, stop=stop, **attempt)
    return Rollout(place.id("roll", run_id), run_id, task, mode, step, task.id, 0, (tried,), label)


def stored_call(
    call_id: str,
    index: int,
    agent: str,
    messages: tuple[Message, ...],
    said: str,
    sampling: Sampling | None = None,
    stop: StopReason = StopReason.STOP,
    *,
    started: float = 0.0,
    seconds: float = 0.0,
) -> Call:
    """A call that trains nothing: there are no tokens in it."""
    sampled, reply = Sampled((), (), (), stop, 0), Message("assistant", said)
    asked = sampling or Sampling()
    return Call(
        call_id, agent, index, messages, (), sampled, reply, asked, started=started,
        seconds=seconds, policy=None,
    )  # fmt: skip


def _failure(execution: Execution) -> Failure | None:
    """Why an execution failed; None where it did not."""
    if execution.success:
        return None
    lost = [node for node in execution.nodes if not node.kept]
    message = "; ".join(f"node {node.node}: {node.reason or node.status}" for node in lost)
    wrong = execution.reason == WRONG_PLAN
    whole = "the plan is not what the instruction asks for" if wrong else _UNCHECKED
    whole = whole if execution.nodes else execution.unplanned
    return Failure(_CAUSES.get(execution.reason, FailureCause.AGENT_ERROR), message or whole)


# ---------------------------------------------------------------- calls


def _call_id(execution: Execution, step: NodeStep) -> str | None:
    """Of the call that a step made; None where no worker said anything."""
    said = step.answer is not None and step.answer.output
    return execution.seeds.child("step", step.index).id("call") if said else None


def _planner_call_id(execution: Execution, index: int) -> str:
    return execution.seeds.child("planner", index).id("call")


def _calls(execution: Execution, sampling: Sampling, origin: float) -> tuple[Call, ...]:
    """The planner's calls, then the others in the order of dispatch; a request that a busy server
    refused is none."""
    outputs = {node.node: node.output for node in execution.nodes if node.output is not None}
    calls = [
        stored_call(
            _planner_call_id(execution, index), index, "planner",
            tuple(Message(role, text) for role, text in call.messages), call.reply,
            started=call.started, seconds=call.seconds,
        )
        for index, call in enumerate(execution.plan.calls)
    ]  # fmt: skip
    for step in execution.steps:
        call_id, answer = _call_id(execution, step), step.answer
        if call_id is None or answer is None or answer.arguments is not None:
            continue
        cut = answer.error is not None and answer.error.kind == "truncated"
        stop = StopReason.LENGTH if cut else StopReason.STOP
        before = sum(request.seconds for request in step.requests[:-1])
        agent = f"{execution.plan.nodes[step.node].tool} #{step.node}"
        messages = worker_messages(node_prompt(execution.plan, step.node, outputs))
        started = origin + step.started + step.queued + before
        calls.append(
            stored_call(call_id, len(calls), agent, messages, answer.output, sampling, stop,
                        started=started, seconds=answer.seconds)
        )  # fmt: skip
    return tuple(calls)


# ---------------------------------------------------------------- spans


def _execution_spans(
    execution: Execution, rollout: Rollout, began: float, plan: float
) -> list[SpanRecord]:
    """The spans beside those of the calls, each parent before its children."""
    identity = Identity(rollout.run_id, rollout.id, rollout.last.id)
    trace = trace_id_of(identity)
    planned, origin = int(began * 1e9), int((began + plan) * 1e9)
    message = " ".join(execution.plan.instruction.split())[:_NAME_LENGTH]
    own = {names.ROLLOUT_ID: identity.rollout_id, names.ATTEMPT_ID: identity.attempt_id}
    shared = {names.PROVIDER: "tutelage", **own}
    attributes: dict[str, Any] = {
        names.OPERATION: names.INVOKE_WORKFLOW,
        names.WORKFLOW: execution.id,
        names.COST: execution.total_cost,
        names.CRITICAL_PATH: execution.total_latency_ms / 1000.0 - execution.plan.seconds,
        names.POOL: execution.pool,
        names.ROUTER: execution.router,
        names.MOCK: execution.mock,
    }
    if not execution.success:
        attributes[names.ERROR_TYPE] = execution.reason or "failed"
    top = SpanRecord(
        trace,
        span_id_of(trace, "workflow"),
        span_id_of(trace),
        f"{names.INVOKE_WORKFLOW} {message}",
        start_ns=planned,
        end_ns=origin + int(execution.wall_seconds * 1e9),
        attributes=attributes | shared,
        status="ok" if execution.success else "error",
        resource={names.SERVICE: "tutelage", names.RUN_ID: identity.run_id},
        scope=SCOPE,
        rollout_id=identity.rollout_id,
        attempt_id=identity.attempt_id,
    )
    nodes = {names.OPERATION: names.PLAN, names.NODES: len(execution.plan.nodes)}
    below = replace(
        top,
        span_id=span_id_of(trace, "workflow", "plan"),
        parent_id=top.span_id,
        name=names.PLAN,
        end_ns=origin,
        attributes=nodes | shared,
        events=tuple(_planner_events(execution)),
        status="unset",
    )
    ran = [node for node in execution.nodes if node.status != "skipped"]
    steps = steps_by_node(execution.steps)
    spans = (_node_span(execution, n, steps.get(n.node, ()), below, shared) for n in ran)
    return [top, below, *spans]


def _node_span(
    execution: Execution,
    node: NodeResult,
    mine: Sequence[NodeStep],
    plan: SpanRecord,
    shared: dict[str, str],
) -> SpanRecord:
    """The span of a node and its steps; it begins where that of the plan has ended, or later."""
    tool, origin = execution.plan.nodes[node.node].tool, plan.end_ns
    attributes: dict[str, Any] = {
        names.OPERATION: names.EXECUTE_TOOL,
        names.TOOL: tool,
        names.NODE: node.node,
        names.NODE_STATUS: node.status,
    }
    if node.worker is not None:
        attributes[names.WORKER] = node.worker
    if not node.kept:
        attributes[names.ERROR_TYPE] = node.reason or node.status
    ran = [s.answer for s in mine if s.answer is not None and s.answer.arguments is not None]
    if ran:
        attributes[names.TOOL_ARGUMENTS] = ran[-1].arguments
        attributes[names.TOOL_RESULT] = ran[-1].output
    started = origin + int(min((s.started for s in mine), default=node.started) * 1e9)
    ended = origin + int(max((s.ended for s in mine), default=node.ended) * 1e9)
    decisions = [
        SpanEvent(names.DECISION, origin + int(s.started * 1e9), _decision(execution, s))
        for s in mine
    ]
    return replace(
        plan,
        span_id=span_id_of(plan.trace_id, "node", node.node),
        name=f"{names.EXECUTE_TOOL} {tool}",
        # One nanosecond more a node, so that those that begin at once stay in order.
        start_ns=started + node.node,
        end_ns=max(started, ended) + node.node,
        attributes=attributes | shared,
        events=tuple(decisions),
        status="ok" if node.status == "succeeded" else "unset" if node.kept else "error",
    )


def _planner_events(execution: Execution) -> Iterator[SpanEvent]:
    """An event for each call of the planner, which brings it below the span that has it."""
    for index, call in enumerate(execution.plan.calls):
        fields = {
            names.RESPONSE_ID: _planner_call_id(execution, index),
            names.REQUEST_MODEL: "planner",
            names.COST: call.cost,
            names.INPUT_TOKENS: call.tokens_in,
            names.OUTPUT_TOKENS: call.tokens_out,
        }
        yield SpanEvent(names.DECISION, int(call.started * 1e9), fields)


def _decision(execution: Execution, step: NodeStep) -> dict[str, Any]:
    """What was chosen, what it cost, what the verifier said, and which call it made."""
    answer, verdict, call_id = step.answer, step.verdict, _call_id(execution, step)
    fields: dict[str, Any] = {names.ACTION: step.action, names.LOG_PROB: step.choice.log_prob}
    if step.worker is not None:
        fields |= dict.fromkeys((names.REQUEST_MODEL, names.RESPONSE_MODEL), step.worker)
        fields |= {names.COST: step.cost, names.REQUESTS: len(step.requests)}
    if call_id is not None:
        fields[names.RESPONSE_ID] = call_id
    if answer is not None:
        tokens = {names.INPUT_TOKENS: answer.tokens_in, names.OUTPUT_TOKENS: answer.tokens_out}
        fields |= {**tokens, names.MOCK: answer.mock}
        if answer.error is not None:
            fields[names.ERROR_TYPE] = answer.error.kind
    if verdict is not None:
        fields[names.VERDICT] = "passed" if verdict.passed else "failed"
        fields[names.VERDICT_REASON] = verdict.reason
        if not verdict.passed:
            fields.setdefault(names.ERROR_TYPE, verdict.reason)
    return fields
