"""A workflow of the environment as a plan for the real executor, with the same verifier.

The environment is a fast copy of what the executor does on recorded outcomes. Here a workflow is
turned back into a `Plan` whose nodes name their rows, so both can run it and be compared decision
by decision. `pools/replay.py` answers.
"""

from __future__ import annotations

import re

from tutelage.errors import ConfigError
from tutelage.orchestration.data.outcomes import OutcomeTable
from tutelage.orchestration.evaluation.rewards import ExecutionResult
from tutelage.orchestration.execution.executor import ExecutorSettings
from tutelage.orchestration.execution.workers import Subtask, Verification, WorkerAnswer
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.orchestration.routing.predictor import PASSES_RIGHT, PASSES_WRONG
from tutelage.orchestration.routing.simulator import Scenario, WorkflowBatch, WorkflowSimulator

_REPLAYED = re.compile(r"\[replayed (?P<row>.+) by (?P<worker>.+): (?:right|wrong)\]")


class RecordedVerifier:
    """Errs at stated rates, on the same answers every time: the draws are the table's."""

    def __init__(self, table: OutcomeTable) -> None:
        self._table = table
        self._rows = {name: i for i, name in enumerate(table.ids)}
        self._columns = {name: j for j, name in enumerate(table.names)}

    async def check(self, work: Subtask, answer: WorkerAnswer) -> Verification:
        """See `Verifier`. Raises `ConfigError` for an answer that is not of a replay pool."""
        found = _REPLAYED.fullmatch(answer.output)
        if found is None or found["row"] not in self._rows or answer.correct is None:
            raise ConfigError(
                f"node {work.node}: {answer.output!r:.80} is no replayed outcome of this table; "
                "this verifier goes with ReplayPool"
            )
        draw = self._table.draws_QW[self._rows[found["row"]], self._columns[found["worker"]]]
        share = PASSES_RIGHT if answer.correct else PASSES_WRONG
        passed = bool(draw < share)
        return Verification(passed, "looks right" if passed else "looks wrong")


def as_plan(
    table: OutcomeTable, flows: WorkflowBatch, b: int
) -> tuple[Plan, dict[tuple[str, int], int]]:
    """Workflow `b` as a plan, and the rows that its nodes stand for, as `ReplayPool` takes them."""
    rows = [int(q) for q in flows.query_BN[b] if q >= 0]
    nodes = tuple(
        Node(
            tool=table.types[row],
            after=tuple(i for i in range(len(rows)) if flows.parents_BNN[b, i, j]),
            description=table.instructions[row],
        )
        for j, row in enumerate(rows)
    )
    plan = Plan(f"workflow {b}", nodes)
    return plan, {(plan.instruction, j): row for j, row in enumerate(rows)}


def as_settings(scenario: Scenario, flows: WorkflowBatch, b: int) -> ExecutorSettings:
    """How the executor has to run it to keep the environment's rules."""
    deadline = float(flows.deadline_B[b])
    return ExecutorSettings(
        max_tries=scenario.max_tries,
        retries=0,
        try_timeout=None,
        deadline=deadline if deadline != float("inf") else None,
        on_failure="fail_fast",
    )


def result_of(simulator: WorkflowSimulator, b: int) -> ExecutionResult:
    """Workflow `b` of a simulation that is over, as rewards read it."""
    kept = (simulator.kept_BN[b] >= 0) & simulator.exists_BN[b]
    return ExecutionResult(
        bool(simulator.success_B[b]),
        {str(k): "kept" for k in range(int(kept.sum()))},
        float(simulator.cost_B[b]),
        1000.0 * float(simulator.now_B[b]),
        float(simulator.passed_BN[b].sum() / simulator.size_B[b]),
    )
