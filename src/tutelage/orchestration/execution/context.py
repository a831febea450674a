"""Who executes plans, and by which rules: a pool of workers, its router, its verifiers, settings.

Any number of plans at once share the free places of the workers. `plan_run.py` has one running
plan, `loop.py` how it is executed. What a plan costs at most is what its reward measures against.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal

from pydantic import ConfigDict, ValidationError

from tutelage.config.fields import Count, CountOrZero, NonNegative, Positive, Section
from tutelage.errors import ConfigError, check_given
from tutelage.orchestration.data.rows import remedy_of
from tutelage.orchestration.evaluation.rewards import References
from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.prompts import node_prompt
from tutelage.orchestration.execution.record import Execution
from tutelage.orchestration.execution.verifiers import Verifiers
from tutelage.orchestration.execution.worker_files import tool_kind
from tutelage.orchestration.execution.workers import Subtask, Worker, WorkerPool
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import Plan, critical_path
from tutelage.orchestration.routing.contract import Router

Rest = Callable[[Execution, Budget], Awaitable[Plan]]
"""The plan of an execution in which nodes failed, with further ones; none: nothing can help."""
OnFailure = Literal["fail_fast", "continue", "skip_dependents"]


class ExecutorSettings(Section):
    """How plans are run; times in seconds."""

    model_config = ConfigDict(strict=True)

    max_tries: Count = 3
    """Maximum number of workers that are asked at one node."""
    retries: CountOrZero = 2
    """Further requests to the same worker when its server is busy."""
    backoff: NonNegative = 0.5
    """Pause before the first of them; doubled each time, with jitter."""
    backoff_max: NonNegative = 8.0
    try_timeout: Positive | None = 60.0
    """For one request."""
    node_timeout: Positive | None = None
    """For one node with all its tries, queues included, and without the time in which it is asked
    whether a tool may run."""
    deadline: Positive | None = None
    """For the whole plan."""
    on_failure: OnFailure = "skip_dependents"
    concurrency: Count = 64
    """Requests at once, over all plans of one executor."""
    max_tokens: Count = 512
    """Of one answer."""
    max_replans: CountOrZero = 2
    """How often a planner that can is asked for the rest of a plan that failed."""

    def __init__(self, **given: Any) -> None:
        """Raises `ConfigError` for a value that cannot be."""
        try:
            super().__init__(**given)
        except ValidationError as misfit:
            found = misfit.errors(include_url=False)[0]
            message = f"{found['loc'][0]} is {found['input']!r}; {remedy_of(found)}"
            raise ConfigError(message) from misfit


@dataclass(frozen=True, slots=True)
class NodeHint:
    """What is known about one node beyond its plan."""

    key: str = ""
    """The row of a table of recorded outcomes."""
    expected: object = None
    """What its verifier compares with."""
    kind: str | None = None
    """The kind of worker that it needs, where the catalog cannot say."""


class _WorkerSlots:
    """Free places: one semaphore a worker and one for all, made for one event loop."""

    def __init__(self, workers: Sequence[Worker], concurrency: int) -> None:
        self.all = asyncio.Semaphore(concurrency)
        self.by_worker = [asyncio.Semaphore(worker.concurrency) for worker in workers]
        self.load = [0] * len(workers)
        """Works that each worker has, running or waiting."""


_POOL = "a pool, such as ToolPool({tool.name: tool}) or SimulatedPool(classic())"
_ROUTER = (
    "an object with choose(state), such as cheapest() of tutelage.orchestration.routing.contract"
)


class ExecutionContext:
    """What executes plans: workers, who chooses among them, who checks what they answer."""

    def __init__(
        self,
        pool: WorkerPool,
        router: Router,
        *,
        verifiers: Verifiers | None = None,
        settings: ExecutorSettings | None = None,
        catalog: Catalog | None = None,
        rest: Rest | None = None,
    ) -> None:
        """Without verifiers: the pool's own truth, or that an answer is there."""
        for name, value, kind, remedy in (
            ("pool", pool, "workers mock execute", _POOL),
            ("router", router, "choose", _ROUTER),
            ("verifiers", verifiers, (Verifiers, NoneType), "Verifiers(default, by_type)"),
            ("settings", settings, (ExecutorSettings, NoneType), "ExecutorSettings(...)"),
            ("catalog", catalog, (Catalog, NoneType), "a Catalog(tools); see read_catalog(FILE)"),
        ):
            check_given(name, value, kind, remedy)
        self.rest = rest
        self.pool, self.router = pool, router
        self.verifiers = verifiers or Verifiers.of_pool(mock=pool.mock)
        self.settings = settings or ExecutorSettings()
        self.catalog = catalog
        self._slots: tuple[asyncio.AbstractEventLoop, _WorkerSlots] | None = None

    def slots(self) -> _WorkerSlots:
        """The places of the running loop."""
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:
            self._slots = (loop, _WorkerSlots(self.pool.workers, self.settings.concurrency))
        return self._slots[1]

    def work(self, plan: Plan, node: int, outputs: Mapping[int, str], **more: Any) -> Subtask:
        """One node's work, given the outputs of its parents."""
        told, hint = plan.nodes[node], more.pop("hint", None) or NodeHint()
        return Subtask(
            node=node,
            type=told.tool,
            kind=hint.kind or tool_kind(told.tool, told.description, self.catalog),
            instruction=plan.instruction,
            description=told.description,
            prompt=node_prompt(plan, node, outputs),
            arguments=told.arguments,
            inputs={k: outputs[k] for k in told.parents if k in outputs},
            key=hint.key,
            expected=hint.expected,
            max_tokens=self.settings.max_tokens,
            **more,
        )


def plan_references(
    plan: Plan, pool: WorkerPool, works: Sequence[Subtask], masks: Sequence[Sequence[bool]]
) -> References | None:
    """Cost of the most expensive and seconds of the slowest legal single-worker plan.

    Where no worker can do every node, each node takes its own most expensive and slowest legal
    worker. None when nothing costs or takes anything.
    """
    table = [[pool.estimate(worker, work) for worker in pool.workers] for work in works]
    able = [w for w in range(len(pool.workers)) if all(mask[w] for mask in masks)]
    if able:
        cost = max(math.fsum(row[w].cost for row in table) for w in able)
        latency = max(critical_path(plan, [row[w].seconds for row in table])[0] for w in able)
    else:
        pairs = zip(table, masks, strict=True)
        choices = [[row[w] for w, can in enumerate(mask) if can] for row, mask in pairs]
        cost = math.fsum(max(e.cost for e in row) for row in choices)
        latency = critical_path(plan, [max(e.seconds for e in row) for row in choices])[0]
    # A pool that is free, or answers at once, still has a reward: that term is then 0.
    if cost <= 0 and latency <= 0:
        return None
    return References(cost=cost or 1.0, latency=latency or 1.0)
