"""One running plan: what ended, what it cost, which nodes may start, and its observers.

A plan that nobody can execute is refused before anything is spent. `loop.py` says in which order
all this happens, `node_run.py` has one node, `record.py` what comes of both.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any

from tutelage.errors import ConfigError, TutelageError
from tutelage.orchestration.evaluation.rewards import References
from tutelage.orchestration.execution import record
from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.context import (
    ExecutionContext,
    NodeHint,
    plan_references,
)
from tutelage.orchestration.execution.ended import EndedNodes
from tutelage.orchestration.execution.journal import (
    PLANNING,
    Event,
    ExecutionJournal,
    Observer,
    calls_json,
    nodes_json,
)
from tutelage.orchestration.execution.record import Execution, NodeResult, NodeStep
from tutelage.orchestration.execution.workers import (
    Subtask,
    capable_workers,
)
from tutelage.orchestration.plan.arguments import call_key, check_arguments, wrong_arguments
from tutelage.orchestration.plan.catalog import check_plan
from tutelage.orchestration.plan.dag import PLANS, Node, Plan, PlannerCall
from tutelage.seeds import SeedTree

_LOST = "a node that it waits for has no output"


class PlanRun:
    """One running plan: what ended, what it cost, and which nodes may start."""

    def __init__(
        self,
        place: ExecutionContext,
        plan: Plan,
        seeds: SeedTree,
        budget: Budget,
        hints: Mapping[int, NodeHint],
        observers: Sequence[Observer],
        journal: ExecutionJournal | None,
    ) -> None:
        self.place, self.plan, self.seeds, self.budget = place, plan, seeds, budget
        self.settings, self._tools = place.settings, getattr(place.pool, "tools", {})
        self._hints, self._journal = hints, journal
        self._observers = observers if journal is None else (journal, *observers)
        self.results: dict[int, NodeResult] = {}
        self.steps: dict[int, NodeStep] = {}
        self.earlier: dict[int, list[NodeStep]] = {}
        """By node: the steps that an earlier process left."""
        self.ended = EndedNodes()
        self._outputs: dict[int, str] = {}
        self._plain: set[int] = set()
        """The nodes that a tool gave text for."""
        self.dispatched = 0
        self.reason = self.overspent = ""
        self.references: References | None = None
        self._origin = 0.0
        self._restored = 0 if journal is None else len(journal.nodes)
        self._running: dict[asyncio.Task[NodeResult], int] = {}
        self._over: asyncio.Queue[asyncio.Task[NodeResult]] = asyncio.Queue()
        self._link()
        self.planned = len(plan.nodes)
        """Nodes of the plan that was begun with; later ones were added when some had failed."""
        self.replans = 0
        self.unplanned = ""
        """Why a planner that was asked had no further plan."""
        self._needs: dict[int, tuple[float, float]] = {}
        """Of the nodes that have not begun: the least bound of a try, and its expected cost."""
        self.abandoned: set[int] = set()
        """Nodes whose failure led to further nodes, which count in their place."""
        self.refusals: dict[str, str] = {}
        """The calls with side effects that were not permitted, see `call_key`, and why."""
        self.asking = defaultdict[str, asyncio.Lock](asyncio.Lock)
        """Held while it is asked about such a call: an equal one waits for what is said of it."""
        self._told_refused = False
        """Whether a planner was asked for the rest of a plan in which nodes were refused alone."""

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return asyncio.get_running_loop().time() - self._origin

    @property
    def deadline_left(self) -> float | None:
        """Seconds until the deadline, which holds for the making of the plan too."""
        deadline = self.settings.deadline
        return None if deadline is None else deadline - self._planning_seconds - self.now

    def tell(self, event: str, **fields: Any) -> None:
        """Pass an event to the listeners."""
        row: Event = {"event": event, "at": self.now, **fields}
        for observer in self._observers:
            observer(row)

    def add(self, step: NodeStep) -> None:
        """Take up a step that ended, of this process or of an earlier one."""
        self.steps[step.index] = step
        if step.answer is not None and step.answer.plain:
            self._plain.add(step.node)

    def work(self, node: int) -> Subtask:
        """The work of a node whose parents have ended."""
        return self.place.work(
            self.plan,
            node,
            self._outputs,
            hint=self._hints.get(node),
            seeds=self.seeds.child("node", node),
            plain=self._plain,
        )

    # From beginning to end

    def begin(self) -> None:
        """Refuse what cannot be executed, and take over what an earlier process left."""
        self._origin = asyncio.get_running_loop().time()
        begun_before = self._journal is not None and self._journal.begun
        self.references = self.check(begun=begun_before)
        if self._journal is not None and self._journal.asked != self.plan.calls:
            calls = (*self._journal.asked, *self.plan.calls)  # both were asked
            self.plan = replace(self.plan, calls=calls)
        self.budget.spent += self.plan.cost
        # That of further plans is within `now`; one of a longer deadline was made elsewhere.
        limit, made = self.settings.deadline, self.plan.seconds
        self._planning_seconds = made if limit is None or made < limit else 0.0
        if self._journal is not None:
            self._origin -= self._journal.elapsed
            for _, step in sorted(self._journal.steps.items()):
                self.add(step)
            self.earlier = record.steps_by_node(self.steps.values())
            for step in self.steps.values():
                self.budget.spent += step.cost
                if (answer := step.refused) and answer.error:
                    call = call_key(step.worker or "", answer.arguments, self._tools)
                    self.refusals[call] = answer.error.message
            self.dispatched = 1 + max(self.steps, default=-1)
            for nodes, abandoned, calls in self._journal.replans:
                self._grow(nodes, abandoned, calls)
            for _, node in sorted(self._journal.nodes.items()):
                self._end(node)
        fields = {"id": self.seeds.id("flow"), "nodes": len(self.plan.nodes)}
        self.tell("start", **fields, added=nodes_json(self.plan.nodes[self.planned :]))
        if not begun_before:
            self._end_wrong(0)

    def _end_wrong(self, first: int) -> None:
        """End the nodes from `first` on whose arguments cannot fit, for a planner to correct."""
        tools = self._tools
        for node, told in wrong_arguments(self.plan, tools, first).items() if tools else ():
            self._end(NodeResult(node, "failed", reason=told), told=True)

    def check(self, *, begun: bool = False) -> References | None:
        """Refuse what cannot be executed, for its arguments only where it has not `begun` and no
        planner is asked again; returns what rewards measure against."""
        plan, pool, verifiers = self.plan, self.place.pool, self.place.verifiers
        if self.place.catalog is not None:
            check_plan(plan, self.place.catalog)
        settings = self.settings
        asks = self.place.rest and settings.max_replans and settings.on_failure != "fail_fast"
        if self._tools and not begun and not asks:
            check_arguments(plan, self._tools)
        works = [self.work(node) for node in range(len(plan.nodes))]
        verifiers.refuse(works, pool)
        masks = [capable_workers(pool.workers, work) for work in works]
        roots = [k for k, parents in enumerate(self._parents) if not parents]
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
                    f"{node} ({plan.nodes[node].tool!r}), may cost {least:.6f}; raise --budget"
                )
        return plan_references(plan, pool, works, masks)

    async def admitted(self) -> None:
        """Wait until an enforced budget has enough for this plan beside those that share it."""
        if not self.budget.enforced:
            return
        for node in range(len(self.plan.nodes)):
            if node not in self.results:
                self._needs[node] = self._need(node)
        least, expected = (math.fsum(need[k] for need in self._needs.values()) for k in (0, 1))
        if not await self.budget.admit(self, least, 0.0 if self.steps else expected):
            self.reason = "budget"

    def _need(self, node: int) -> tuple[float, float]:
        """The least bound of a try at a node, and its expected cost, once its parents have ended:
        with answers of the longest kind as its inputs, four bytes a token."""
        pool, longest = self.place.pool, "x" * (4 * self.settings.max_tokens)
        inputs, hint = dict.fromkeys(self._parents[node], longest), self._hints.get(node)
        seeds = self.seeds.child("node", node)
        work = self.place.work(self.plan, node, inputs, hint=hint, seeds=seeds)
        able = capable_workers(pool.workers, work)
        asked = (pool.estimate(w, work) for w, can in zip(pool.workers, able, strict=True) if can)
        bound, cost = min((estimate.bound, estimate.cost) for estimate in asked)
        return bound + self.place.verifiers.bound(work), cost

    def begun(self, node: int) -> None:
        """A try at the node was dispatched, or it ended without one."""
        if self._needs.pop(node, None) is not None:
            self.budget.need(self, math.fsum(bound for bound, _ in self._needs.values()))

    @asynccontextmanager
    async def under_way(self) -> AsyncGenerator[None]:
        """Holds the deadline, and ends what still runs when it is left."""
        try:
            async with asyncio.timeout(self.deadline_left):
                try:
                    yield
                finally:
                    for task in self._running:
                        task.cancel()
                    # Each writes down what its request came to before it goes.
                    await asyncio.gather(*self._running, return_exceptions=True)
                    self.budget.release(self)
        except TimeoutError:
            self.reason = "deadline"

    @property
    def over(self) -> bool:
        """Whether every node has ended, or one that ends all."""
        return bool(self.reason) or len(self.results) == len(self.plan.nodes)

    def ready(self) -> list[int]:
        """The nodes that may start; those that lack an input are skipped."""
        ready: list[int] = []
        while self._candidates:
            look, self._candidates = sorted(self._candidates - self.results.keys()), set()
            free = [k for k in look if all(map(self.results.__contains__, self._parents[k]))]
            for node in free:
                if self._must_skip(node):
                    self._end(NodeResult(node, "skipped", reason=_LOST), told=True)
                else:
                    ready.append(node)
        return sorted(ready)

    def start(self, node: int, work: Coroutine[Any, Any, NodeResult]) -> None:
        """Let a node run beside the others."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._over.put_nowait)  # asyncio.wait looks at all that run
        self._running[task] = node

    async def end_first(self) -> None:
        """Wait until one of the nodes that run ends."""
        if not self._running:
            return
        done = [await self._over.get()]
        done += [self._over.get_nowait() for _ in range(self._over.qsize())]
        for task in sorted(done, key=self._running.__getitem__):
            if not self.reason:
                del self._running[task]
                self._end(task.result(), told=True)
        if self.overspent:
            self.reason = "budget"

    # The rest of a plan that failed

    async def replan(self) -> bool:
        """Ask for further nodes where some failed and the settings allow it; whether there are."""
        lost = {k for k, n in self.results.items() if not n.kept} - self.abandoned
        rest = self.place.rest
        if rest is None or self.reason or not lost:
            return False
        if self.replans >= self.settings.max_replans:
            self.unplanned = record.used_up(self.replans)
            return False
        if record.only_refused(lost, self.steps.values(), self.results):
            if self._told_refused:
                self.unplanned = "what was not permitted is not asked about again"
                return False
            self._told_refused = True
        count, calls, asked = len(self.plan.nodes), self.plan.calls, len(self.plan.calls)
        watched = PLANNING.set(self._planning)
        try:
            grown = await rest(self._so_far(), self.budget)
            calls = grown.calls
            PlanRun(self.place, grown, self.seeds, Budget(), self._hints, (), None).check()
        except asyncio.CancelledError as error:
            calls = getattr(error, "calls", calls)[asked:]
            self._grow((), (), calls)
            self.tell("replan", nodes=[], abandoned=[], calls=calls_json(calls))
            raise
        except TutelageError as error:
            calls = getattr(error, "calls", calls)
            grown, self.unplanned = self.plan, str(error)
        finally:
            PLANNING.reset(watched)
        nodes, calls = grown.nodes[count:], calls[asked:]
        self._grow(nodes, lost if nodes else (), calls)
        self.unplanned = self.unplanned or ("" if nodes else "the planner knows nothing more to do")
        given_up = sorted(lost) if nodes else []
        self.tell("replan", nodes=nodes_json(nodes), abandoned=given_up, calls=calls_json(calls))
        self._end_wrong(count)
        for call in calls:
            self.watch(PLANS, call.cost, call.bound)
        self.reason = "budget" if self.overspent else self.reason
        return bool(nodes)

    def _planning(self, request: int, call: PlannerCall) -> None:
        self.tell("planning", request=request, call=calls_json((call,))[0])

    def _grow(
        self, nodes: Sequence[Node], abandoned: Iterable[int], calls: Sequence[PlannerCall]
    ) -> None:
        before, given_up = self.plan, set(abandoned)
        self._told_refused |= record.only_refused(given_up, self.steps.values(), self.results)
        self.plan = replace(before, nodes=(*before.nodes, *nodes), calls=(*before.calls, *calls))
        self.budget.spent += self.plan.cost - before.cost
        self._link()
        self.abandoned.update(given_up)
        self.replans += bool(nodes)

    def _link(self) -> None:
        """Take over the edges of the plan; any node may be ready then."""
        self._parents = self.plan.dependencies
        self._children: list[list[int]] = [[] for _ in self._parents]
        for before, after in self.plan.edges:
            self._children[before].append(after)
        self._candidates = set(range(len(self._parents)))

    def watch(self, worker: str, cost: float, bound: float) -> None:
        """End the plan where an enforced budget was overspent by a request."""
        self.overspent = self.budget.overspent(worker, cost, bound) or self.overspent

    def _must_skip(self, node: int) -> bool:
        lost = any(not self.results[parent].kept for parent in self._parents[node])
        return lost and self.settings.on_failure != "continue"

    def _end(self, result: NodeResult, *, told: bool = False) -> None:
        node = result.node
        self.results[node] = result
        if result.kept and result.output is not None:
            self._outputs[node] = result.output
        self._candidates.update(self._children[node])
        self.begun(node)
        self.ended.add(node, result.kept, result.seconds, self._parents[node])
        if told:
            self.tell("node", result=asdict(result))
        if self.settings.on_failure == "fail_fast" and result.status == "failed":
            self.reason = "failed"

    def _cancelled(self, node: int, steps: Iterable[NodeStep]) -> NodeResult:
        seconds = sum(step.seconds for step in steps)
        return NodeResult(node, "cancelled", reason=self.reason or "cancelled", seconds=seconds)

    def conclude(self) -> Execution:
        """The result of the plan."""
        execution = self._so_far()
        self.tell("end", success=execution.success, reason=self.reason, cost=execution.total_cost)
        return execution

    def _so_far(self) -> Execution:
        place = self.place
        steps = [self.steps[index] for index in sorted(self.steps)]
        mine, count = record.steps_by_node(steps), len(self.plan.nodes)
        nodes = [self.results.get(k) or self._cancelled(k, mine.get(k, ())) for k in range(count)]
        counted = (n for n in nodes if n.node not in self.abandoned)
        if not self.reason and any(node.reason == "budget" for node in counted):
            self.reason = "budget"
        return Execution.of(
            self.plan,
            nodes,
            steps,
            id=self.seeds.id("flow"),
            reason=self.reason,
            wall_seconds=self.now,
            pool=place.pool.name,
            router=str(getattr(place.router, "name", type(place.router).__name__)),
            mock=place.pool.mock,
            seeds=self.seeds,
            references=self.references,
            resumed=self._restored,
            abandoned=tuple(sorted(self.abandoned)),
            unplanned=self.unplanned,
            overspent=self.overspent,
        )
