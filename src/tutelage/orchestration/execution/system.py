"""`OrchestrationSystem`: an instruction goes in, a plan is made and executed, a result comes out.

It joins what the other modules do: a planner, a pool of workers with a router and verifiers, a
budget, the record that survives a kill, the execution log that training data is made of, and a
recorder for the store that `tutelage show` reads. `execute` is for ordinary code, `aexecute` for
code that runs in an event loop, where any number may run at once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Protocol, TypedDict, Unpack, cast

from tutelage.errors import ConfigError, check_given
from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.executor import Executor, ExecutorSettings
from tutelage.orchestration.execution.pools.simulated import SimulatedPool
from tutelage.orchestration.execution.pools.tools import ToolPool
from tutelage.orchestration.execution.record import (
    PLANNING,
    Execution,
    ExecutionJournal,
    Observer,
)
from tutelage.orchestration.execution.stored import ExecutionLogger
from tutelage.orchestration.execution.verifiers import Verifiers
from tutelage.orchestration.execution.virtual_time import run_virtual
from tutelage.orchestration.execution.worker_files import classic
from tutelage.orchestration.execution.workers import WorkerPool
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import LatePlanError, Plan, PlannerCall
from tutelage.orchestration.routing.contract import Router, cheapest
from tutelage.seeds import SeedTree
from tutelage.store import Store
from tutelage.types import Sampling


class _Planner(Protocol):
    """Makes a plan of an instruction."""

    def plan(self, instruction: str) -> Plan:
        """The plan. Raises `DataError` when it cannot be one."""
        ...


PlannerLike = _Planner | Callable[[str], Plan]


class _Options(TypedDict, total=False):
    """Of an execution; see `OrchestrationSystem.aexecute`."""

    plan: Plan | None
    budget: float | Budget | None
    name: str | int | None
    observers: Sequence[Observer]
    journal: str | Path | Store | None


Recorder = Callable[[Execution, Sampling, float, float], None]
"""Gets each execution as it has ended, how its workers sample, when it began in seconds since 1970,
and how many of them planning took; see `stored.py`."""


def execution_seeds(seed: int, name: str | int) -> SeedTree:
    """Where the draws and identifiers of an execution of this name come from."""
    return SeedTree(seed).child("orchestration").child(name)


async def planned_within(deadline: float | None, made: Awaitable[Plan]) -> Plan:
    """Return a plan, made within the deadline of its execution. Raises `LatePlanError`."""
    try:
        async with asyncio.timeout(deadline):
            return await made
    except TimeoutError as error:
        message = f"the deadline of {deadline or 0:g} s passed while the plan was made"
        raise LatePlanError(message) from error


class OrchestrationSystem:
    """Plans instructions and executes the plans."""

    def __init__(
        self,
        planner: PlannerLike | None = None,
        pool: WorkerPool | None = None,
        router: Router | None = None,
        *,
        verifiers: Verifiers | None = None,
        settings: ExecutorSettings | None = None,
        catalog: Catalog | None = None,
        seed: int = 0,
        execution_logger: ExecutionLogger | None = None,
        recorder: Recorder | None = None,
        realtime: bool = False,
        min_confidence: float | None = None,
    ) -> None:
        """Without a planner: the embedded one over the catalog; without a pool: the simulated
        workers of the preset `classic`; without a router: the cheapest worker first, then the next.

        `realtime` makes `execute` wait as long as mock workers would; otherwise their clock jumps.
        `min_confidence` is the least confidence that a trained planner plans at, by default its
        own; 0 takes any guess.
        """
        self.planner = planner
        self.pool: WorkerPool = SimulatedPool(classic()) if pool is None else pool
        self.executor = Executor(
            self.pool,
            cheapest() if router is None else router,
            verifiers=verifiers,
            settings=settings,
            catalog=catalog,
            rest=getattr(planner, "rest", None),
        )
        self.execution_logger, self.recorder = execution_logger, recorder
        self._realtime, self._seed, self._min_confidence = realtime, seed, min_confidence
        self._count = 0

    def execute(self, instruction: str, **options: Unpack[_Options]) -> Execution:
        """Plan and run one instruction; see `aexecute` for the options and errors."""
        with suppress(RuntimeError):  # there is none
            asyncio.get_running_loop()
            raise ConfigError("execute() was called in an event loop; use await aexecute() there")

        async def run() -> Execution:
            try:
                return await self.aexecute(instruction, **options)
            finally:
                await self.pool.close()

        # A planner that waits for a server waits in real time.
        real = self._realtime or hasattr(self.planner, "aplan")
        return run_virtual(run(), jumps=self.pool.mock and not real)

    async def aexecute(
        self,
        instruction: str,
        *,
        plan: Plan | None = None,
        budget: float | Budget | None = None,
        name: str | int | None = None,
        observers: Sequence[Observer] = (),
        journal: str | Path | Store | None = None,
        judge: Callable[[Execution], Execution] | None = None,
    ) -> Execution:
        """Plan and run one instruction.

        `plan` takes the planner's place, `budget` is in USD, or a `Budget` that several share,
        `name` addresses the draws (a count otherwise), `journal` is the store of a run, or a file,
        whose events survive a kill: call again with the same arguments and what had ended is not
        run again; `judge` makes of an execution what is kept of it, where the caller knows more
        than its verifiers. Raises what `Executor.run` raises, and what the planner does:
        `NoPlanError` where it declines, `LatePlanError` where the deadline passes meanwhile.
        """
        number, self._count = self._count, self._count + 1
        seeds = execution_seeds(self._seed, number if name is None else name)
        began, money = time.time(), budget if isinstance(budget, Budget) else Budget(budget)
        planned = await self._planned(instruction, money) if plan is None else plan
        check_given("the plan", planned, Plan, "a Plan(instruction, (Node(tool), ...))")
        planning = time.time() - began if plan is None else plan.seconds
        if plan is not None:
            began -= planning
        run_id = getattr(self.recorder, "run_id", "") if isinstance(journal, Store) else ""
        opened = ExecutionJournal(journal, planned, seeds, run_id) if journal else nullcontext()
        with opened as log:
            result = await self.executor.run(
                planned, seeds=seeds, budget=money, observers=observers, journal=log
            )
        if judge is not None:
            result = judge(result)
        if self.execution_logger is not None:
            self.execution_logger.log_execution(
                instruction=instruction, planner_outputs=result.plan, execution_result=result
            )
        if self.recorder is not None:
            sampling = Sampling(0.0, max_tokens=self.executor.settings.max_tokens)
            self.recorder(result, sampling, began, planning)
        return result

    def check(self, plan: Plan, budget: float | None = None, *, begun: bool = False) -> None:
        """Refuse a plan that `execute` would refuse, before it spends anything. One that has
        `begun`, and goes on from its record, is not refused for its arguments."""
        self.executor.check(plan, Budget(budget), begun=begun)

    async def _planned(self, instruction: str, budget: Budget) -> Plan:
        make = getattr(self.planner, "aplan", None)  # of planners that wait for a server
        if make is None or not instruction.strip():
            return self.plan(instruction)
        requests = dict[int, PlannerCall]()
        watched = PLANNING.set(requests.__setitem__)
        try:
            made = cast("Callable[[str, Budget], Awaitable[Plan]]", make)(instruction, budget)
            return await planned_within(self.executor.settings.deadline, made)
        except BaseException:
            budget.spent += math.fsum(call.cost for call in requests.values())  # nobody else does
            raise
        finally:
            PLANNING.reset(watched)

    def plan(self, instruction: str) -> Plan:
        """The planner's plan; that of the embedded one without a planner. Raises `NoPlanError`
        where it declines."""
        if not instruction.strip():
            raise ConfigError("the instruction is empty; say what is to be done")
        if self.planner is None:
            if isinstance(self.pool, ToolPool):
                raise ConfigError(
                    "tools of your own need a language model that plans: give "
                    "OrchestrationSystem(LLMPlanner(...), pool), or execute(..., plan=...)"
                )
            from tutelage.orchestration.planner import check_torch

            check_torch()
            from tutelage.orchestration.planner.saving import shipped_planner

            self.planner = shipped_planner(self.executor.catalog)
        make = getattr(self.planner, "plan", self.planner)
        bound = {} if self._min_confidence is None else {"min_confidence": self._min_confidence}
        return cast("Callable[..., Plan]", make)(instruction, **bound)
