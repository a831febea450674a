"""Executions in the store: each is a rollout, what a worker answers a call, the rest are spans.

All of it is a function of the record of an execution and costs the execution nothing. Every node is
an agent of its own. What the calls themselves do not say stands around them:

    invoke_workflow {instruction}
    ├── plan                one, with the number of nodes
    └── execute_tool {type} one for each node, from its first try to its end
        └── chat {worker}   the calls

A node's span has an event for each decision, with the worker, its cost and verdict, and names the
call that came of it, which is how `tracing/tree.py` brings that call below the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tutelage.orchestration.evaluation.judged import DEADLINE, UNSERVED, WRONG_PLAN
from tutelage.orchestration.evaluation.rewards import (
    Preset,
    References,
    RewardWeights,
    reward_parts,
)
from tutelage.orchestration.execution.prompts import node_prompt, worker_messages
from tutelage.orchestration.execution.record import Execution, NodeResult, Step
from tutelage.runs.signals import held
from tutelage.store import StoreWriter
from tutelage.tracing import names
from tutelage.tracing.records import (
    Identity,
    SpanEvent,
    SpanRecord,
    Status,
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
    Reward,
    Rollout,
    RolloutStatus,
    Sampled,
    Sampling,
    StopReason,
    Task,
)

SCOPE = "tutelage.orchestration"
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
        reward = reward_of(execution, self.preset, self.weights)
        calls = _calls(execution, sampling, began + plan)
        rollout = _rollout(execution, self.run_id, reward, calls, began, plan, self.label)
        spans = _execution_spans(execution, rollout, began, plan)
        with held():
            # Spans first: a collector joins what is there when the rollout comes.
            self.writer.submit_spans(self.run_id, spans)
            self.writer.submit([rollout])


def rollout_id(execution: Execution) -> str:
    """Of the rollout that an execution is stored as."""
    return execution.seeds.id("roll")


def reward_of(
    execution: Execution, preset: Preset = "normalized", weights: RewardWeights | None = None
) -> Reward:
    """What an execution earned, with its parts; one that nothing costs is measured against 1."""
    references = execution.references or References(1.0, 1.0)
    parts = reward_parts(execution, preset=preset, weights=weights, references=references)
    return Reward(sum(parts.values()), parts)


def _rollout(
    execution: Execution,
    run_id: str,
    reward: Reward,
    calls: Sequence[Call],
    began: float,
    plan: float,
    label: str,
) -> Rollout:
    leaves = set(range(len(execution.nodes))) - {before for before, _ in execution.plan.edges}
    ended = [execution.outputs.get(str(node)) for node in sorted(leaves)]
    answer = "\n\n".join(str(text) for text in ended if text is not None)
    lost = [node for node in execution.nodes if not node.kept]
    failure, earned = None, reward
    if not execution.success:
        cause = _CAUSES.get(execution.reason, FailureCause.AGENT_ERROR)
        told = "; ".join(f"node {node.node}: {node.reason or node.status}" for node in lost)
        whole = "an answer was kept that no verifier passed"
        if execution.reason == WRONG_PLAN:
            whole = "the plan is not what the instruction asks for"
        failure, earned = Failure(cause, told or whole), None if cause.infrastructure else reward
    attempt = Attempt(
        id=execution.seeds.id("att"),
        index=0,
        status=RolloutStatus.SUCCEEDED if execution.success else RolloutStatus.FAILED,
        calls=tuple(calls),
        answer=answer or None,
        reward=earned,
        failure=failure,
        stop="answer" if execution.success else None,
        seconds=execution.wall_seconds + plan,
        started=began,
    )
    return Rollout(
        id=rollout_id(execution),
        run_id=run_id,
        task=Task(execution.id, {"instruction": execution.plan.instruction}),
        mode=Mode.TEST,
        step=0,
        group=execution.id,
        index=0,
        attempts=(attempt,),
        label=label,
    )


# ---------------------------------------------------------------- calls


def _call_id(execution: Execution, step: Step) -> str | None:
    """Of the call that a step made; None where no worker said anything."""
    said = step.answer is not None and step.answer.output
    return execution.seeds.child("step", step.index).id("call") if said else None


def _calls(execution: Execution, sampling: Sampling, origin: float) -> list[Call]:
    """The calls in the order of dispatch; a request that a busy server refused is none."""
    outputs = {node.node: node.output for node in execution.nodes if node.output is not None}
    calls: list[Call] = []
    for step in execution.steps:
        call_id, answer = _call_id(execution, step), step.answer
        if call_id is None or answer is None:
            continue
        cut = answer.error is not None and answer.error.kind == "truncated"
        before = sum(request.seconds for request in step.requests[:-1])
        tool = execution.plan.nodes[step.node].tool
        calls.append(
            Call(
                id=call_id,
                agent=f"{tool} #{step.node}",
                index=len(calls),
                messages=worker_messages(node_prompt(execution.plan, step.node, outputs)),
                prompt_ids=(),
                sampled=Sampled((), (), (), StopReason.LENGTH if cut else StopReason.STOP, 0),
                reply=Message("assistant", answer.output),
                sampling=sampling,
                started=origin + step.started + step.queued + before,
                seconds=answer.seconds,
                policy=None,
            )
        )
    return calls


# ---------------------------------------------------------------- spans


def _execution_spans(
    execution: Execution, rollout: Rollout, began: float, plan: float
) -> list[SpanRecord]:
    """The spans beside those of the calls, each parent before its children."""
    identity = Identity(rollout.run_id, rollout.id, rollout.last.id)
    trace = trace_id_of(identity)
    planned, origin = int(began * 1e9), int((began + plan) * 1e9)
    root = span_id_of(trace, "workflow")
    told = " ".join(execution.plan.instruction.split())[:_NAME_LENGTH]
    attributes: dict[str, Any] = {
        names.OPERATION: names.INVOKE_WORKFLOW,
        names.WORKFLOW: execution.id,
        names.COST: execution.total_cost,
        names.CRITICAL_PATH: execution.total_latency_ms / 1000.0,
        names.POOL: execution.pool,
        names.ROUTER: execution.router,
        names.MOCK: execution.mock,
    }
    if not execution.success:
        attributes[names.ERROR_TYPE] = execution.reason or "failed"
    end = origin + int(execution.wall_seconds * 1e9)
    top = _span(
        identity, root, span_id_of(trace), f"{names.INVOKE_WORKFLOW} {told}", (planned, end),
        attributes, status="ok" if execution.success else "error",
    )  # fmt: skip
    nodes = {names.OPERATION: names.PLAN, names.NODES: len(execution.plan.nodes)}
    plan_id = span_id_of(trace, "workflow", "plan")
    made = _span(identity, plan_id, root, names.PLAN, (planned, origin), nodes)
    ran = [node for node in execution.nodes if node.status != "skipped"]
    return [top, made, *(_node(execution, node, identity, root, origin) for node in ran)]


def _node(
    execution: Execution, node: NodeResult, identity: Identity, root: str, origin: int
) -> SpanRecord:
    tool = execution.plan.nodes[node.node].tool
    mine = [step for step in execution.steps if step.node == node.node]
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
    started = origin + int(min((s.started for s in mine), default=node.started) * 1e9)
    ended = origin + int(max((s.ended for s in mine), default=node.ended) * 1e9)
    # One nanosecond more a node, so that those that begin at once stay in order.
    times = (started + node.node, max(started, ended) + node.node)
    return _span(
        identity,
        span_id_of(trace_id_of(identity), "node", node.node),
        root,
        f"{names.EXECUTE_TOOL} {tool}",
        times,
        attributes,
        events=[
            SpanEvent(names.DECISION, origin + int(s.started * 1e9), _decision(execution, s))
            for s in mine
        ],
        status="ok" if node.status == "succeeded" else "unset" if node.kept else "error",
    )


def _decision(execution: Execution, step: Step) -> dict[str, Any]:
    """What was chosen, what it cost, what the verifier said, and which call it made."""
    answer, verdict, call_id = step.answer, step.verdict, _call_id(execution, step)
    told: dict[str, Any] = {names.ACTION: step.action, names.LOG_PROB: step.choice.log_prob}
    if step.worker is not None:
        told |= {
            names.REQUEST_MODEL: step.worker,
            names.RESPONSE_MODEL: step.worker,
            names.COST: step.cost,
            names.REQUESTS: len(step.requests),
        }
    if call_id is not None:
        told[names.RESPONSE_ID] = call_id
    if answer is not None:
        told |= {
            names.INPUT_TOKENS: answer.tokens_in,
            names.OUTPUT_TOKENS: answer.tokens_out,
            names.MOCK: answer.mock,
        }
        if answer.error is not None:
            told[names.ERROR_TYPE] = answer.error.kind
    if verdict is not None:
        told[names.VERDICT] = "passed" if verdict.passed else "failed"
        told[names.VERDICT_REASON] = verdict.reason
        if not verdict.passed:
            told.setdefault(names.ERROR_TYPE, verdict.reason)
    return told


def _span(
    identity: Identity,
    span_id: str,
    parent: str,
    name: str,
    times: tuple[int, int],
    attributes: Mapping[str, Any],
    *,
    events: Sequence[SpanEvent] = (),
    status: Status = "unset",
) -> SpanRecord:
    own = {names.ROLLOUT_ID: identity.rollout_id, names.ATTEMPT_ID: identity.attempt_id}
    return SpanRecord(
        trace_id=trace_id_of(identity),
        span_id=span_id,
        parent_id=parent,
        name=name,
        start_ns=times[0],
        end_ns=times[1],
        attributes={**attributes, names.PROVIDER: "tutelage", **own},
        events=tuple(events),
        status=status,
        resource={names.SERVICE: "tutelage", names.RUN_ID: identity.run_id},
        scope=SCOPE,
        rollout_id=identity.rollout_id,
        attempt_id=identity.attempt_id,
    )
