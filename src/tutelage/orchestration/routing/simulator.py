"""Workflows on recorded outcomes, thousands side by side: what an action does, and what it earns.

It follows the executor's rules exactly. A node can be decided when its parents have ended; a try
takes the recorded time and costs the recorded sum; an answer that its verifier passes ends the
node, one that it rejects comes back for a decision: another worker, accept, or stop, which fails
the workflow at once. Budgets are enforced, a deadline ends what runs. Decisions are taken in the
order of time, ties by the node's number. The reward of a decision is the change that it makes to
the reward of the workflow so far, so the rewards of a workflow add up to `compute_reward` of its
result; success means that every kept answer is right, whatever the verifier said.

`lookahead.py` has the state of running workflows; `choosers.py` says who decides.
`tests/orchestration` holds this against the executor, action by action. Legend: B workflows, N
nodes, W workers, D decisions, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tutelage.orchestration.data.outcomes import Floats
from tutelage.orchestration.evaluation.rewards import ExecutionResult
from tutelage.orchestration.routing.decisions import DecisionBatch, RewardTerms
from tutelage.orchestration.routing.lookahead import DONE, READY, RUNNING, WAITING, WorkflowState
from tutelage.orchestration.routing.workflows import Bools, Ints, QueryTable, WorkflowBatch

TRUTHS = 12
"""Numbers that `WorkflowSimulator.truth` says of a decision."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of a batch of workflows, with every decision."""

    success_B: Bools
    """Every kept answer is right."""
    cost_B: Floats
    latency_B: Floats
    """Seconds."""
    verified_B: Floats
    """Share of nodes that a verifier passed."""
    outputs_B: Ints
    steps_B: Ints
    """Decisions."""
    reward_B: Floats
    stopped_B: Bools
    late_B: Bools
    row_D: Ints
    """The workflow of each decision, in the order in which they were taken."""
    node_D: Ints
    query_D: Ints
    """The row of the table behind the node."""
    action_D: Ints

    def result(self, b: int) -> ExecutionResult:
        """One of them, as rewards read it."""
        return ExecutionResult(
            bool(self.success_B[b]),
            {str(k): "kept" for k in range(int(self.outputs_B[b]))},
            float(self.cost_B[b]),
            1000.0 * float(self.latency_B[b]),
            float(self.verified_B[b]),
        )


class WorkflowSimulator(WorkflowState):
    """A running batch. `rows` are the workflows that wait for a decision; `step` takes them."""

    def __init__(self, query_table: QueryTable, flows: WorkflowBatch, terms: RewardTerms) -> None:
        super().__init__(query_table, flows, terms)
        self.query_table = query_table
        count, _ = shape = flows.query_BN.shape
        self._due_BN = np.full(shape, np.inf)
        self._worker_BN = np.full(shape, -1)
        self._tried_BNW = np.zeros((*shape, query_table.workers), dtype=np.bool_)
        self._last_BN = np.full(shape, -1)
        self._kept_BN = np.full(shape, -1)
        self._passed_BN = np.zeros(shape, dtype=np.bool_)
        self._spent_B = np.zeros(count)
        """With what runs: its cost is owed from the start."""
        self._unused_BN = np.zeros(shape)
        """What is reserved for a try beyond its cost, until it ends."""
        self._steps_B = np.zeros(count, dtype=np.int64)
        self._over_B, self._success_B, self._stopped_B, self._late_B = np.zeros(
            (4, count), np.bool_
        )
        self._now_B = np.zeros(count)
        self.node_B = np.zeros(count, dtype=np.int64)
        """The node that each workflow decides about."""
        self._taken: list[tuple[Ints, Ints, Ints, Ints]] = []
        roots_BN = self.exists_BN & ~flows.parents_BNN.any(axis=1)
        self.status_BN[roots_BN] = READY
        self._due_BN[roots_BN] = 0.0
        self._advance(np.arange(count))
        self._so_far_B = self._running_reward()
        self._reward_B = self._so_far_B.copy()

    # Running

    @property
    def rows(self) -> Ints:
        """The workflows that wait for a decision, in order."""
        return np.flatnonzero(~self._over_B)

    def queries(self, rows: Ints) -> Ints:
        """The row of the table behind each of these decisions."""
        return self.query_BN[rows, self.node_B[rows]]

    def tried(self, rows: Ints) -> Bools:
        """Which workers were tried and rejected at the node under decision, [D, W]."""
        return self._tried_BNW[rows, self.node_B[rows]]

    def last(self, rows: Ints) -> Ints:
        """The worker of the last answer at the node under decision; -1 if there is none."""
        return self._last_BN[rows, self.node_B[rows]]

    def step(self, rows: Ints, actions: Ints, ahead_chance_DW: Floats) -> Floats:
        """Take one action in each of `rows` (from `rows` of now); returns their rewards.

        `ahead_chance_DW` are the chances that the situation showed: what is remembered of a node.
        """
        workers = self.query_table.workers
        self._taken.append((rows, self.node_B[rows], self.queries(rows), actions))
        self._steps_B[rows] += 1
        ask, accept, stop = actions < workers, actions == workers, actions == workers + 1
        if ask.any():
            self._ask(rows[ask], actions[ask], ahead_chance_DW[ask])
        if accept.any():
            places, node = rows[accept], self.node_B[rows[accept]]
            last = self._last_BN[places, node]
            self.chance_BN[places, node] = ahead_chance_DW[accept][np.arange(len(last)), last]
            self._finish(places, node, last, passed=False)
        ended = ~self._over_B[rows] & (stop | (self._steps_B[rows] >= self.terms.max_steps))
        self._give_up(rows[ended], self._stopped_B)
        self._advance(rows[~self._over_B[rows]])
        so_far_B = self._running_reward()
        gained = so_far_B[rows] - self._so_far_B[rows]
        self._so_far_B = so_far_B
        self._reward_B[rows] += gained
        return gained

    def _ask(self, rows: Ints, worker: Ints, chance_DW: Floats) -> None:
        node, now_D, table = self.node_B[rows], self._now_B[rows], self.query_table.table
        query = self.query_BN[rows, node]
        cost = table.costs_QW[query, worker]
        self._spent_B[rows] += cost
        self._unused_BN[rows, node] = np.maximum(
            0.0, self.query_table.bound_QW[query, worker] - cost
        )
        self._worker_BN[rows, node] = worker
        self._due_BN[rows, node] = now_D + table.seconds_QW[query, worker]
        self.ask(rows, node, worker, chance_DW, now_D)

    def _finish(self, rows: Ints, node: Ints, kept: Ints, *, passed: bool) -> None:
        """Nodes end, with an answer kept; their children may be decided."""
        self.status_BN[rows, node] = DONE
        self.finish_BN[rows, node] = self._now_B[rows]
        self._due_BN[rows, node] = np.inf
        self._kept_BN[rows, node] = kept
        self._passed_BN[rows, node] = passed
        open_DN = self.status_BN[rows] != DONE
        waits_DN = (self.flows.parents_BNN[rows] & open_DN[:, :, None]).any(axis=1)
        free_DN = (self.status_BN[rows] == WAITING) & ~waits_DN
        places, children = np.nonzero(free_DN)
        self.status_BN[rows[places], children] = READY
        self._due_BN[rows[places], children] = self._now_B[rows[places]]
        complete = rows[(self.status_BN[rows] == DONE).all(axis=1)]
        self._over_B[complete] = True
        right_DN = self.query_table.table.right_QW[
            self.query_BN[complete], np.maximum(self._kept_BN[complete], 0)
        ]
        self._success_B[complete] = (right_DN | ~self.exists_BN[complete]).all(axis=1)

    def _give_up(self, rows: Ints, why_B: Bools) -> None:
        """End workflows. What still runs is counted at its bound: it may be billed anyway."""
        self._spent_B[rows] += self._unused_BN[rows].sum(axis=1)
        self._unused_BN[rows] = 0.0
        self._over_B[rows] = why_B[rows] = True

    def _advance(self, rows: Ints) -> None:
        """Let time pass until each of these workflows needs a decision or is over."""
        while len(rows):
            node = self._due_BN[rows].argmin(axis=1)
            due = self._due_BN[rows, node]
            late = due > self.flows.deadline_B[rows]
            self._now_B[rows] = np.where(late, self.flows.deadline_B[rows], due)
            self._give_up(rows[late], self._late_B)
            rows, node = rows[~late], node[~late]
            self.node_B[rows] = node
            running = self.status_BN[rows, node] == RUNNING
            self._answered(rows[running], node[running])
            asked = self._to_decide(rows[~running], node[~running])
            again = np.concatenate([rows[running], asked])
            rows = np.sort(again[~self._over_B[again]])

    def _answered(self, rows: Ints, node: Ints) -> None:
        worker = self._worker_BN[rows, node]
        passed = self.query_table.passes_QW[self.query_BN[rows, node], worker]
        self._unused_BN[rows, node] = 0.0
        self._tried_BNW[rows, node, worker] = True
        self._last_BN[rows, node] = worker
        good, bad = rows[passed], rows[~passed]
        self.chance_BN[good, node[passed]] = self.if_pass_BN[good, node[passed]]
        self._finish(good, node[passed], worker[passed], passed=True)
        self.status_BN[bad, node[~passed]] = READY

    def _to_decide(self, rows: Ints, node: Ints) -> Ints:
        """Of ready nodes: fail what has no action, put off what waits for money; returns these."""
        mask_DA = self.mask(rows)
        workers_DA, accept_D = mask_DA[:, :-2].any(axis=1), mask_DA[:, -2]
        busy_DN = self.status_BN[rows] == RUNNING
        wanted_D = self._open_to(rows).any(axis=1)
        # As the executor does: what others have reserved and do not use may do for this one.
        waits = ~workers_DA & wanted_D & busy_DN.any(axis=1)
        free_D = np.where(busy_DN, self._due_BN[rows], np.inf).min(axis=1, initial=np.inf)
        self._due_BN[rows[waits], node[waits]] = np.nextafter(free_D[waits], np.inf)
        self._give_up(rows[~waits & ~workers_DA & ~accept_D], self._stopped_B)
        return rows[waits]

    def _open_to(self, rows: Ints) -> Bools:
        """Workers that could be asked if money were no matter, [D, W]."""
        tried_DW = self.tried(rows)
        more_D = tried_DW.sum(axis=1) < self.query_table.max_tries
        return self.query_table.legal_QW[self.queries(rows)] & ~tried_DW & more_D[:, None]

    def mask(self, rows: Ints) -> Bools:
        """Legal actions at the decision of each row, [D, A]."""
        reserved_D = self._unused_BN[rows].sum(axis=1)
        left_D = self.flows.budget_B[rows] - self._spent_B[rows] - reserved_D
        fits_DW = self.query_table.bound_QW[self.queries(rows)] <= left_D[:, None] + 1e-12
        accept_D = self.last(rows) >= 0
        return np.column_stack(
            [self._open_to(rows) & fits_DW, accept_D, np.ones(len(rows), dtype=np.bool_)]
        )

    # What is seen

    def observe(self, rows: Ints) -> DecisionBatch:
        """What is known before the decisions of these rows."""
        load_DW = np.zeros((len(rows), self.query_table.workers))
        busy_D, busy_N = np.nonzero(self.status_BN[rows] == RUNNING)
        np.add.at(load_DW, (busy_D, self._worker_BN[rows[busy_D], busy_N]), 1)
        return self.situation(
            rows,
            self.node_B[rows],
            self._now_B[rows],
            failed_DW=self.tried(rows),
            last_D=self.last(rows),
            mask_DA=self.mask(rows),
            load_DW=load_DW,
            spent_D=self._spent_B[rows] + self._unused_BN[rows].sum(axis=1),
            budget_D=self.flows.budget_B[rows],
            deadline_D=self.flows.deadline_B[rows],
        )

    def truth(self, rows: Ints, leaning_DA: Floats) -> Floats:
        """What only the table knows about the workflows of these rows, [D, TRUTHS].

        For the critic in training: how a workflow must end if some query has no right worker is no
        merit of an action. `leaning_DA` are probabilities of the actions, by which the node under
        decision is summed up.
        """
        query_table, workers = self.query_table, self.query_table.workers
        node, places = self.node_B[rows], np.arange(len(rows))
        per_usd_B, per_second_B = self.terms.prices(self.flows.cost_ref_B, self.flows.latency_ref_B)
        alpha = max(1.0, abs(self.terms.weights.alpha))
        query_DN = self.query_BN[rows]
        right_DNW = query_table.table.right_QW[query_DN] & query_table.legal_QW[query_DN]
        price_DNW = (
            per_usd_B[rows, None, None] * query_table.table.costs_QW[query_DN]
            + per_second_B[rows, None, None] * query_table.table.seconds_QW[query_DN]
        ) / alpha
        least_DN = np.where(right_DNW, price_DNW, 1.0).min(axis=2)
        solvable_DN = right_DNW.any(axis=2)
        kept_DN = self._kept_BN[rows]
        done_DN = (self.status_BN[rows] == DONE) & self.exists_BN[rows]
        rows_DN, nodes_DN = places[:, None], np.arange(query_DN.shape[1])[None, :]
        good_DN = right_DNW[rows_DN, nodes_DN, np.maximum(kept_DN, 0)] & (kept_DN >= 0)
        running_DN = self.status_BN[rows] == RUNNING
        under_way_DN = right_DNW[rows_DN, nodes_DN, np.maximum(self._worker_BN[rows], 0)]
        others_DN = self.exists_BN[rows] & ~done_DN
        others_DN[places, node] = False
        share_DN = right_DNW.mean(axis=2)
        mine_DW = right_DNW[places, node]
        able_DW = self.mask(rows)[:, :workers]
        last_D = self._last_BN[rows, node]
        lean_DW = leaning_DA[:, :workers]
        count_D = np.maximum(1, others_DN.sum(axis=1))
        return np.stack(
            [
                (good_DN | ~done_DN).all(axis=1).astype(np.float64),
                (solvable_DN | ~others_DN).all(axis=1).astype(np.float64),
                np.where(others_DN, share_DN, 0.0).sum(axis=1) / count_D,
                np.where(others_DN, share_DN, 1.0).prod(axis=1),
                np.where(others_DN, least_DN, 0.0).sum(axis=1),
                (under_way_DN | ~running_DN).all(axis=1).astype(np.float64),
                (mine_DW & able_DW).any(axis=1).astype(np.float64),
                ((last_D >= 0) & mine_DW[places, np.maximum(last_D, 0)]).astype(np.float64),
                least_DN[places, node],
                (lean_DW * mine_DW).sum(axis=1),
                (lean_DW * query_table.passes_QW[query_DN[places, node]]).sum(axis=1),
                (lean_DW * price_DNW[places, node]).sum(axis=1),
            ],
            axis=1,
        )

    # What it came to

    def _running_reward(self) -> Floats:
        """The current reward of each workflow: of what is over, the final one.

        `rewards.compute_reward` of many results at once, in seconds and USD.
        """
        terms, weights, flows = self.terms, self.terms.weights, self.flows
        ends_BN = np.where(self.status_BN == RUNNING, self._due_BN, self.finish_BN)
        ahead_B = np.minimum(ends_BN.max(axis=1), flows.deadline_B)
        latency_B = np.where(self._over_B, self._now_B, np.maximum(ahead_B, self._now_B))
        if terms.preset in ("seed", "seed_seconds"):
            cost, latency = self._spent_B, latency_B * (1000.0 if terms.preset == "seed" else 1.0)
            shaped = self._outputs().astype(np.float64)
        else:
            counted = self._success_B if terms.preset == "gated" else np.ones_like(self._over_B)
            cost = counted * np.minimum(1.0, self._spent_B / flows.cost_ref_B)
            latency = counted * np.minimum(1.0, latency_B / flows.latency_ref_B)
            shaped = self._passed_BN.sum(axis=1) / self.size_B
        return (
            weights.alpha * self._success_B
            - weights.beta * cost
            - weights.gamma_latency * latency
            + weights.shaped_reward * shaped
        )

    def outcome(self) -> SimulationResult:
        """The result of all. Raises `RuntimeError` while one waits for a decision."""
        if not self._over_B.all():
            raise RuntimeError(f"{int((~self._over_B).sum())} workflows are not over")
        return SimulationResult(
            self._success_B,
            self._spent_B,
            self._now_B,
            self._passed_BN.sum(axis=1) / self.size_B,
            self._outputs(),
            self._steps_B,
            self._reward_B,
            self._stopped_B,
            self._late_B,
            *map(np.concatenate, zip(*self._taken, strict=True)),
        )

    def _outputs(self) -> Ints:
        return ((self._kept_BN >= 0) & self.exists_BN).sum(axis=1)
