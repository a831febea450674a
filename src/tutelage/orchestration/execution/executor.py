"""`Executor`: runs plans with one pool and one router; any number at once share its places.

A plan that nobody can execute is refused before anything is spent; nothing is raised for what
workers do. Time comes from the running loop, so `virtual_time.py` runs a plan without waiting.
`loop.py` is how a plan is executed, `record.py` has what comes of it, `journal.py` the log that
survives `kill -9`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.loop import execute_plan
from tutelage.orchestration.execution.plan_run import Observer, PlanRun, Restored
from tutelage.orchestration.execution.record import Execution
from tutelage.orchestration.execution.workplace import Hint, Workplace
from tutelage.orchestration.plan.dag import Plan
from tutelage.seeds import SeedTree


class Executor(Workplace):
    """A workplace that executes plans."""

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
        return await execute_plan(run, restored or Restored())

    def check(self, plan: Plan, budget: Budget | None = None) -> None:
        """Refuse what `run` would refuse before anything is spent, with the same errors."""
        PlanRun(self, plan, SeedTree(0), budget or Budget(), {}, ()).check()
