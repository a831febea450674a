"""The trace of an execution: a workflow, its plan, one span a node and one a try.

As for a rollout, spans are a function of the record and cost the execution nothing. They stand
under the root of the attempt that the execution is stored as:

    invoke_workflow {instruction}
    ├── plan                one, with the number of nodes
    └── execute_tool {type} one for each node, from its first try to its end
        └── chat {worker}   one for each try, with cost, verdict and log-probability

`record.py` has the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tutelage.orchestration.execution.record import Execution, NodeResult, Step
from tutelage.tracing import names
from tutelage.tracing.records import (
    Identity,
    Kind,
    SpanRecord,
    Status,
    span_id_of,
    trace_id_of,
)

SCOPE = "tutelage.orchestration"
_NAME_LENGTH = 60


def execution_spans(
    execution: Execution,
    identity: Identity,
    *,
    started: float,
    planning_seconds: float = 0.0,
    content: bool = False,
) -> list[SpanRecord]:
    """The spans, each parent before its children; `started` is in seconds since 1970.

    `content` adds what workers were asked for and answered.
    """
    return _Spans(execution, identity, started, planning_seconds, content).build()


class _Spans:
    def __init__(
        self,
        execution: Execution,
        identity: Identity,
        started: float,
        planning: float,
        content: bool,
    ) -> None:
        self._execution, self._identity, self._content = execution, identity, content
        self._trace = trace_id_of(identity)
        self._planned = int(started * 1e9)
        self._origin = int((started + planning) * 1e9)

    def build(self) -> list[SpanRecord]:
        execution, root = self._execution, span_id_of(self._trace, "workflow")
        told = " ".join(execution.plan.instruction.split())[:_NAME_LENGTH]
        end = self._origin + int(execution.wall_seconds * 1e9)
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
        top = self._span(
            root,
            span_id_of(self._trace),
            f"{names.INVOKE_WORKFLOW} {told}",
            (self._planned, end),
            attributes,
            status="ok" if execution.success else "error",
        )
        planned = self._span(
            span_id_of(self._trace, "workflow", "plan"),
            root,
            names.PLAN,
            (self._planned, self._origin),
            {names.OPERATION: names.PLAN, names.NODES: len(execution.plan.nodes)},
        )
        out = [top, planned]
        for node in execution.nodes:
            if node.status not in ("skipped",):
                out += self._node(node, root)
        return out

    def _node(self, node: NodeResult, root: str) -> list[SpanRecord]:
        mine = [step for step in self._execution.steps if step.node == node.node]
        span_id = span_id_of(self._trace, "node", node.node)
        started = min((step.started for step in mine), default=node.started)
        ended = max((step.ended for step in mine), default=node.ended)
        attributes: dict[str, Any] = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL: self._execution.plan.nodes[node.node].tool,
            names.NODE: node.node,
            names.NODE_STATUS: node.status,
        }
        if node.worker is not None:
            attributes[names.WORKER] = node.worker
        if not node.kept:
            attributes[names.ERROR_TYPE] = node.reason or node.status
        if self._content and node.output is not None:
            attributes[names.TOOL_RESULT] = node.output
        tool = f"{names.EXECUTE_TOOL} {self._execution.plan.nodes[node.node].tool}"
        span = self._span(
            span_id, root, tool, self._times(started, ended, node.node), attributes,
            status="ok" if node.status == "succeeded" else "unset" if node.kept else "error",
        )  # fmt: skip
        return [span, *(self._try(step, span_id) for step in mine)]

    def _try(self, step: Step, parent: str) -> SpanRecord:
        answer, verdict = step.answer, step.verdict
        attributes: dict[str, Any] = {
            names.NODE: step.node,
            names.ACTION: step.action,
            names.LOG_PROB: step.choice.log_prob,
        }
        if step.worker is not None:
            attributes |= {
                names.OPERATION: names.CHAT,
                names.REQUEST_MODEL: step.worker,
                names.COST: step.cost,
                names.REQUESTS: len(step.requests),
            }
        if answer is not None:
            attributes |= {
                names.INPUT_TOKENS: answer.tokens_in,
                names.OUTPUT_TOKENS: answer.tokens_out,
                names.MOCK: answer.mock,
            }
            if answer.error is not None:
                attributes[names.ERROR_TYPE] = answer.error.kind
        if verdict is not None:
            attributes[names.VERDICT] = "passed" if verdict.passed else "failed"
            attributes[names.VERDICT_REASON] = verdict.reason
            if not verdict.passed:
                attributes.setdefault(names.ERROR_TYPE, verdict.reason)
        name = f"{names.CHAT} {step.worker}" if step.worker is not None else step.action
        status: Status = "unset"  # accepting and stopping are decisions, and no failures
        if step.worker is not None:
            status = "ok" if step.passed else "error"
        return self._span(
            span_id_of(self._trace, "try", step.index),
            parent,
            name,
            self._times(step.started, step.ended, step.node),
            attributes,
            kind="client" if step.worker is not None else "internal",
            status=status,
        )

    def _times(self, started: float, ended: float, node: int) -> tuple[int, int]:
        """In nanoseconds; one more a node, so that those that begin at once stay in order."""
        begun, done = (self._origin + int(t * 1e9) for t in (started, ended))
        return begun + node, max(begun, done) + node

    def _span(
        self,
        span_id: str,
        parent: str,
        name: str,
        times: tuple[int, int],
        attributes: Mapping[str, Any],
        *,
        kind: Kind = "internal",
        status: Status = "unset",
    ) -> SpanRecord:
        identity = self._identity
        own = {names.ROLLOUT_ID: identity.rollout_id, names.ATTEMPT_ID: identity.attempt_id}
        return SpanRecord(
            trace_id=self._trace,
            span_id=span_id,
            parent_id=parent,
            name=name,
            start_ns=times[0],
            end_ns=times[1],
            kind=kind,
            attributes={**attributes, names.PROVIDER: "tutelage", **own},
            status=status,
            resource={names.SERVICE: "tutelage", names.RUN_ID: identity.run_id},
            scope=SCOPE,
            rollout_id=identity.rollout_id,
            attempt_id=identity.attempt_id,
        )
