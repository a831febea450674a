"""Executor of plans: schedules the nodes, routes each node to workers and verifies the answers.

    plan ─▶ ready nodes ─▶ route ─▶ ask a worker ─▶ verify ─▶ step ─▶ node ends ─▶ ready nodes

Plans that cannot be executed raise an error before anything is spent; failures of workers raise
nothing. A node starts when its parents have ended, independently of other nodes. The router is
called once before every try, and its choice is executed. If the verifier rejects an answer, the
router tries another worker, accepts the answer or stops. After nodes have failed, a planner that
supports it adds further nodes, which run in the same way within the same budget. There is no
`await` between the router's choice and the reservation of its cost, so a choice allowed by the mask
always fits the budget. If a request ends early, its step is recorded with the upper bound of the
cost, because a provider may bill unfinished requests. Every change is an event (`record.py`). Time
comes from the running loop, so a plan can run on the clock of `virtual_time.py` without waiting.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, cast

from pydantic import ConfigDict

from tutelage.config.fields import Count, CountOrZero, NonNegative, Positive, Section
from tutelage.errors import ConfigError, RewardError, TutelageError, pluralize
from tutelage.orchestration.evaluation.rewards import References
from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.permission import Doubt
from tutelage.orchestration.execution.pools.tools import LATE, ToolPool
from tutelage.orchestration.execution.prompts import node_prompt
from tutelage.orchestration.execution.record import (
    Action,
    Event,
    Execution,
    ExecutionJournal,
    ExecutionState,
    NodeResult,
    NodeStatus,
    NodeStep,
    Observer,
    PlanningObserver,
    calls_to_json,
    group_steps,
    nodes_to_json,
)
from tutelage.orchestration.execution.verifiers import Verifiers
from tutelage.orchestration.execution.worker_files import tool_kind
from tutelage.orchestration.execution.workers import (
    Subtask,
    Verification,
    Worker,
    WorkerAnswer,
    WorkerError,
    WorkerPool,
    capable_workers,
)
from tutelage.orchestration.plan.arguments import call_key, check_arguments, find_errors
from tutelage.orchestration.plan.catalog import Catalog, check_plan
from tutelage.orchestration.plan.dag import Node, Plan, PlannerCall, critical_path, levels
from tutelage.orchestration.routing.contract import Choice, Router, RouteState
from tutelage.seeds import SeedTree

Rest = Callable[[Execution, Budget, PlanningObserver], Awaitable[Plan]]
"""Replanner: receives an execution with failed nodes and returns its plan with further nodes. No
further nodes means that the planner cannot continue. It spends its cost from the budget and reports
each request to the observer."""
BACKOFF_MAX = 8.0
"""Maximum pause in seconds before a request is repeated."""


class ExecutionLimits(Section):
    """Limits of one execution; times in seconds."""

    deadline: Positive | None = None
    """Maximum seconds of the whole execution."""
    try_timeout: Positive | None = 60.0
    """Maximum seconds of one request."""
    on_failure: Literal["fail_fast", "continue", "skip_dependents"] = "skip_dependents"
    """Handling of the other subtasks after a subtask failed."""
    max_tries: Count = 3
    """Maximum number of workers tried for one subtask."""
    max_tokens: Count = 512
    """Maximum tokens of one answer."""
    max_replans: CountOrZero = 2
    """Maximum number of further plans after failed subtasks, if a language model plans."""


class ExecutorSettings(ExecutionLimits):
    """Settings of the executor: the limits of each execution, retries and concurrency."""

    model_config = ConfigDict(strict=True)

    retries: CountOrZero = 2
    """Number of retries of the same worker after a transient error."""
    backoff: NonNegative = 0.5
    """Pause before the first retry; doubled for each further retry, with jitter, up to 8 s."""
    concurrency: Count = 64
    """Maximum number of concurrent requests of an executor, over all of its plans."""


class Executor:
    """Executes plans with a pool of workers, a router and verifiers. Plans that run concurrently
    share the concurrency limits of the workers."""

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
        """By default, the verifiers use the pool's ground truth or accept any non-empty answer."""
        self.pool, self.router, self.rest = pool, router, rest
        self.verifiers = verifiers or Verifiers.make_default(mock=pool.mock)
        self.settings = settings or ExecutorSettings()
        self.catalog = catalog
        self.load = [0] * len(pool.workers)
        """Number of running and waiting tasks of each worker."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def get_slots(self, index: int) -> tuple[asyncio.Semaphore, asyncio.Semaphore]:
        """Return the semaphores of one worker and of the pool for the running event loop."""
        if self._loop is not asyncio.get_running_loop():
            self._loop = asyncio.get_running_loop()
            self._every = asyncio.Semaphore(self.settings.concurrency)
            limits = [worker.concurrency for worker in self.pool.workers]
            self._by_worker = [asyncio.Semaphore(limit) for limit in limits]
        return self._by_worker[index], self._every

    def make_subtask(
        self,
        plan: Plan,
        node: int,
        outputs: Mapping[int, str],
        *,
        seeds: SeedTree = SeedTree(0),  # noqa: B008
    ) -> Subtask:
        """Return the subtask of a plan node, with the outputs of its parents as inputs."""
        planned = plan.nodes[node]
        return Subtask(
            node=node,
            type=planned.tool,
            kind=tool_kind(planned.tool, planned.description, self.catalog),
            instruction=plan.instruction,
            prompt=node_prompt(plan, node, outputs),
            arguments=planned.arguments,
            inputs={k: outputs[k] for k in planned.parents if k in outputs},
            max_tokens=self.settings.max_tokens,
            seeds=seeds,
        )

    def check(
        self, plan: Plan, budget: Budget | None = None, *, started: bool = False
    ) -> References | None:
        """Validate a plan and raise the errors that `run` would raise before any cost. The
        arguments are not checked if the execution was started before, or if a planner can correct
        them. Return the reference cost and latency of the reward: those of the most expensive and
        of the slowest valid single-worker plan, or None if both are 0."""
        pool, settings, tools = self.pool, self.settings, getattr(self.pool, "tools", {})
        if self.catalog is not None:
            check_plan(plan, self.catalog)
        asks = self.rest and settings.max_replans and settings.on_failure != "fail_fast"
        if tools and not started and not asks:
            check_arguments(plan, tools)
        works = [self.make_subtask(plan, k, {}) for k in range(len(plan.nodes))]
        masks = [capable_workers(pool.workers, work) for work in works]
        table = [[pool.estimate(worker, work) for worker in pool.workers] for work in works]
        firsts = [
            (table[k][w].bound + self.verifiers.bound(works[k]), k)
            for k, parents in enumerate(plan.dependencies)
            for w, can in enumerate(masks[k])
            if can and not parents
        ]
        least, node = min(firsts, default=(0.0, 0))
        if budget is not None and budget.limit is not None and least > budget.limit:
            raise ConfigError(
                f"the budget of {budget.limit!r} USD is too small: the cheapest first step (node "
                f"{node}, {plan.nodes[node].tool!r}) may cost {least:.6f}; raise --budget"
            )
        able = [w for w in range(len(pool.workers)) if all(mask[w] for mask in masks)]
        if able:
            cost = max(math.fsum(row[w].cost for row in table) for w in able)
            latency = max(critical_path(plan, [row[w].seconds for row in table])[0] for w in able)
        else:  # use the most expensive and slowest legal worker of each node
            pairs = zip(table, masks, strict=True)
            choices = [[row[w] for w, can in enumerate(mask) if can] for row, mask in pairs]
            cost = math.fsum(max(e.cost for e in row) for row in choices)
            latency = critical_path(plan, [max(e.seconds for e in row) for row in choices])[0]
        # A reference of 0 is replaced by 1: the reward term of a free or instant pool is then 0.
        return References(cost or 1.0, latency or 1.0) if cost > 0 or latency > 0 else None

    async def run(
        self,
        plan: Plan,
        *,
        seeds: SeedTree,
        budget: Budget | None = None,
        observers: Sequence[Observer] = (),
        journal: ExecutionJournal | None = None,
    ) -> Execution:
        """Execute a plan. All random draws and the identifier are derived from `seeds`.

        Events are written to `journal`, and work that it already contains is not repeated. Raises
        `ConfigError` before anything is spent if a node has no capable worker or the budget is too
        small for a first step, `DataError` if a tool is not in the catalog, and
        `asyncio.CancelledError` after all running requests have been cancelled and recorded.
        """
        state = ExecutionState(plan, seeds) if journal is None else journal.state
        watching = observers if journal is None else (journal, *observers)
        return await _PlanRun(self, state, budget or Budget(), watching).execute()


class _PlanRun:
    """State of a running plan: finished nodes, costs, and nodes that are ready to start."""

    def __init__(
        self,
        executor: Executor,
        state: ExecutionState,
        budget: Budget,
        observers: Sequence[Observer],
    ) -> None:
        self.executor, self.state, self.budget = executor, state, budget
        self.settings, self.observers = executor.settings, observers
        self.tools: Mapping[str, Any] = getattr(executor.pool, "tools", {})
        self.earlier = group_steps(step for _, step in sorted(state.steps.items()))
        """Steps of earlier processes, by node."""
        self.dispatched = 1 + max(state.steps, default=-1)
        self.ends: dict[int, float] = {}
        """Finish time of each ended node along its longest chain."""
        self.outputs: dict[int, str] = {}
        self.refusals: dict[str, str] = {}
        """Reason of the refusal of each refused call with side effects, by `call_key`."""
        self.asking = asyncio.Lock()
        """Held during a permission request, so that an equal call waits for the decision."""
        self._running: dict[asyncio.Task[NodeResult], int] = {}
        self._update_order()

    def _update_order(self) -> None:
        """Update the parents and the order of the nodes after the plan has changed."""
        self._parents = self.state.plan.dependencies
        self._order = [node for level in levels(self.state.plan) for node in level]

    @property
    def now(self) -> float:
        """Seconds since the start of the execution."""
        return asyncio.get_running_loop().time() - self._origin

    @property
    def deadline_left(self) -> float | None:
        """Seconds until the deadline, which also covers planning; None without a deadline."""
        deadline = self.settings.deadline
        return None if deadline is None else deadline - self.state.planning - self.now

    def emit(self, event: str, **fields: Any) -> None:
        """Send an event to the journal and to the observers."""
        row: Event = {"event": event, "at": self.now, **fields}
        for observer in self.observers:
            observer(row)

    def get_call_key(self, step: NodeStep) -> str:
        """Return the key of the step's tool call, or an empty string if no tool was called."""
        arguments = step.answer and step.answer.arguments
        return "" if arguments is None else call_key(step.worker or "", arguments, self.tools)

    async def execute(self) -> Execution:
        """Execute the plan; see `Executor.run`."""
        self._restore()
        state, running = self.state, self._running
        try:
            async with asyncio.timeout(self.deadline_left):
                try:
                    while True:
                        for node in () if state.reason else self._find_ready_nodes():
                            running[asyncio.create_task(_NodeRun(self, node).execute())] = node
                        if running and not state.reason:
                            ended, _ = await asyncio.wait(running, return_when="FIRST_COMPLETED")
                            for task in sorted(ended, key=running.__getitem__):
                                if not state.reason:
                                    del running[task]
                                    self._end_node(task.result())
                        elif not await self._replan():
                            break
                finally:
                    for task in running:
                        task.cancel()
                    # Each task records the outcome of its request before it ends.
                    await asyncio.gather(*running, return_exceptions=True)
        except TimeoutError:
            state.reason = "deadline"
        state.elapsed = self.now
        execution = state.execution()
        self.emit(
            "end",
            success=execution.success,
            cost=execution.total_cost,
            reason=state.reason,
            unplanned=state.unplanned,
        )
        return execution

    def _restore(self) -> None:
        """Check the plan and restore the state reached by earlier processes."""
        state, executor, begun = self.state, self.executor, self.state.begun
        planned = replace(state.plan, nodes=state.plan.nodes[: state.planned])
        state.references = executor.check(planned, self.budget, started=begun)
        self.budget.spent += state.plan.cost + math.fsum(s.cost for s in state.steps.values())
        self._origin = asyncio.get_running_loop().time() - state.elapsed
        state.reason = state.unplanned = ""
        state.begun, state.resumed = True, len(state.nodes)
        state.pool, state.mock = executor.pool.name, executor.pool.mock
        state.workers = tuple(worker.name for worker in executor.pool.workers)
        state.router = str(getattr(executor.router, "name", type(executor.router).__name__))
        for _, node in sorted(state.nodes.items()):
            self._end_node(node, notify=False)
        against = state.references and [state.references.cost, state.references.latency]
        self.emit(
            "start",
            id=state.seeds.id("flow"),
            nodes=len(state.plan.nodes),
            added=nodes_to_json(state.plan.nodes[state.planned :]),
            references=against,
            pool=state.pool,
            workers=state.workers,
            router=state.router,
            mock=state.mock,
            resumed=state.resumed,
        )
        if not begun:
            self._fail_invalid_nodes(0)

    def _fail_invalid_nodes(self, start: int) -> None:
        """Mark nodes with invalid arguments as failed, from index `start` on, so that a planner can
        correct them."""
        wrong = find_errors(self.state.plan, self.tools, start) if self.tools else {}
        for node, reason in wrong.items():
            self._end_node(NodeResult(node, "failed", reason=reason))

    def _find_ready_nodes(self) -> list[int]:
        """Return the nodes that can start. Nodes with missing inputs are skipped unless
        `on_failure` is `continue`."""
        ready, ended, started = list[int](), self.state.nodes, {*self._running.values()}
        for node in self._order:
            if node in ended or node in started or not ended.keys() >= {*self._parents[node]}:
                continue
            lost = any(not ended[parent].is_ok for parent in self._parents[node])
            if lost and self.settings.on_failure != "continue":
                reason = "a node that it waits for has no output"
                self._end_node(NodeResult(node, "skipped", reason=reason))
            else:
                ready.append(node)
        return sorted(ready)

    def _end_node(self, result: NodeResult, *, notify: bool = True) -> None:
        node = result.node
        self.state.nodes[node] = result
        if result.is_ok and result.output is not None:
            self.outputs[node] = result.output
        # A node with invalid arguments ends before its parents.
        before = max((self.ends.get(k, 0.0) for k in self._parents[node]), default=0.0)
        self.ends[node] = before + result.seconds
        if notify:
            self.emit("node", result=asdict(result))
        if self.settings.on_failure == "fail_fast" and result.status == "failed":
            self.state.reason = "failed"

    async def _replan(self) -> bool:
        """Request more nodes after failures if the settings allow it. Return True on success."""
        state, rest = self.state, self.executor.rest
        lost = {k for k, n in state.nodes.items() if not n.is_ok} - state.abandoned
        if rest is None or state.reason or not lost:
            return False
        if state.replans >= self.settings.max_replans:
            if state.replans:
                plans = pluralize(state.replans, "further plan")
                state.unplanned = f"{plans} made, as many as --max-replans permits"
            return False
        count, nodes, made = len(state.plan.nodes), tuple[Node, ...](), dict[int, PlannerCall]()

        def record(request: int, call: PlannerCall) -> None:
            made[request] = call
            self.emit("planning", request=request, call=calls_to_json((call,))[0])

        state.elapsed = self.now
        try:
            grown = await rest(state.execution(), self.budget, record)
            self.executor.check(grown)
            nodes = grown.nodes[count:]
            state.unplanned = "" if nodes else "the planner knows nothing more to do"
        except TutelageError as error:
            state.unplanned = str(error)
        finally:
            calls, given_up = tuple(made.values()), sorted(lost) if nodes else []
            state.add_nodes(nodes, given_up, calls)
            self._update_order()
            self.emit(
                "replan", nodes=nodes_to_json(nodes), abandoned=given_up, calls=calls_to_json(calls)
            )
        self._fail_invalid_nodes(count)
        return bool(nodes)


class _NodeRun:
    """Execution of one node with all of its attempts."""

    def __init__(self, run: _PlanRun, node: int) -> None:
        self.run, self.node, self.pool, executor = run, node, run.executor.pool, run.executor
        self.work = executor.make_subtask(
            run.state.plan,
            node,
            run.outputs,
            seeds=run.state.seeds.child("node", node),
        )
        self.legal = capable_workers(self.pool.workers, self.work)
        self.estimates = tuple(self.pool.estimate(w, self.work) for w in self.pool.workers)
        self.steps = list(run.earlier.get(node, ()))
        self.blocked = False
        """True if workers are available and only the budget prevents a request."""

    async def execute(self) -> NodeResult:
        """Execute the node. Only cancellation and errors that the user must fix are raised."""
        run = self.run
        try:
            last = self.steps[-1] if self.steps else None
            if last and last.verdict is None and last.answer and not last.answer.error:
                await self._verify(last, last.answer)  # not verified by an earlier process
                run.emit("step", step=last.to_json())
            while not (self.steps and self.steps[-1].passed):
                state = await self._make_route_state()
                if state is None:
                    return self._finish("failed", reason=self._failure_reason("no worker is left"))
                choice = state.add_mask(run.executor.router.choose(state))
                if choice.action == state.stop:
                    self._store_step(self._make_step("stop", choice))
                    words = "stopped by the router" if state.candidates else "no worker is left"
                    return self._finish("failed", reason=self._failure_reason(words))
                if choice.action == state.accept:
                    self._store_step(self._make_step("accept", choice))
                    return self._finish("accepted", self._find_answered_step())
                await self._call_worker(choice)
            return self._finish("succeeded", self.steps[-1])
        except TimeoutError as error:  # of a user's verifier, router or pool
            return self._finish("failed", reason=f"timeout: {error}")

    async def _make_route_state(self) -> RouteState | None:
        """Return the router state, waiting for budget if needed; None if no action is possible."""
        run, settings, budget = self.run, self.run.settings, self.run.budget
        names = {worker.name: i for i, worker in enumerate(self.pool.workers)}
        tried = tuple(
            names[step.worker]
            for step in self.steps
            if step.worker in names and step.answer is not None and not _is_cancelled(step.answer)
        )
        open_to = [
            can and len(tried) < settings.max_tries and worker not in tried
            for worker, can in enumerate(self.legal)
        ]
        judged = run.executor.verifiers.bound(self.work)
        while True:
            fits = [
                can and budget.fits(estimate.bound + judged)
                for can, estimate in zip(open_to, self.estimates, strict=True)
            ]
            if any(fits) or not any(open_to) or budget.open == 0:
                break
            await budget.wait_for_change()  # other tries may release reservations
        self.blocked, answered = any(open_to) and not any(fits), self._find_answered_step()
        if not any(fits) and answered is None:
            return None
        return RouteState(
            plan=run.state.plan,
            work=self.work,
            workers=self.pool.workers,
            mask=(*fits, answered is not None, True),
            estimates=self.estimates,
            tries=tried,
            load=tuple(run.executor.load),
            done={k: ended.is_ok for k, ended in run.state.nodes.items()},
            ends=dict(run.ends),
            spent=budget.spent,
            budget_left=budget.remaining,
            elapsed=run.now,
            deadline_left=run.deadline_left,
            max_tries=settings.max_tries,
            seeds=self.work.seeds.child("route", len(self.steps)),
        )

    async def _call_worker(self, choice: Choice) -> None:
        """Send a request to the chosen worker, retry transient errors, and verify the answer."""
        run, settings, place = self.run, self.run.settings, choice.action
        worker, bound = self.pool.workers[place], self.estimates[place].bound
        step = self._make_step("worker", choice, worker.name)
        self._emit("dispatch", step, begun=step.to_json())
        run.budget.reserve(bound)  # fits, according to the mask
        run.executor.load[place] += 1
        try:
            answer = await self._send_request(step, worker, bound)
            for retry in range(settings.retries):
                error = answer.error
                if error is None or not error.transient:
                    break
                pause = error.retry_after
                if pause is None:
                    draw = self.work.seeds.child("pause", len(self.steps), retry).python().random()
                    pause = settings.backoff * 2.0**retry * (0.5 + draw)
                await asyncio.sleep(min(max(0.0, pause), BACKOFF_MAX))
                if not run.budget.reserve(bound):
                    break
                answer = await self._send_request(step, worker, bound)
            await self._verify(step, answer)
        finally:
            run.executor.load[place] -= 1
            step.ended = run.now
            self._store_step(step)

    async def _send_request(self, step: NodeStep, worker: Worker, bound: float) -> WorkerAnswer:
        """Send one request with a reserved cost bound, and settle the reservation in every case."""
        run, place, loop = self.run, step.choice.action, asyncio.get_running_loop()
        limit, pool = run.settings.try_timeout, self.pool
        number = sum(len(before.requests) for before in (*self.steps, step))
        work = replace(self.work, attempt=number)
        # Arguments of a call with side effects, else None.
        given = pool.get_guarded_args(worker, work) if isinstance(pool, ToolPool) else None
        entered, begun = loop.time(), cast("float | None", None)
        answer: WorkerAnswer | None = None
        error = WorkerError("cancelled", "the request was given up")
        try:
            if given is not None and (answer := await self._check_permission(worker, given)):
                begun = loop.time()
                return answer
            own, every = run.executor.get_slots(place)
            async with own, every:
                begun = loop.time()
                arguments = {} if given is None else {"arguments": given}
                self._emit("request", step, worker=step.worker, bound=bound, **arguments)
                async with asyncio.timeout(limit):
                    answer = await pool.execute(worker, work)
        except TimeoutError as late:
            if begun is None:
                raise
            words = str(late) or f"no answer within {limit or 0:g} s (--try-timeout)"
            error = WorkerError("timeout", words)
        finally:
            step.queued += (loop.time() if begun is None else begun) - entered
            if answer is None and begun is not None:
                if given is not None:
                    error = replace(error, message=error.message + LATE)
                answer = WorkerAnswer(
                    cost=bound,
                    seconds=loop.time() - begun,
                    error=error,
                    mock=pool.mock,
                    estimated=True,
                    arguments=given,
                )
            run.budget.settle(bound, 0.0 if answer is None else answer.cost)
            if answer is not None:
                step.requests += (answer,)
                self._emit("answer", step, worker=step.worker, answer=answer.to_json())
        assert answer is not None
        return answer

    async def _check_permission(self, worker: Worker, args: str) -> WorkerAnswer | None:
        """Return the answer for a tool call with side effects that must not run, because permission
        was refused or the user reports that it already ran; None if the call may run. The waiting
        time counts as queueing time. After a refusal, the user is not asked again about equal
        calls."""
        run, pool, known = self.run, cast("ToolPool", self.pool), self.run.refusals
        call, doubt = call_key(worker.name, args, pool.tools), cast("Doubt", "")
        async with run.asking:
            if not (said := known.get(call, "")):
                # The call may have run already, or was planned after tool results were read.
                late = [s for s in run.state.steps.values() if s.answer and _is_cut_off(s.answer)]
                if any(s.answer is not None and _is_cancelled(s.answer) for s in self.steps):
                    doubt = "again"
                elif any(run.get_call_key(step) == call for step in late):
                    doubt = "late"
                elif self.node >= run.state.planned:
                    doubt = "replanned"
                said = await pool.permit(worker, args, doubt)
            if isinstance(said, WorkerAnswer):
                return replace(said, arguments=args)
            if said:
                known[call] = said
        return WorkerAnswer(error=WorkerError("refused", said), arguments=args) if said else None

    async def _verify(self, step: NodeStep, answer: WorkerAnswer) -> None:
        """Set the verdict of the step. A paid verification must fit the budget."""
        run, verifiers = self.run, self.run.executor.verifiers
        bound = verifiers.bound(self.work, answer)
        if bound and not run.budget.reserve(bound):
            message = f"no verdict: it may cost {bound:.6f} USD, and the budget has less left"
            step.verdict = Verification(False, message, checked=False)
            return
        if bound:
            self._emit("verify", step, bound=bound)
            step.verdict = Verification(False, "the check was given up", checked=False, cost=bound)
        try:
            step.verdict = await verifiers.check(self.work, answer)
        except RewardError as error:
            step.verdict = Verification(False, f"no verdict: {error}", cost=bound)
        finally:
            if bound:
                run.budget.settle(bound, 0.0 if step.verdict is None else step.verdict.cost)

    def _emit(self, event: str, step: NodeStep, **fields: Any) -> None:
        self.run.emit(event, step=step.index, node=self.node, **fields)

    def _make_step(self, action: Action, choice: Choice, worker: str | None = None) -> NodeStep:
        now, index, number = self.run.now, self.run.dispatched, len(self.steps)
        self.run.dispatched += 1
        return NodeStep(index, self.node, number, action, worker, choice, started=now, ended=now)

    def _store_step(self, step: NodeStep) -> None:
        self.steps.append(step)
        self.run.state.steps[step.index] = step
        self.run.emit("step", step=step.to_json())

    def _find_answered_step(self) -> NodeStep | None:
        """Return the last step whose answer has no error, or None."""
        usable = (s for s in self.steps[::-1] if s.answer is not None and s.answer.error is None)
        return next(usable, None)

    def _failure_reason(self, reason: str) -> str:
        """Return the failure reason with the last verdict, or `budget` if only the budget prevents
        another attempt."""
        if self.blocked:
            return "budget"
        reasons = [step.verdict.reason for step in self.steps if step.verdict is not None]
        # A tool is the only capable worker of its node.
        legal = zip(self.pool.workers, self.legal, strict=True)
        alone = any(can and worker.tool for worker, can in legal)
        return reasons[-1] if reasons and alone else ": ".join([reason, *reasons[-1:]])

    def _finish(
        self, status: NodeStatus, step: NodeStep | None = None, reason: str = ""
    ) -> NodeResult:
        answer = None if step is None else step.answer
        return NodeResult(
            self.node,
            status,
            output=answer and answer.output,
            worker=step and step.worker,
            reason=reason,
            seconds=sum(s.seconds for s in self.steps),
            checked=step is None or step.verdict is None or step.verdict.checked,
            correct=answer and answer.correct,
        )


def _is_cut_off(answer: WorkerAnswer) -> bool:
    """Return True if the executor stopped waiting for the request before it ended."""
    error = answer.error
    return error is not None and (
        error.kind in ("timeout", "cancelled") or error.message.endswith(LATE)
    )


def _is_cancelled(answer: WorkerAnswer) -> bool:
    """Return True if the request was cancelled, so that the worker may be tried again."""
    return answer.error is not None and answer.error.kind == "cancelled"
