"""The log of one execution, written as it happens, so that a killed process loses no finished node.

One line of JSON an event, on the disk of the operating system before the next request goes out.
A `ExecutionJournal` reads what an earlier process left: nodes that ended are not run again, what
was spent stays spent, and a request that was running is counted at its bound, since its actual
cost is unknown. A last line that was cut off is dropped. Draws are addressed by node and request,
so what is left to do is drawn as it would have been.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, cast

from pydantic import ConfigDict, TypeAdapter

from tutelage.bounded import json_lines
from tutelage.errors import DataError, RunError
from tutelage.orchestration.data.rows import FileRecord, read_as
from tutelage.orchestration.execution.record import NodeResult, NodeStep
from tutelage.orchestration.execution.workers import Verification, WorkerAnswer, WorkerError
from tutelage.orchestration.plan.arguments import value_key
from tutelage.orchestration.plan.dag import Node, Plan, PlannerCall
from tutelage.seeds import SeedTree

Event = dict[str, Any]
Observer = Callable[[Event], None]
"""Gets every event as it happens, as the JSON object that logs hold; it must not wait."""


PLANNING: ContextVar[Callable[[int, PlannerCall], None]] = ContextVar(
    "planning", default=lambda request, call: None
)
"""Told each request to a model that plans further: before it is sent, at its bound, and with its
answer, by its number in that plan."""


class ExecutionJournal:
    """What one execution did so far, in a file that a resume continues. A context manager.

    It observes an executor, whose events it appends.
    """

    def __init__(self, path: str | Path, plan: Plan, seeds: SeedTree) -> None:
        """Raises `RunError` for a file of another plan or seed, and where it cannot be written;
        `DataError` for one that is damaged before its last line."""
        self.path = Path(path)
        self.nodes: dict[int, NodeResult] = {}
        """Those that ended."""
        self.steps: dict[int, NodeStep] = {}
        """Those that began; what was running is paid for at its bound."""
        self.replans: list[tuple[tuple[Node, ...], tuple[int, ...], tuple[PlannerCall, ...]]] = []
        """Nodes that were added to the plan, those that were given up for them, and what a model
        was asked for them."""
        self.elapsed, self.begun = 0.0, False
        fields: Event = {"id": seeds.id("flow"), "seed": seeds.seed, "plan": plan_json(plan)}
        events = read_events(self.path)
        begun: Event = events[0] if events else fields
        self.asked = read_as(_CALLS, begun.get("plan", {}).get("calls", ()), "a planner's calls")
        """What a model was asked for the plan as it was begun."""
        for key in ("id", "plan"):
            if value_key(_without_calls(begun.get(key))) != value_key(_without_calls(fields[key])):
                raise RunError(
                    f"{str(path)!r} is the log of another execution: its {key} is not this one's; "
                    "give each execution a file of its own"
                )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise RunError(f"cannot write {str(path)!r}: {error.strerror}") from error
        if not events:
            self({"event": "plan", **fields})
        self._restore(events)

    def __call__(self, event: Event) -> None:
        """Write one event. Raises `RunError` when the disk is full."""
        line = json.dumps(event, ensure_ascii=False, allow_nan=False, default=str) + "\n"
        try:
            os.write(self._descriptor, line.encode("utf-8", "surrogatepass"))
        except OSError as error:
            raise RunError(f"cannot write {str(self.path)!r}: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._descriptor)

    def _restore(self, events: list[Event]) -> None:
        """Take over what the events say was done."""
        opened: dict[int, NodeStep] = {}
        asked: dict[int, Event] = {}
        judged: dict[int, float] = {}
        for event in events:
            self.elapsed = max(self.elapsed, float(event.get("at", 0.0)))
            self.begun |= event["event"] == "start"
            match event["event"]:
                case "dispatch":
                    values = {"action": "worker", **event, "index": event["step"]}
                    opened[event["step"]] = _step({**values, "started": event["at"]})
                case "request":
                    asked[event["step"]] = event
                case "verify":
                    judged[event["step"]] = event["bound"]
                case "answer":
                    answer = read_as(_ANSWER, event["answer"], "an answer")
                    opened[event["step"]].requests += (answer,)
                    asked.pop(event["step"], None)
                case "step":
                    step = _step(event["step"])
                    self.steps[step.index] = step
                    opened.pop(step.index, None)
                case "node":
                    result = read_as(_NODE, event["result"], "a node's result")
                    self.nodes[result.node] = result
                case "replan":
                    added = read_nodes(event["nodes"])
                    calls = read_as(_CALLS, event.get("calls"), "a planner's calls")
                    self.replans.append((added, tuple(event["abandoned"]), calls))
                case _:
                    pass
        for index, left in opened.items():
            self.steps[index] = left
            _cut(left, asked.get(index), judged.get(index), self.elapsed)
        self.replans += [((), (), lost) for lost in _lost_requests(events)]


_ANSWER, _STEP, _NODE = TypeAdapter(WorkerAnswer), TypeAdapter(NodeStep), TypeAdapter(NodeResult)
_NODES, _CALLS = TypeAdapter(tuple[Node, ...]), TypeAdapter(tuple[PlannerCall, ...])


def _lost_requests(events: Iterable[Event]) -> list[tuple[PlannerCall, ...]]:
    """What a model was asked for a further plan that never came, if any: it is paid for."""
    lost: list[Any] = []
    asked: dict[int, Any] = {}
    resumed: Event = {"event": "start"}
    for event in (*events, resumed):
        if event["event"] == "planning":
            asked[event["request"]] = event["call"]
        elif event["event"] in ("replan", "start"):
            lost += asked.values() if event["event"] == "start" else ()
            asked.clear()
    return [read_as(_CALLS, lost, "requests of a planner")] if lost else []


def _step(row: Mapping[str, Any]) -> NodeStep:
    """The step that `NodeStep.to_json` wrote, without what its router kept in `features`."""
    choice = {"action": row["choice"], "log_prob": row["log_prob"], "mask": row["mask"]}
    return read_as(_STEP, {**row, "choice": choice}, "a step")


_ENDED = "the process ended while this was running"


def _cut(step: NodeStep, asked: Event | None, judged: float | None, now: float) -> None:
    """End a step whose end was never written: what was `asked`, and the bound of a verdict."""
    if asked is not None:
        error, given = WorkerError("cancelled", _ENDED), asked.get("arguments")
        cut = WorkerAnswer(cost=asked["bound"], error=error, estimated=True, arguments=given)
        step.requests += (cut,)
    if judged is not None:
        error = "the process ended while this was judged"
        step.verdict = Verification(False, error, checked=False, cost=judged)
    step.ended, step.queued = now, now - step.started


NODE_FIELDS = tuple(Node.__dataclass_fields__)
PLAN_FIELDS = {"": ("instruction", "nodes"), "nodes": NODE_FIELDS}
"""What may stand in a plan that is read, and in its nodes."""


class _Planned(FileRecord):
    model_config = ConfigDict(extra="forbid")

    instruction: str
    nodes: tuple[Node, ...]
    calls: tuple[PlannerCall, ...] = ()
    expected: Any = None
    """What `orchestrate plan --out` thinks that it costs, for a person to read."""


_PLAN = TypeAdapter(_Planned)


def _without_calls(value: object) -> object:
    """A plan without what a model was asked for it, which another process asks again."""
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, object]", value)
    return {key: each for key, each in fields.items() if key != "calls"}


def calls_json(calls: Iterable[PlannerCall]) -> list[dict[str, Any]]:
    """What a model was asked for a plan, as JSON."""
    return [{**asdict(call), "messages": [list(m) for m in call.messages]} for call in calls]


def nodes_json(nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """Nodes as JSON."""
    return [{**asdict(node), "after": list(node.after)} for node in nodes]


def read_nodes(rows: object) -> tuple[Node, ...]:
    """The nodes that `nodes_json` wrote. Raises `DataError` for anything else."""
    return read_as(_NODES, rows, "added nodes")


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan as JSON."""
    calls = {"calls": calls_json(plan.calls)} if plan.calls else {}
    return {"instruction": plan.instruction, "nodes": nodes_json(plan.nodes), **calls}


def read_plan(row: Mapping[str, Any]) -> Plan:
    """The plan that `plan_json` wrote. Raises `DataError` for anything else."""
    planned = read_as(_PLAN, row, "this is no plan: it", known=PLAN_FIELDS)
    return Plan(planned.instruction, planned.nodes, planned.calls)


def read_events(path: Path) -> list[Event]:
    """The events of a file, none of one that is missing; a torn last line is cut off it. Raises
    `DataError` for other damage, `RunError` where it cannot be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"cannot read {str(path)!r}: {error.strerror}") from error
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
    events: list[Event] = []
    for number, line in json_lines(data[:whole]):
        try:
            row: Any = json.loads(line)  # a key that an earlier version wrote twice: the last one
        except ValueError as error:
            raise DataError(f"{str(path)!r}, line {number}: no JSON: {error}") from error
        if not isinstance(row, dict) or "event" not in row:
            raise DataError(f"{str(path)!r}, line {number}: this is no event of an execution")
        events.append(cast("Event", row))
    return events
