"""Record of an execution: its events, and the state and result computed from them.

An event is a row of the store (run, execution, number, JSON), written to disk before the next
request is sent. `replay_events` computes the state of an execution (`ExecutionState`) from its
events, and the state returns the `Execution`, from which rollout, spans, log and reward are made
(`stored.py`). The executor updates such a state while it runs. After a kill, `ExecutionJournal`
folds the events of the earlier process: nodes that ended are not run again, costs stay counted, and
an unfinished request is counted at its upper bound because its cost is unknown. Random draws are
addressed by node and request, so the remaining work draws the same values as without the kill.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import TypeAdapter

from tutelage.errors import RunError
from tutelage.orchestration.data.rows import read_as
from tutelage.orchestration.evaluation.rewards import (
    ExecutionResult,
    Preset,
    References,
    reward_parts,
)
from tutelage.orchestration.execution.workers import (
    UNSERVED,
    Verification,
    WorkerAnswer,
    WorkerError,
)
from tutelage.orchestration.plan.dag import Node, Plan, PlannerCall, critical_path
from tutelage.orchestration.routing.contract import Choice
from tutelage.seeds import SeedTree
from tutelage.store import Store, open_store
from tutelage.types import JSON, Reward

Event = dict[str, Any]
Observer = Callable[[Event], None]
"""Called with every event, as JSON. It must not block."""
PlanningObserver = Callable[[int, PlannerCall], None]
"""Called for each request to a language model planner with the request's number in the plan: before
it is sent, with its cost bound, and again with the response."""
NodeStatus = Literal["succeeded", "accepted", "failed", "skipped", "cancelled"]
Action = Literal["worker", "accept", "stop"]


# ---------------------------------------------------------------- steps and nodes


@dataclass(slots=True)
class NodeStep:
    """Routing decision at a node and its current result. Times are in seconds since the start."""

    index: int
    """Index in the order of dispatch."""
    node: int
    attempt: int
    """Number of the decision at this node, from 0."""
    action: Action
    worker: str | None
    choice: Choice
    """Choice of the router, with its log-probability and the features used for training."""
    requests: tuple[WorkerAnswer, ...] = ()
    """Responses of the worker, including retried requests, in the order of time."""
    verdict: Verification | None = None
    started: float = 0.0
    ended: float = 0.0
    queued: float = 0.0
    """Seconds spent waiting for a free slot of the worker."""

    @property
    def answer(self) -> WorkerAnswer | None:
        """Last response of the worker, or None if no request was sent."""
        return self.requests[-1] if self.requests else None

    @property
    def costs(self) -> tuple[float, ...]:
        """Cost of each request and of the verification, in USD."""
        judged = 0.0 if self.verdict is None else self.verdict.cost
        return (*(answer.cost for answer in self.requests), judged)

    @property
    def cost(self) -> float:
        """Total cost of the step in USD."""
        return math.fsum(self.costs)

    @property
    def seconds(self) -> float:
        """Seconds from the first request to the verdict, including pauses between requests."""
        return max(0.0, self.ended - self.started - self.queued)

    @property
    def passed(self) -> bool:
        """True if the answer passed the verification."""
        return self.verdict is not None and self.verdict.passed

    def to_json(self) -> JSON:
        """Convert the step to JSON for an event, without the features of the router's choice."""
        fields = _STEP.dump_python(self, exclude={"choice": {"features"}, "requests": True})
        answers = [answer.to_json() for answer in self.requests]
        return {**fields, "cost": self.cost, "seconds": self.seconds, "requests": answers}


def group_steps(steps: Iterable[NodeStep]) -> dict[int, list[NodeStep]]:
    """Group steps by node and keep their order."""
    by_node: dict[int, list[NodeStep]] = {}
    for step in steps:
        by_node.setdefault(step.node, []).append(step)
    return by_node


@dataclass(frozen=True, slots=True)
class NodeResult:
    """Result of a node. `seconds` is the sum over its steps."""

    node: int
    status: NodeStatus
    output: str | None = None
    worker: str | None = None
    """Worker whose answer was kept."""
    reason: str = ""
    seconds: float = 0.0
    checked: bool = True
    """False if the content was not checked, only that the answer is not empty."""
    correct: bool | None = None
    """Ground truth for the kept answer; None if the pool does not know it."""

    @property
    def is_ok(self) -> bool:
        """True if child nodes can use the output."""
        return self.status in ("succeeded", "accepted")


@dataclass(frozen=True, slots=True)
class Execution(ExecutionResult):
    """Result of an execution, with the plan, the nodes and the steps that produced it.

    `success` is True if every node passed its verifier, or was accepted and is known to be right.
    """

    id: str = ""
    plan: Plan = field(default_factory=lambda: Plan("", ()))
    nodes: tuple[NodeResult, ...] = ()
    steps: tuple[NodeStep, ...] = ()
    """Steps in the order of dispatch, with the executed choices that a router is trained on."""
    reason: str = ""
    """Reason of an early end: `deadline`, `failed` or `budget`; empty otherwise."""
    wall_seconds: float = 0.0
    """Seconds from start to end, including queues."""
    path: tuple[int, ...] = ()
    """Nodes of the longest chain."""
    pool: str = ""
    workers: tuple[str, ...] = ()
    """Names of the pool's workers, in the order of the router's actions."""
    router: str = ""
    mock: bool = False
    seeds: SeedTree = field(default_factory=lambda: SeedTree(0))
    """Seeds of the random draws; node k uses `child("node", k)`."""
    references: References | None = None
    """Reference cost and latency of the `normalized` reward."""
    resumed: int = 0
    """Number of nodes restored from an earlier process."""
    abandoned: tuple[int, ...] = ()
    """Failed nodes that were replaced by a further plan. They do not count for `success`."""
    unplanned: str = ""
    """Reason why the planner returned no further plan; empty otherwise."""

    @property
    def answers(self) -> dict[int, str]:
        """Outputs of the leaf nodes (nodes without children), by node index."""
        leaves = set(range(len(self.nodes))) - {before for before, _ in self.plan.edges}
        known = ((node, self.nodes[node].output) for node in sorted(leaves))
        return {node: output for node, output in known if output is not None}

    def compute_reward(self, preset: Preset = "normalized") -> Reward:
        """Return the reward and its parts."""
        parts = reward_parts(self, preset=preset)
        return Reward(sum(parts.values()), parts)

    @property
    def server_error(self) -> WorkerError | None:
        """Error of the first node that failed because no server of a worker responded; None if
        there is no such node, or if the execution succeeded."""
        for node in () if self.success else self.nodes:
            if node.status == "failed" and node.reason != "budget":
                answers = [step.answer for step in self.steps if step.node == node.node]
                errors = [answer.error for answer in answers if answer is not None]
                lost = [error for error in errors if error is not None and error.kind in UNSERVED]
                if lost and len(lost) == len(errors):
                    return lost[-1]
        return None

    @property
    def rollout(self) -> str:
        """Identifier of the stored rollout."""
        return self.seeds.id("roll")

    @property
    def correct(self) -> bool | None:
        """True if all kept outputs are correct, False if a node has no kept output; None if the
        pool has no ground truth. Nodes replaced by a later plan are ignored."""
        counted = [node for node in self.nodes if node.node not in self.abandoned]
        if any(not node.is_ok for node in counted):
            return False
        known = [node.correct for node in counted]
        return None if None in known else all(known)


# ---------------------------------------------------------------- plans as JSON

_ANSWER, _STEP, _NODE = TypeAdapter(WorkerAnswer), TypeAdapter(NodeStep), TypeAdapter(NodeResult)
_PLAN, _NODES = TypeAdapter(Plan), TypeAdapter(tuple[Node, ...])
_CALLS = TypeAdapter(tuple[PlannerCall, ...])


def calls_to_json(calls: Iterable[PlannerCall]) -> list[dict[str, Any]]:
    """Convert planner calls to JSON."""
    return _CALLS.dump_python(tuple(calls), mode="json")


def nodes_to_json(nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """Convert nodes to JSON."""
    return _NODES.dump_python(tuple(nodes), mode="json")


def read_nodes(rows: object) -> tuple[Node, ...]:
    """Read nodes from JSON. Raises `DataError` if they are invalid."""
    return read_as(_NODES, rows, "added nodes")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Convert a plan to JSON."""
    return _PLAN.dump_python(plan, mode="json", exclude=None if plan.calls else {"calls"})


def read_plan(row: Mapping[str, Any]) -> Plan:
    """Read a plan from JSON. Raises `DataError` if it is invalid."""
    return read_as(_PLAN, row, "this is no plan: it")


# ---------------------------------------------------------------- state of an execution


@dataclass(slots=True)
class ExecutionState:
    """Current state of an execution."""

    plan: Plan
    """Plan, including the nodes and planner calls of further plans."""
    seeds: SeedTree
    steps: dict[int, NodeStep] = field(default_factory=dict[int, NodeStep])
    nodes: dict[int, NodeResult] = field(default_factory=dict[int, NodeResult])
    """Results of the nodes that ended."""
    planned: int = 0
    """Number of nodes in the initial plan; further plans append nodes."""
    planning: float = 0.0
    """Seconds spent on making the initial plan."""
    replans: int = 0
    abandoned: set[int] = field(default_factory=set[int])
    begun: bool = False
    elapsed: float = 0.0
    pool: str = ""
    workers: tuple[str, ...] = ()
    router: str = ""
    mock: bool = False
    references: References | None = None
    reason: str = ""
    unplanned: str = ""
    resumed: int = 0

    def __post_init__(self) -> None:
        self.planned, self.planning = len(self.plan.nodes), self.plan.seconds

    def add_nodes(
        self, nodes: Sequence[Node], abandoned: Iterable[int], calls: Sequence[PlannerCall]
    ) -> None:
        """Add the nodes and planner calls of a later plan, and the nodes that it replaces."""
        plan = self.plan
        self.plan = replace(plan, nodes=(*plan.nodes, *nodes), calls=(*plan.calls, *calls))
        self.abandoned.update(abandoned)
        self.replans += bool(nodes)

    def execution(self) -> Execution:
        """Return the execution in its current state; unfinished nodes are marked as cancelled. The
        cost is the sum over all requests. The latency is the planning time plus the longest chain
        of nodes, without queueing."""
        plan, steps = self.plan, [self.steps[index] for index in sorted(self.steps)]
        mine, nodes = group_steps(steps), list[NodeResult]()
        for k in range(len(plan.nodes)):
            seconds = sum(step.seconds for step in mine.get(k, ()))
            cut = NodeResult(k, "cancelled", reason=self.reason or "cancelled", seconds=seconds)
            nodes.append(self.nodes.get(k, cut))
        counted = [node for node in nodes if node.node not in self.abandoned]
        if not self.reason and any(node.reason == "budget" for node in counted):
            self.reason = "budget"
        good = [n.status == "succeeded" or (n.status == "accepted" and n.correct) for n in counted]
        passed = sum(node.status == "succeeded" for node in nodes)
        latency, path = critical_path(plan, [node.seconds for node in nodes])
        return Execution(
            success=bool(counted) and all(good),
            outputs={str(node.node): node.output for node in nodes if node.output is not None},
            total_cost=math.fsum((plan.cost, *(cost for step in steps for cost in step.costs))),
            total_latency_ms=1000.0 * (plan.seconds + latency),
            verified_fraction=passed / len(nodes) if nodes else 0.0,
            id=self.seeds.id("flow"),
            nodes=tuple(nodes),
            steps=tuple(steps),
            wall_seconds=self.elapsed,
            path=path,
            abandoned=tuple(sorted(self.abandoned)),
            **{name: getattr(self, name) for name in _SAME},
        )


_SAME = (
    {each.name for each in fields(ExecutionState)} & {each.name for each in fields(Execution)}
) - {"steps", "nodes", "abandoned"}
"""Fields copied from the state to the execution."""


def replay_events(events: Sequence[Event], seeds: SeedTree) -> ExecutionState:
    """Compute the state of an execution from its events, the first of which contains the plan.
    Requests that were unfinished when a process ended are counted with their maximum cost. Raises
    `DataError` if an event is invalid."""
    state = ExecutionState(read_plan(events[0]["plan"]), seeds)
    open_steps, sent, judged = dict[int, NodeStep](), dict[int, Event](), dict[int, float]()
    planning = dict[int, Any]()
    for event in events:
        state.elapsed = max(state.elapsed, float(event.get("at", 0.0)))
        match event["event"]:
            case "start":
                state.begun = True
                for name in ("pool", "router", "mock", "resumed"):
                    setattr(state, name, event[name])
                state.workers = tuple(event["workers"])
                state.references = event["references"] and References(*event["references"])
                # Count the cost of a further plan that an earlier process did not receive.
                state.add_nodes((), (), read_as(_CALLS, list(planning.values()), "requests"))
                planning.clear()
            case "dispatch":
                open_steps[event["step"]] = read_as(_STEP, event["begun"], "a step")
            case "request":
                sent[event["step"]] = event
            case "answer":
                answer = read_as(_ANSWER, event["answer"], "an answer")
                open_steps[event["step"]].requests += (answer,)
                sent.pop(event["step"], None)
            case "verify":
                judged[event["step"]] = event["bound"]
            case "step":
                step = read_as(_STEP, event["step"], "a step")
                state.steps[step.index] = step
                open_steps.pop(step.index, None)
            case "node":
                result = read_as(_NODE, event["result"], "a node's result")
                state.nodes[result.node] = result
            case "planning":
                planning[event["request"]] = event["call"]
            case "replan":
                calls = read_as(_CALLS, event["calls"], "requests")
                state.add_nodes(read_nodes(event["nodes"]), event["abandoned"], calls)
                planning.clear()
            case "end":
                state.reason, state.unplanned = event["reason"], event["unplanned"]
            case _:
                pass
    for index, step in open_steps.items():
        _end_unfinished(step, sent.get(index), judged.get(index), state.elapsed)
        state.steps[index] = step
    state.add_nodes((), (), read_as(_CALLS, list(planning.values()), "requests"))
    return state


def _end_unfinished(step: NodeStep, request: Event | None, bound: float | None, now: float) -> None:
    """End an unfinished step with the maximum cost of its request and of its verification."""
    if request is not None:
        error = WorkerError("cancelled", "the process ended while this was running")
        step.requests += (
            WorkerAnswer(
                cost=request["bound"],
                error=error,
                estimated=True,
                arguments=request.get("arguments"),
            ),
        )
    if bound is not None:
        reason = "the process ended while this was judged"
        step.verdict = Verification(False, reason, checked=False, cost=bound)
    step.ended, step.queued = now, now - step.started


_LATER = ("plan", "start", "dispatch", "step", "node")
"""Events that are stored together with the next event: no request is sent before it, and their
content can be recomputed from earlier events."""


class ExecutionJournal:
    """Journal of an execution in a store, used to resume it after a crash. The journal is a context
    manager and an observer of the executor; `state` is the state reached by earlier processes."""

    def __init__(
        self, store: str | Path | Store, plan: Plan, seeds: SeedTree, run_id: str = ""
    ) -> None:
        """Open the journal in the store of a run, or in a separate event file. Raises `RunError` if
        the events belong to another plan and `StoreError` if the file is not a store."""
        self.store = store if isinstance(store, Store) else open_store(store)
        self._own, self._run_id, self._rollout = self.store is not store, run_id, seeds.id("roll")
        first: Event = {"event": "plan", "seed": seeds.seed, "plan": plan_to_json(plan)}
        try:
            events = self.store.events(run_id, self._rollout)
            self._pending = [] if events else [first]
            # The planner calls may differ, because another process plans again.
            if events and read_plan(events[0]["plan"]) != read_plan(first["plan"]):
                raise RunError(
                    f"{str(self.store.where)!r} already contains this execution with another plan; "
                    "use a separate name or file for each execution"
                )
            self.state = replay_events(events or [first], seeds)
        except BaseException:
            self._close()
            raise

    def __call__(self, event: Event) -> None:
        """Record an event. Events that cannot be recomputed are on disk when the call returns.
        Raises `StoreError` if the disk is full."""
        self._pending.append(event)
        paid = event["event"] == "step" and (event["step"]["verdict"] or {}).get("cost")
        if paid or event["event"] not in _LATER:
            self._store()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self._store()
        finally:
            self._close()

    def _store(self) -> None:
        if self._pending:
            self.store.put_events(self._run_id, self._rollout, self._pending)
            self._pending.clear()

    def _close(self) -> None:
        if self._own:
            self.store.close()
