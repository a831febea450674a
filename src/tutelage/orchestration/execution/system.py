"""`OrchestrationSystem`: plans an instruction, executes the plan and returns the result.

It combines a planner, a pool of workers with a router and verifiers, a budget, the journal for
resuming after a kill, the execution log used for training data, and a recorder for the store that
`tutelage show` reads. `execute` is for synchronous code and `aexecute` for code in an event loop;
`aexecute` can be called concurrently.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, cast

from tutelage.errors import ConfigError
from tutelage.orchestration.arguments import check_type
from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.executor import Executor, ExecutorSettings
from tutelage.orchestration.execution.pools.simulated import SimulatedPool
from tutelage.orchestration.execution.pools.tools import ToolPool
from tutelage.orchestration.execution.record import Execution, ExecutionJournal, Observer
from tutelage.orchestration.execution.stored import ExecutionLogger
from tutelage.orchestration.execution.verifiers import Verifiers
from tutelage.orchestration.execution.virtual_time import run_virtual
from tutelage.orchestration.execution.worker_files import classic
from tutelage.orchestration.execution.workers import WorkerPool
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import NoPlanError, Plan
from tutelage.orchestration.routing.contract import Router, cheapest_router
from tutelage.seeds import SeedTree
from tutelage.store import Store
from tutelage.types import Sampling

Recorder = Callable[[Execution, Sampling, float, float], None]
"""Called with each finished execution, the sampling settings of its workers, its start time in
seconds since 1970, and the seconds of planning before it; see `stored.py`."""


def execution_seeds(seed: int, name: str | int) -> SeedTree:
    """Return the seed tree for the random draws and identifiers of the named execution."""
    return SeedTree(seed).child("orchestration").child(name)


async def wait_for_plan(deadline: float | None, plan: Awaitable[Plan]) -> Plan:
    """Wait for a plan for at most `deadline` seconds. Raises `NoPlanError` after the deadline."""
    try:
        async with asyncio.timeout(deadline):
            return await plan
    except TimeoutError as error:
        late = NoPlanError(f"the deadline of {deadline or 0:g} s passed during planning")
        late.exit_code = 1
        raise late from error


class OrchestrationSystem:
    """Creates plans for instructions and executes the plans."""

    def __init__(
        self,
        planner: Any = None,
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
        """Create a system. `planner` is a function from an instruction to a `Plan`, or an object
        with such a method `plan`. Defaults: the built-in planner for the catalog, the simulated
        workers of the preset `classic`, and a router that tries the cheapest worker first.

        If `realtime` is true, `execute` waits for the simulated latencies of mock workers;
        otherwise it uses a virtual clock. `min_confidence` is the minimum confidence at which a
        trained planner returns a plan; None uses the planner's own minimum, 0 accepts every plan.
        """
        self.planner = planner
        self.pool: WorkerPool = SimulatedPool(classic()) if pool is None else pool
        self.executor = Executor(
            self.pool,
            cheapest_router() if router is None else router,
            verifiers=verifiers,
            settings=settings,
            catalog=catalog,
            rest=getattr(planner, "rest", None),
        )
        self.execution_logger, self.recorder = execution_logger, recorder
        self._realtime, self._seed, self._min_confidence = realtime, seed, min_confidence
        self._count = 0

    def execute(self, instruction: str, **options: Any) -> Execution:
        """Plan and execute an instruction; see `aexecute` for the options and errors."""
        with suppress(RuntimeError):  # no running loop
            asyncio.get_running_loop()
            raise ConfigError("execute() was called in an event loop; use await aexecute() there")

        async def run() -> Execution:
            try:
                return await self.aexecute(instruction, **options)
            finally:
                await self.pool.close()

        # A planner that calls a server needs real time.
        real = self._realtime or hasattr(self.planner, "aplan")
        return run_virtual(run(), virtual=self.pool.mock and not real)

    async def aexecute(
        self,
        instruction: str,
        *,
        plan: Plan | None = None,
        budget: float | Budget | None = None,
        name: str | int | None = None,
        observers: Sequence[Observer] = (),
        journal: str | Path | Store | None = None,
    ) -> Execution:
        """Plan and execute an instruction.

        `plan` replaces the planner. `budget` is in USD, or a `Budget` that several executions
        share. `name` selects the random seeds (default: a counter). `journal` is the store of a
        run, or a file; its events survive a kill, and a second call with the same arguments does
        not repeat finished work. Raises the errors of `Executor.run` and of the planner:
        `NoPlanError` if it declines or the deadline passes during planning.
        """
        number, self._count = self._count, self._count + 1
        seeds = execution_seeds(self._seed, number if name is None else name)
        began, money = time.time(), budget if isinstance(budget, Budget) else Budget(budget)
        planned = await self._make_plan(instruction, money) if plan is None else plan
        check_type("the plan", planned, Plan, "a Plan(instruction, (Node(tool), ...))")
        planning = time.time() - began if plan is None else plan.seconds
        if plan is not None:
            began -= planning
        run_id = getattr(self.recorder, "run_id", "") if isinstance(journal, Store) else ""
        opened = ExecutionJournal(journal, planned, seeds, run_id) if journal else nullcontext()
        with opened as log:
            result = await self.executor.run(
                planned, seeds=seeds, budget=money, observers=observers, journal=log
            )
        if self.execution_logger is not None:
            self.execution_logger.log_execution(
                instruction=instruction, planner_outputs=result.plan, execution_result=result
            )
        if self.recorder is not None:
            sampling = Sampling(0.0, max_tokens=self.executor.settings.max_tokens)
            self.recorder(result, sampling, began, planning)
        return result

    def check(self, plan: Plan, budget: float | None = None, *, started: bool = False) -> None:
        """Raise the errors that `execute` would raise for this plan before any cost. The arguments
        are not checked if the execution was started before and is resumed from its journal."""
        self.executor.check(plan, Budget(budget), started=started)

    async def _make_plan(self, instruction: str, budget: Budget) -> Plan:
        make = getattr(self.planner, "aplan", None)  # for planners that call a server
        if make is None or not instruction.strip():
            return self.plan(instruction)
        made = cast("Callable[[str, Budget], Awaitable[Plan]]", make)(instruction, budget)
        plan = await wait_for_plan(self.executor.settings.deadline, made)
        budget.spent -= plan.cost  # the executor counts it
        return plan

    def plan(self, instruction: str) -> Plan:
        """Create a plan with the planner, or with the built-in planner by default. Raises
        `NoPlanError` if the planner declines."""
        if not instruction.strip():
            raise ConfigError("the instruction is empty; describe the task")
        if self.planner is None:
            if isinstance(self.pool, ToolPool):
                raise ConfigError(
                    "custom tools need a language model as planner: pass "
                    "OrchestrationSystem(LLMPlanner(...), pool), or execute(..., plan=...)"
                )
            from tutelage.orchestration.planner import check_torch

            check_torch()
            from tutelage.orchestration.planner.saving import builtin_planner

            self.planner = builtin_planner(self.executor.catalog)
        make = getattr(self.planner, "plan", self.planner)
        bound = {} if self._min_confidence is None else {"min_confidence": self._min_confidence}
        return cast("Callable[..., Plan]", make)(instruction, **bound)
