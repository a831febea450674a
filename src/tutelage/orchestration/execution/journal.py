"""The log of one execution, written as it happens, so that a killed process loses no finished node.

One line of JSON an event, on the disk of the operating system before the next request goes out.
`open_journal` reads what an earlier process left: nodes that ended are not run again, what was
spent stays spent, and a request that was under way is counted at its bound, since nobody knows what
it came to. A last line that was cut off is dropped. Draws are addressed by node and request, so
what is left to do is drawn as it would have been.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter

from tutelage.errors import DataError, RunError
from tutelage.orchestration.data.rows import Row, read_as
from tutelage.orchestration.execution.plan_run import Event, Restored
from tutelage.orchestration.execution.record import (
    NodeResult,
    Step,
    read_answer,
    read_node,
    read_step,
)
from tutelage.orchestration.execution.verifiers import Verdict
from tutelage.orchestration.execution.workers import Answer, WorkError
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.orchestration.routing.contract import Choice
from tutelage.seeds import SeedTree


class _Journal:
    """An observer of an executor that appends each event to a file. A context manager."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def __call__(self, event: Event) -> None:
        """Write one event. Raises `RunError` when the disk is full."""
        line = json.dumps(event, ensure_ascii=False, allow_nan=False, default=str) + "\n"
        try:
            os.write(self._descriptor, line.encode("utf-8", "surrogatepass"))
        except OSError as error:
            raise RunError(f"cannot write {str(self.path)!r}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def __enter__(self) -> _Journal:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def open_journal(path: str | Path, plan: Plan, seeds: SeedTree) -> tuple[_Journal, Restored]:
    """The log of this plan and what it says was done already.

    Raises `RunError` for a file of another plan or seed, and where it cannot be written;
    `DataError` for one that is damaged before its last line.
    """
    path = Path(path)
    header = {"event": "plan", "id": seeds.id("flow"), "seed": seeds.seed, "plan": plan_json(plan)}
    events = _read(path)
    if events:
        for key in ("id", "plan"):
            if events[0].get(key) != header[key]:
                raise RunError(
                    f"{str(path)!r} is the log of another execution: its {key} is not this one's; "
                    "give each execution a file of its own"
                )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise RunError(f"cannot write {str(path)!r}: {error.strerror}") from error
    journal = _Journal(path, descriptor)
    if not events:
        journal(header)
    return journal, _restore(events)


def _restore(events: list[Event]) -> Restored:
    """What the events say was done."""
    nodes: dict[int, NodeResult] = {}
    steps: dict[int, Step] = {}
    opened: dict[int, _Opened] = {}
    elapsed = 0.0
    for event in events:
        elapsed = max(elapsed, float(event.get("at", 0.0)))
        match event["event"]:
            case "dispatch":
                opened[event["step"]] = _Opened(event)
            case "request":
                opened[event["step"]].bound = event["bound"]
            case "verify":
                opened[event["step"]].judged = event["bound"]
            case "answer":
                opened[event["step"]].answered(read_answer(event["answer"]))
            case "step":
                step = read_step(event["step"])
                steps[step.index] = step
                opened.pop(step.index, None)
            case "node":
                result = read_node(event["result"])
                nodes[result.node] = result
            case _:
                pass
    for index, left in opened.items():
        steps[index] = left.cut(elapsed)
    return Restored(nodes, tuple(steps[index] for index in sorted(steps)), elapsed)


class _Opened:
    """A step whose end was never written."""

    def __init__(self, event: Event) -> None:
        self._event = event
        self._answers: list[Answer] = []
        self.bound: float | None = None
        """Of the request that is under way."""
        self.judged: float | None = None
        """Bound of the verdict that is under way."""

    def answered(self, answer: Answer) -> None:
        self._answers.append(answer)
        self.bound = None

    def cut(self, now: float) -> Step:
        """The step as far as it went."""
        answers = list(self._answers)
        if self.bound is not None:
            told = WorkError("cancelled", "the process ended while this was under way")
            answers.append(Answer(cost=self.bound, error=told, estimated=True))
        verdict = None
        if self.judged is not None:
            told = "the process ended while this was judged"
            verdict = Verdict(False, told, checked=False, cost=self.judged)
        event = self._event
        mask = tuple(bool(m) for m in event["mask"])
        return Step(
            index=event["step"],
            node=event["node"],
            attempt=event["attempt"],
            action="worker",
            worker=event["worker"],
            choice=Choice(event["choice"], event["log_prob"], mask),
            requests=tuple(answers),
            verdict=verdict,
            started=event["at"],
            ended=now,
            queued=now - event["at"],
        )


class _Planned(Row):
    instruction: str
    nodes: tuple[Node, ...]


_PLAN = TypeAdapter(_Planned)


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan as JSON."""
    nodes = [{**asdict(node), "after": list(node.after)} for node in plan.nodes]
    return {"instruction": plan.instruction, "nodes": nodes}


def read_plan(row: Mapping[str, Any]) -> Plan:
    """The plan that `plan_json` wrote. Raises `DataError` for anything else."""
    given = read_as(_PLAN, row, "this is no plan: it")
    return Plan(given.instruction, given.nodes)


def _read(path: Path) -> list[Event]:
    """The events of a file; a torn last line is cut off it."""
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
    for number, line in enumerate(data[:whole].splitlines(), 1):
        try:
            row: Any = json.loads(line)
        except ValueError as error:
            raise DataError(f"{str(path)!r}, line {number}: no JSON: {error}") from error
        if not isinstance(row, dict) or "event" not in row:
            raise DataError(f"{str(path)!r}, line {number}: this is no event of an execution")
        events.append(cast("Event", row))
    return events
