"""Helpers of the executor's tests: a pool that does what a test says, and a way to run plans."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.executor import Executor, ExecutorSettings
from tutelage.orchestration.execution.record import Event, Execution
from tutelage.orchestration.execution.virtual_time import run_virtual
from tutelage.orchestration.execution.workers import (
    Latency,
    Subtask,
    Worker,
    WorkerAnswer,
    WorkerError,
    WorkerEstimate,
)
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.orchestration.routing.contract import Choice, Router, RouteState, cascade_router
from tutelage.seeds import SeedTree
from tutelage.store import open_store
from tutelage.store.values import load_json
from tutelage.tracing import SpanRecord
from tutelage.tracing.tree import SpanNode


def stored_events(path: Path) -> list[Event]:
    """The events of the one execution in a file."""
    if not path.is_file():
        return []
    with closing(sqlite3.connect(path)) as conn:
        if not conn.execute("select 1 from sqlite_master where name = 'events'").fetchall():
            return []
        rows = conn.execute("select data from events order by number").fetchall()
    return [load_json(text) for (text,) in rows]


def rewrite(path: Path, events: Sequence[Event]) -> None:
    """Have a file hold these events of its one execution."""
    with open_store(path) as store, closing(sqlite3.connect(path)) as conn:
        ((run_id, key),) = conn.execute("select distinct run_id, key from events").fetchall()
        with conn:
            conn.execute("delete from events")
        store.put_events(run_id, key, events)


def cut_to(path: Path, count: int) -> None:
    """Leave the first events, as a kill would."""
    rewrite(path, stored_events(path)[:count])


def cut_after(path: Path, event: str, node: int | None = None, place: int = 1) -> None:
    """Leave the events until the first of this name, of this node where one is named; with `place`
    0 without it."""
    rows = enumerate(stored_events(path))
    found = (i for i, e in rows if e["event"] == event and node in (None, e.get("node")))
    cut_to(path, next(found) + place)


Behaviour = Callable[[Worker, Subtask], WorkerAnswer]


class ScriptedPool:
    """A pool whose answers a function gives; it takes their seconds and counts what goes on."""

    name = "scripted"
    mock = True

    def __init__(self, workers: Sequence[Worker], behave: Behaviour) -> None:
        self.workers = tuple(workers)
        self.behave = behave
        self.asked: list[tuple[str, int, int]] = []
        self.running = self.most = self.closed = 0
        self.cancelled: list[int] = []
        self.prompts: dict[int, str] = {}

    async def execute(self, worker: Worker, work: Subtask) -> WorkerAnswer:
        self.asked.append((worker.name, work.node, work.attempt))
        self.prompts[work.node] = work.prompt
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            answer = self.behave(worker, work)
            await asyncio.sleep(answer.seconds)
            return replace(answer, mock=True)
        except asyncio.CancelledError:
            self.cancelled.append(work.node)
            raise
        finally:
            self.running -= 1

    def estimate(self, worker: Worker, work: Subtask) -> WorkerEstimate:
        return WorkerEstimate(worker.price_out, worker.latency.seconds, worker.price_out)

    async def close(self) -> None:
        self.closed += 1


def right(seconds: float = 1.0, cost: float = 0.0, output: str | None = None) -> Behaviour:
    """Every answer is right."""
    return lambda worker, work: WorkerAnswer(
        output or f"out-{work.node}", cost=cost, seconds=seconds, correct=True
    )


def wrong(seconds: float = 1.0, cost: float = 0.0) -> WorkerAnswer:
    return WorkerAnswer("bad", cost=cost, seconds=seconds, correct=False)


def failed(kind: Any, seconds: float = 0.1, **more: Any) -> WorkerAnswer:
    return WorkerAnswer(seconds=seconds, error=WorkerError(kind, "scripted", **more))


def workers(*names: str, price: float = 1.0, **fields: Any) -> tuple[Worker, ...]:
    return tuple(Worker(name, price_out=price, latency=Latency(1.0), **fields) for name in names)


def plan_of(*parents: Sequence[int]) -> Plan:
    """Nodes `t0`, `t1`, ... with these parents."""
    return Plan("Do it", tuple(Node(f"t{i}", after=tuple(p)) for i, p in enumerate(parents)))


DIAMOND = plan_of((), (0,), (0,), (1, 2))


def run_plan(
    plan: Plan,
    pool: Any,
    router: Router | None = None,
    *,
    budget: Budget | None = None,
    observers: Sequence[Callable[[dict[str, Any]], None]] = (),
    seed: int = 0,
    **settings: Any,
) -> Execution:
    """Execute on the jumping clock with the workers in their order."""
    executor = Executor(
        pool,
        router or cascade_router([worker.name for worker in pool.workers]),
        settings=ExecutorSettings(**settings),
    )
    return run_virtual(executor.run(plan, seeds=SeedTree(seed), budget=budget, observers=observers))


class RandomRouter:
    """A worker drawn evenly among the legal ones, by the seed of the try."""

    def choose(self, state: RouteState) -> Choice:
        workers = state.candidates
        return Choice(state.seeds.python().choice(workers) if workers else state.stop)


def walk(tree: SpanNode, depth: int = 0) -> Iterator[tuple[int, SpanRecord]]:
    """Yield the spans of a tree with their depth, each before its children."""
    yield depth, tree.span
    for child in tree.children:
        yield from walk(child, depth + 1)
