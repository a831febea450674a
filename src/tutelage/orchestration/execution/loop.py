"""The execution of one plan, on one page: nodes, what a router chooses for each, what comes of it.

    plan ─▶ ready nodes ─▶ route ─▶ ask a worker ─▶ verify ─▶ step ─▶ node ends ─▶ ready nodes

A plan that nobody can execute is refused before anything is spent; nothing is raised for what
workers do. A node starts when those that it waits for have ended, whatever others do. Before every
try the router is asked once, and what it chooses runs; an answer that its verifier does not pass
goes back to the router, which tries another worker, accepts or stops. Where nodes failed, a planner
that can gives further ones, which run in the same way and within the same budget. What is reserved,
timed, told and written down at each of these is done by `plan_run.py` and `node_run.py`. Time comes
from the running loop, so `virtual_time.py` runs a plan without waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.context import ExecutionContext, NodeHint
from tutelage.orchestration.execution.journal import ExecutionJournal, Observer
from tutelage.orchestration.execution.node_run import NodeRun
from tutelage.orchestration.execution.plan_run import PlanRun
from tutelage.orchestration.execution.record import Execution, NodeResult
from tutelage.orchestration.plan.dag import Plan
from tutelage.orchestration.routing.contract import Choice
from tutelage.seeds import SeedTree


class Executor(ExecutionContext):
    """A workplace that executes plans; any number at once share its places."""

    async def run(
        self,
        plan: Plan,
        *,
        seeds: SeedTree,
        budget: Budget | None = None,
        hints: Mapping[int, NodeHint] | None = None,
        observers: Sequence[Observer] = (),
        journal: ExecutionJournal | None = None,
    ) -> Execution:
        """Execute one plan. All draws come from `seeds`, which also gives the identifier.

        What `journal` says was done is not done again, and what happens is written there. Raises
        `ConfigError` before anything is spent when a node has no legal worker, or an enforced
        budget buys no first step, `DataError` for a tool that the catalog lacks, and
        `asyncio.CancelledError` after all running requests have been ended and written down.
        """
        run = PlanRun(self, plan, seeds, budget or Budget(), hints or {}, observers, journal)
        run.begin()
        async with run.under_way():
            await run.admitted()
            while not run.over or await run.replan():
                for node in run.ready():
                    run.start(node, _execute_node(run, node))
                await run.end_first()
        return run.conclude()

    def check(
        self,
        plan: Plan,
        budget: Budget | None = None,
        hints: Mapping[int, NodeHint] | None = None,
        *,
        begun: bool = False,
    ) -> None:
        """Refuse what `run` would refuse before anything is spent, with the same errors; a run that
        has `begun` is not refused for its arguments."""
        run = PlanRun(self, plan, SeedTree(0), budget or Budget(), hints or {}, (), None)
        run.check(begun=begun)


async def _execute_node(run: PlanRun, index: int) -> NodeResult:
    """Execute one node; raises only what a user must fix, and cancellation."""
    node = NodeRun(run, index)
    async with node.under_way():
        await node.judge_restored()
        while state := await node.choices():
            choice = state.checked(run.place.router.choose(state))
            if choice.action == state.stop:
                node.stop(choice, state)
            elif choice.action == state.accept:
                node.accept(choice)
            else:
                await _ask_worker(node, choice)
    return node.result


async def _ask_worker(node: NodeRun, choice: Choice) -> None:
    """Ask the chosen worker, again while its server is busy, and verify what it answers."""
    with node.dispatched(choice) as step:
        answer = await node.request(step)
        while await node.asks_again(step, answer):
            answer = await node.request(step)
        await node.verify(step, answer)
