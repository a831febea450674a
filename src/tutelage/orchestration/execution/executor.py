"""Runs a plan: a node starts when the nodes that it waits for have ended, whatever others do.

Before every try the router is asked once, and what it chooses runs: its cost is reserved in the
budget before anything waits. A busy server is asked again after a pause; an answer that its
verifier does not pass goes back to the router, which escalates, accepts or stops. Nothing is raised
for what workers do; a plan that nobody can execute is refused before anything is spent. Time comes
from the running loop, so `virtual_time.py` runs it without waiting. `node_run.py` has one node,
`record.py` the records, `journal.py` the log that survives `kill -9`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from tutelage.errors import ConfigError
from tutelage.orchestration.evaluation.references import plan_references
from tutelage.orchestration.evaluation.rewards import References
from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.named_verifiers import default_verifiers
from tutelage.orchestration.execution.node_run import run_node
from tutelage.orchestration.execution.prompts import node_prompt
from tutelage.orchestration.execution.record import Execution, NodeResult, Step, conclude, node_json
from tutelage.orchestration.execution.verifiers import Verifiers
from tutelage.orchestration.execution.worker_files import kind_of, kind_of_tool
from tutelage.orchestration.execution.workers import Pool, Work, Worker, legal
from tutelage.orchestration.plan.catalog import Catalog, check_plan
from tutelage.orchestration.plan.dag import Plan
from tutelage.orchestration.routing.contract import Router
from tutelage.seeds import SeedTree

OnFailure = Literal["fail_fast", "continue", "skip_dependents"]
Event = dict[str, Any]
Observer = Callable[[Event], None]
"""Gets every event as it happens, as the JSON object that logs hold; it must not wait."""


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """How plans are run; times in seconds. Raises `ConfigError` for a value that cannot be."""

    max_tries: int = 3
    """Workers that are asked at one node, at most."""
    retries: int = 2
    """Further requests to the same worker when its server is busy."""
    backoff: float = 0.5
    """Pause before the first of them; doubled each time, with jitter."""
    backoff_max: float = 8.0
    try_timeout: float | None = 60.0
    """For one request."""
    node_timeout: float | None = None
    """For one node with all its tries, queues included."""
    deadline: float | None = None
    """For the whole plan."""
    on_failure: OnFailure = "skip_dependents"
    concurrency: int = 64
    """Requests at once, over all plans of one executor."""
    max_tokens: int = 512
    """Of one answer."""

    def __post_init__(self) -> None:
        if self.on_failure not in get_args(OnFailure):
            raise ConfigError(
                f"on_failure is {self.on_failure!r}; choose from {get_args(OnFailure)}"
            )
        for name, least in (
            ("max_tries", 1),
            ("retries", 0),
            ("concurrency", 1),
            ("max_tokens", 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} is {value!r}; give a whole number of at least {least}")
        for name in ("backoff", "backoff_max"):
            _seconds(name, getattr(self, name), allow_zero=True)
        for name in ("try_timeout", "node_timeout", "deadline"):
            if getattr(self, name) is not None:
                _seconds(name, getattr(self, name), allow_zero=False)


@dataclass(frozen=True, slots=True)
class Hint:
    """What is known about one node beyond its plan."""

    key: str = ""
    """The row of a table of recorded outcomes."""
    expected: object = None
    """What its verifier compares with."""
    kind: str | None = None
    """The kind of worker that it needs, where the catalog cannot say."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What an earlier process left of the same execution."""

    nodes: Mapping[int, NodeResult] = field(default_factory=dict[int, NodeResult])
    steps: tuple[Step, ...] = ()
    elapsed: float = 0.0


class Slots:
    """Free places: one semaphore a worker and one for all, made for one event loop."""

    def __init__(self, workers: Sequence[Worker], concurrency: int) -> None:
        self.all = asyncio.Semaphore(concurrency)
        self.by_worker = [asyncio.Semaphore(worker.concurrency) for worker in workers]
        self.load = [0] * len(workers)
        """Works that each worker has, running or waiting."""


class Executor:
    """Runs plans with one pool and one router; any number of plans at once share its places."""

    def __init__(
        self,
        pool: Pool,
        router: Router,
        *,
        verifiers: Verifiers | None = None,
        settings: ExecutorSettings | None = None,
        catalog: Catalog | None = None,
    ) -> None:
        """Without verifiers: the pool's own truth, or that an answer is there."""
        self.pool, self.router = pool, router
        self.verifiers = verifiers or default_verifiers(mock=pool.mock)
        self.settings = settings or ExecutorSettings()
        self.catalog = catalog
        self._slots: tuple[asyncio.AbstractEventLoop, Slots] | None = None

    async def run(
        self,
        plan: Plan,
        *,
        seeds: SeedTree,
        budget: Budget | None = None,
        hints: Mapping[int, Hint] | None = None,
        observers: Sequence[Observer] = (),
        restored: Restored | None = None,
    ) -> Execution:
        """Execute one plan. All draws come from `seeds`, which also gives the identifier.

        Raises `ConfigError` before anything is spent when a node has no legal worker, or an
        enforced budget buys no first step, `DataError` for a tool that the catalog lacks, and
        `asyncio.CancelledError` after all requests under way have been ended and written down.
        """
        run = PlanRun(self, plan, seeds, budget or Budget(), hints or {}, observers)
        return await run.run(restored or Restored())

    def check(self, plan: Plan, budget: Budget | None = None) -> None:
        """Refuse what `run` would refuse before anything is spent, with the same errors."""
        PlanRun(self, plan, SeedTree(0), budget or Budget(), {}, ()).check()

    def slots(self) -> Slots:
        """The places of the running loop."""
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:
            self._slots = (loop, Slots(self.pool.workers, self.settings.concurrency))
        return self._slots[1]

    def work(self, plan: Plan, node: int, outputs: Mapping[int, str], **more: Any) -> Work:
        """One node's work, given the outputs of its parents."""
        told, hint = plan.nodes[node], more.pop("hint", None) or Hint()
        kind = hint.kind
        if kind is None and self.catalog is not None and told.tool in self.catalog:
            kind = kind_of_tool(self.catalog[told.tool])
        return Work(
            node=node,
            type=told.tool,
            kind=kind or kind_of(told.tool, told.description),
            instruction=plan.instruction,
            description=told.description,
            prompt=node_prompt(plan, node, outputs),
            inputs={k: outputs[k] for k in told.parents if k in outputs},
            key=hint.key,
            expected=hint.expected,
            max_tokens=self.settings.max_tokens,
            **more,
        )


class PlanRun:
    """One plan under way: what ended, what it cost, and who may start."""

    def __init__(
        self,
        executor: Executor,
        plan: Plan,
        seeds: SeedTree,
        budget: Budget,
        hints: Mapping[int, Hint],
        observers: Sequence[Observer],
    ) -> None:
        self.executor, self.plan, self.seeds, self.budget = executor, plan, seeds, budget
        self.settings = executor.settings
        self._hints, self._observers = hints, observers
        self.results: dict[int, NodeResult] = {}
        self.steps: dict[int, Step] = {}
        self.ends: dict[int, float] = {}
        """Where each node that ended lies along its longest chain."""
        self.dispatched = 0
        self.reason = ""
        self.references: References | None = None
        self._origin = 0.0
        self._children: list[list[int]] = [[] for _ in plan.nodes]
        self._open = [0] * len(plan.nodes)
        for before, after in plan.edges:
            self._children[before].append(after)
            self._open[after] += 1

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return asyncio.get_running_loop().time() - self._origin

    @property
    def outputs(self) -> dict[int, str]:
        """Of the nodes that have one."""
        return {k: n.output for k, n in self.results.items() if n.kept and n.output is not None}

    def tell(self, event: str, **fields: Any) -> None:
        """Hand an event to whoever listens."""
        if self._observers:
            row: Event = {"event": event, "at": self.now, **fields}
            for observer in self._observers:
                observer(row)

    def work(self, node: int) -> Work:
        """The work of a node whose parents have ended."""
        return self.executor.work(
            self.plan,
            node,
            self.outputs,
            hint=self._hints.get(node),
            seeds=self.seeds.child("node", node),
        )

    async def run(self, restored: Restored) -> Execution:
        """See `Executor.run`."""
        self._origin = asyncio.get_running_loop().time() - restored.elapsed
        self.references = self.check()
        self._restore(restored)
        self.tell("start", id=self.seeds.id("flow"), nodes=len(self.plan.nodes))
        deadline = self.settings.deadline
        left = None if deadline is None else max(0.0, deadline - restored.elapsed)
        try:
            async with asyncio.timeout(left):
                await self._drive()
        except TimeoutError:
            self.reason = "deadline"
        execution = self._conclude(len(restored.nodes))
        self.tell("end", success=execution.success, reason=self.reason, cost=execution.total_cost)
        return execution

    def check(self) -> References | None:
        """Refuse what cannot be executed; returns what rewards measure against."""
        plan, pool, verifiers = self.plan, self.executor.pool, self.executor.verifiers
        if self.executor.catalog is not None:
            check_plan(plan, self.executor.catalog)
        works = [self.work(node) for node in range(len(plan.nodes))]
        masks = [legal(pool.workers, work) for work in works]
        roots = [k for k, parents in enumerate(plan.dependencies) if not parents]
        if self.budget.enforced and roots:
            least, node = min(
                (pool.estimate(worker, works[k]).bound + verifiers.bound(works[k]), k)
                for k in roots
                for worker, can in zip(pool.workers, masks[k], strict=True)
                if can
            )
            if self.budget.limit is not None and least > self.budget.limit:
                raise ConfigError(
                    f"a budget of {self.budget.limit!r} USD buys no first step: the cheapest, node "
                    f"{node} ({plan.nodes[node].tool!r}), may cost {least:.6f}; raise --budget, or "
                    "only watch it with --budget-mode audit"
                )
        return plan_references(plan, pool, works, masks)

    def _restore(self, restored: Restored) -> None:
        for step in restored.steps:
            self.steps[step.index] = step
            self.budget.spent += step.cost
        self.dispatched = 1 + max(self.steps, default=-1)
        for node in sorted(restored.nodes):
            self._ended(restored.nodes[node])

    async def _drive(self) -> None:
        """Start what is ready, until nothing runs; ends what runs when it is left early."""
        pending: dict[asyncio.Task[NodeResult], int] = {}
        stops = self.settings.on_failure == "fail_fast"
        try:
            if stops and any(result.status == "failed" for result in self.results.values()):
                self.reason = "failed"
                return
            self._start_ready(pending)
            while pending:
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=pending.__getitem__):
                    del pending[task]
                    result = task.result()
                    self._ended(result)
                    self.tell("node", result=node_json(result))
                    if stops and result.status == "failed":
                        self.reason = "failed"
                        return
                self._start_ready(pending)
        finally:
            for task in pending:
                task.cancel()
            # Each writes down what its request came to before it goes.
            await asyncio.gather(*pending, return_exceptions=True)

    def _start_ready(self, pending: dict[asyncio.Task[NodeResult], int]) -> None:
        running = set(pending.values())
        while True:
            ready = [
                k
                for k in range(len(self.plan.nodes))
                if self._open[k] == 0 and k not in self.results and k not in running
            ]
            skipped = [k for k in ready if self._must_skip(k)]
            for node in skipped:
                result = NodeResult(
                    node, "skipped", reason="a node that it waits for has no output"
                )
                self._ended(result)
                self.tell("node", result=node_json(result))
            for node in ready:
                if node not in self.results:
                    pending[asyncio.create_task(run_node(self, node))] = node
            if not skipped:
                return
            running = set(pending.values())

    def _must_skip(self, node: int) -> bool:
        parents = self.plan.nodes[node].parents
        lost = any(not self.results[parent].kept for parent in parents)
        return lost and self.settings.on_failure != "continue"

    def _ended(self, result: NodeResult) -> None:
        node = result.node
        self.results[node] = result
        before = max((self.ends[k] for k in self.plan.nodes[node].parents), default=0.0)
        self.ends[node] = before + result.seconds
        for child in self._children[node]:
            self._open[child] -= 1

    def _conclude(self, resumed: int) -> Execution:
        executor = self.executor
        steps = [self.steps[index] for index in sorted(self.steps)]
        spent: dict[int, float] = {}
        for step in steps:
            spent[step.node] = spent.get(step.node, 0.0) + step.seconds
        nodes = [
            self.results.get(node)
            or NodeResult(
                node, "cancelled", reason=self.reason or "cancelled", seconds=spent.get(node, 0.0)
            )
            for node in range(len(self.plan.nodes))
        ]
        if not self.reason and any(node.reason == "budget" for node in nodes):
            self.reason = "budget"
        return conclude(
            self.plan,
            nodes,
            steps,
            id=self.seeds.id("flow"),
            reason=self.reason,
            wall_seconds=self.now,
            pool=executor.pool.name,
            router=str(getattr(executor.router, "name", type(executor.router).__name__)),
            mock=executor.pool.mock,
            seeds=self.seeds,
            references=self.references,
            resumed=resumed,
        )


def _seconds(name: str, value: Any, *, allow_zero: bool) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (value == 0 and not allow_zero):
        raise ConfigError(f"{name} is {value!r}; give seconds above 0")
