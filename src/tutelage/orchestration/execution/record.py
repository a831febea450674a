"""The one record of an execution: its events, and what they come to.

An event is a row of the store (run, execution, number, JSON), on the disk before the next request
leaves. `fold` makes of events where an execution stands (`ExecutionState`), and a state makes the
`Execution`, from which rollout, spans, log and reward are made (`stored.py`). The executor keeps
such a state while it goes on; after a kill `ExecutionJournal` folds what an earlier process left:
nodes that ended are not run again, what was spent stays spent, and a request that was under way is
counted at its bound, since nobody knows what it cost. Draws are addressed by node and request, so
what is left to do is drawn as it would have been.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, TypeAdapter

from tutelage.errors import RunError
from tutelage.orchestration.data.rows import FileRecord, read_as
from tutelage.orchestration.evaluation.rewards import (
    ExecutionResult,
    Preset,
    References,
    reward_parts,
)
from tutelage.orchestration.execution.workers import Verification, WorkerAnswer, WorkerError
from tutelage.orchestration.plan.dag import Node, Plan, PlannerCall, critical_path
from tutelage.orchestration.routing.contract import Choice
from tutelage.seeds import SeedTree
from tutelage.store import Store, open_store
from tutelage.types import JSON, Reward

Event = dict[str, Any]
Observer = Callable[[Event], None]
"""Gets every event as it happens, as JSON has it; it must not wait."""
PLANNING: ContextVar[Callable[[int, PlannerCall], None]] = ContextVar(
    "planning", default=lambda request, call: None
)
"""Called with each request to a model that plans further, by its number in that plan: before it is
sent, at its bound, and with its answer."""
NodeStatus = Literal["succeeded", "accepted", "failed", "skipped", "cancelled"]
Action = Literal["worker", "accept", "stop"]


# ---------------------------------------------------------------- steps and nodes


@dataclass(slots=True)
class NodeStep:
    """One decision at one node, and its result so far. Times in seconds from the start."""

    index: int
    """Place in the order of dispatch."""
    node: int
    attempt: int
    """Which decision at this node it was, from 0."""
    action: Action
    worker: str | None
    choice: Choice
    """What was chosen, with its log-probability and the features that a router learns from."""
    requests: tuple[WorkerAnswer, ...] = ()
    """What the worker answered, the requests that met a busy server first."""
    verdict: Verification | None = None
    started: float = 0.0
    ended: float = 0.0
    queued: float = 0.0
    """Seconds of those that it waited for a free place at the worker."""

    @property
    def answer(self) -> WorkerAnswer | None:
        """The last answer, None for a decision that asked nobody."""
        return self.requests[-1] if self.requests else None

    @property
    def costs(self) -> tuple[float, ...]:
        """USD of each request, and of the verdict where a judge was paid for it."""
        judged = 0.0 if self.verdict is None else self.verdict.cost
        return (*(answer.cost for answer in self.requests), judged)

    @property
    def cost(self) -> float:
        """USD of all of it."""
        return math.fsum(self.costs)

    @property
    def seconds(self) -> float:
        """From its first request to its verdict, pauses between requests included."""
        return max(0.0, self.ended - self.started - self.queued)

    @property
    def passed(self) -> bool:
        """Whether the verifier passed the answer."""
        return self.verdict is not None and self.verdict.passed

    def to_json(self) -> JSON:
        """The step in an event; the features of its choice are not written."""
        fields = _STEP.dump_python(self, exclude={"choice": {"features"}, "requests": True})
        answers = [answer.to_json() for answer in self.requests]
        return {**fields, "cost": self.cost, "seconds": self.seconds, "requests": answers}


def steps_by_node(steps: Iterable[NodeStep]) -> dict[int, list[NodeStep]]:
    """The steps of each node that has some, in their order."""
    by_node: dict[int, list[NodeStep]] = {}
    for step in steps:
        by_node.setdefault(step.node, []).append(step)
    return by_node


@dataclass(frozen=True, slots=True)
class NodeResult:
    """What became of a node. `seconds` are those of its steps."""

    node: int
    status: NodeStatus
    output: str | None = None
    worker: str | None = None
    """Whose answer was kept."""
    reason: str = ""
    seconds: float = 0.0
    checked: bool = True
    """False where the verifier only saw that there was an answer."""
    correct: bool | None = None
    """The truth about the kept answer, where the pool knows it."""

    @property
    def kept(self) -> bool:
        """Whether there is an output for the nodes that wait for it."""
        return self.status in ("succeeded", "accepted")


@dataclass(frozen=True, slots=True)
class Execution(ExecutionResult):
    """An `ExecutionResult` with everything that led to it.

    `success` means that every node's verifier passed, or that an answer which was accepted without
    that is known to be right.
    """

    id: str = ""
    plan: Plan = field(default_factory=lambda: Plan("", ()))
    nodes: tuple[NodeResult, ...] = ()
    steps: tuple[NodeStep, ...] = ()
    """In the order of dispatch; each has the choice that ran, so that is what is credited."""
    reason: str = ""
    """Why it ended early: `deadline`, `failed`, `budget`; empty otherwise."""
    wall_seconds: float = 0.0
    """From start to end, queues included."""
    path: tuple[int, ...] = ()
    """The nodes of the longest chain."""
    pool: str = ""
    workers: tuple[str, ...] = ()
    """Names of the pool's workers, in the order of a router's actions."""
    router: str = ""
    mock: bool = False
    seeds: SeedTree = field(default_factory=lambda: SeedTree(0))
    """Where its draws came from; node k's from `child("node", k)`."""
    references: References | None = None
    """What `normalized` rewards measure against."""
    resumed: int = 0
    """Nodes that were taken over from an earlier process."""
    abandoned: tuple[int, ...] = ()
    """Nodes that failed and for which a further plan was made: what it did counts instead."""
    unplanned: str = ""
    """Why a planner that was asked for a further plan had none."""

    @property
    def answers(self) -> dict[int, str]:
        """What the last nodes gave, those that nobody waits for."""
        leaves = set(range(len(self.nodes))) - {before for before, _ in self.plan.edges}
        known = ((node, self.nodes[node].output) for node in sorted(leaves))
        return {node: output for node, output in known if output is not None}

    def earned(self, preset: Preset = "normalized") -> Reward:
        """The reward, with its parts."""
        parts = reward_parts(self, preset=preset)
        return Reward(sum(parts.values()), parts)

    @property
    def rollout(self) -> str:
        """The identifier of the rollout that it is stored as."""
        return self.seeds.id("roll")

    @property
    def correct(self) -> bool | None:
        """Whether all kept outputs are right; None where a pool does not know. Nodes that a further
        plan took the place of do not count."""
        counted = [node for node in self.nodes if node.node not in self.abandoned]
        if any(not node.kept for node in counted):
            return False
        known = [node.correct for node in counted]
        return None if None in known else all(known)


# ---------------------------------------------------------------- plans as JSON

_ANSWER, _STEP, _NODE = TypeAdapter(WorkerAnswer), TypeAdapter(NodeStep), TypeAdapter(NodeResult)
_NODES, _CALLS = TypeAdapter(tuple[Node, ...]), TypeAdapter(tuple[PlannerCall, ...])
"""What may stand in a plan that is read, and in its nodes."""


class _PlanRow(FileRecord):
    model_config = ConfigDict(extra="forbid")

    instruction: str
    nodes: tuple[Node, ...]
    calls: tuple[PlannerCall, ...] = ()


_PLAN = TypeAdapter(_PlanRow)


def calls_json(calls: Iterable[PlannerCall]) -> list[dict[str, Any]]:
    """Requests to a model that plans, as JSON."""
    return _CALLS.dump_python(tuple(calls), mode="json")


def nodes_json(nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """Nodes as JSON."""
    return _NODES.dump_python(tuple(nodes), mode="json")


def read_nodes(rows: object) -> tuple[Node, ...]:
    """The nodes that `nodes_json` wrote. Raises `DataError` for anything else."""
    return read_as(_NODES, rows, "added nodes")


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan as JSON."""
    calls = {"calls": calls_json(plan.calls)} if plan.calls else {}
    return {"instruction": plan.instruction, "nodes": nodes_json(plan.nodes), **calls}


def read_plan(row: Mapping[str, Any]) -> Plan:
    """The plan that `plan_json` wrote. Raises `DataError` for anything else."""
    made = read_as(_PLAN, row, "this is no plan: it")
    return Plan(made.instruction, made.nodes, made.calls)


# ---------------------------------------------------------------- where an execution stands


@dataclass(slots=True)
class ExecutionState:
    """Where an execution stands."""

    plan: Plan
    """With the nodes and requests of further plans."""
    seeds: SeedTree
    steps: dict[int, NodeStep] = field(default_factory=dict[int, NodeStep])
    nodes: dict[int, NodeResult] = field(default_factory=dict[int, NodeResult])
    """Those that ended."""
    planned: int = 0
    """Nodes of the plan that was begun with; later ones were added when some had failed."""
    planning: float = 0.0
    """Seconds that the making of that plan took."""
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

    def grow(
        self, nodes: Sequence[Node], abandoned: Iterable[int], calls: Sequence[PlannerCall]
    ) -> None:
        """Add the nodes of a further plan, those given up for it, and the requests for it."""
        plan = self.plan
        self.plan = replace(plan, nodes=(*plan.nodes, *nodes), calls=(*plan.calls, *calls))
        self.abandoned.update(abandoned)
        self.replans += bool(nodes)

    def execution(self) -> Execution:
        """The execution as it is now; nodes that have not ended are cancelled. Cost is the sum over
        requests, latency the longest chain of nodes without waiting in queues, and what a model
        that plans took."""
        plan, steps = self.plan, [self.steps[index] for index in sorted(self.steps)]
        mine, nodes = steps_by_node(steps), list[NodeResult]()
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
    "plan",
    "seeds",
    "pool",
    "workers",
    "router",
    "mock",
    "references",
    "resumed",
    "reason",
    "unplanned",
)
"""Fields that an execution has as its state has them."""


def fold(events: Sequence[Event], seeds: SeedTree) -> ExecutionState:
    """Where the execution of these events stands; the first has its plan. What was under way when
    a process ended is counted at its bound. Raises `DataError` for what is no event."""
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
                # A further plan that an earlier process asked for and did not get is paid for.
                state.grow((), (), read_as(_CALLS, list(planning.values()), "requests"))
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
                state.grow(read_nodes(event["nodes"]), event["abandoned"], calls)
                planning.clear()
            case "end":
                state.reason, state.unplanned = event["reason"], event["unplanned"]
            case _:
                pass
    for index, step in open_steps.items():
        _end_at_bounds(step, sent.get(index), judged.get(index), state.elapsed)
        state.steps[index] = step
    state.grow((), (), read_as(_CALLS, list(planning.values()), "requests"))
    return state


def _end_at_bounds(step: NodeStep, request: Event | None, judged: float | None, now: float) -> None:
    """End a step whose end was never written, at the bounds of its request and of its verdict."""
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
    if judged is not None:
        reason = "the process ended while this was judged"
        step.verdict = Verification(False, reason, checked=False, cost=judged)
    step.ended, step.queued = now, now - step.started


_LATER = ("plan", "start", "dispatch", "step", "node")
"""Events that are stored with the next one: nothing leaves before that, and what they have can be
made again of those before them."""


class ExecutionJournal:
    """The events of one execution in a store, in which it goes on after a kill: a context manager,
    and an observer of the executor. `state` is what earlier processes left."""

    def __init__(
        self, where: str | Path | Store, plan: Plan, seeds: SeedTree, run_id: str = ""
    ) -> None:
        """`where` is the store of a run, or the file of a store that has events alone. Raises
        `RunError` for events of another plan, `StoreError` for a file that is no store."""
        self.store = where if isinstance(where, Store) else open_store(where)
        self._own, self._run_id, self._rollout = self.store is not where, run_id, seeds.id("roll")
        first: Event = {"event": "plan", "seed": seeds.seed, "plan": plan_json(plan)}
        try:
            events = self.store.events(run_id, self._rollout)
            self._pending = [] if events else [first]
            # What a model was asked for the plan may differ: another process asks again.
            if events and read_plan(events[0]["plan"]) != read_plan(first["plan"]):
                raise RunError(
                    f"{str(self.store.where)!r} has this execution with another plan; give each "
                    "execution a name, or a file, of its own"
                )
            self.state = fold(events or [first], seeds)
        except BaseException:
            self._close()
            raise

    def __call__(self, event: Event) -> None:
        """Take one event; on return what cannot be made again is on the disk. Raises `StoreError`
        where that is full."""
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
