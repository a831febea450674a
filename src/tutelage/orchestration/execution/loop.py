"""The execution of one plan, on one page: nodes, what a router chooses for each, what comes of it.

    plan ─▶ ready nodes ─▶ route ─▶ ask a worker ─▶ verify ─▶ step ─▶ node ends ─▶ ready nodes

A node starts when those that it waits for have ended, whatever others do. Before every try the
router is asked once, and what it chooses runs; an answer that its verifier does not pass goes back
to the router, which tries another worker, accepts or stops. What is reserved, timed, told and
written down at each of these is done by `plan_run.py` and `node_run.py`.
"""

from __future__ import annotations

from tutelage.orchestration.execution.node_run import NodeRun
from tutelage.orchestration.execution.plan_run import PlanRun, Restored
from tutelage.orchestration.execution.record import Execution, NodeResult
from tutelage.orchestration.routing.contract import Choice, check_choice


async def execute_plan(run: PlanRun, restored: Restored) -> Execution:
    """Execute a plan from where an earlier process left it."""
    run.begin(restored)
    async with run.under_way():
        while not run.over:
            for node in run.ready():
                run.start(node, execute_node(run, node))
            await run.end_first()
    return run.conclude()


async def execute_node(run: PlanRun, index: int) -> NodeResult:
    """Execute one node; raises only what a user must mend, and cancellation."""
    node = NodeRun(run, index)
    async with node.under_way():
        while state := await node.choices():
            choice = check_choice(state, run.place.router.choose(state))
            if choice.action == state.stop:
                node.stop(choice, state)
            elif choice.action == state.accept:
                node.accept(choice)
            else:
                await ask_worker(node, choice)
    return node.result


async def ask_worker(node: NodeRun, choice: Choice) -> None:
    """Ask the chosen worker, again while its server is busy, and verify what it answers."""
    with node.dispatched(choice) as step:
        answer = await node.request(step)
        while await node.asks_again(step, answer):
            answer = await node.request(step)
        await node.verify(step, answer)
