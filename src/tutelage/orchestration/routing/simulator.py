"""Workflows on recorded outcomes, thousands side by side: what is known, and what an action does.

It follows the executor's rules exactly. A node can be decided when its parents have ended; a try
takes the recorded time and costs the recorded sum; an answer that its verifier passes ends the
node, one that it rejects comes back for a decision: another worker, accept, or stop, which fails
the workflow at once. Budgets are enforced, a deadline ends what runs. Decisions are taken in the
order of time, ties by the node's number. The reward of a decision is the change that it makes to
the reward of the workflow so far, so the rewards of a workflow add up to `compute_reward` of its
result; success means that every kept answer is right, whatever the verifier said.

`WorkflowState` holds what is known of running workflows and `DecisionBatch` what is known before a
decision; the router at work (`router.py`) fills the same fields, so a policy sees there what it saw
in training. The utility of an action, in units of the reward: with F the chance that time and
budget last, o the chance that all other nodes come right, rest the expected cost of the nodes to
come,

    try j:  P(pass) * max(0, alpha F o P(right | pass) - rest)
            + P(reject) * max(0, alpha F o P(right | reject) - rest) - cost_j - time_j
    accept: alpha F o P(last answer is right) - rest - time
    stop:   0

A test holds the simulator against the executor, action by action. Legend: B workflows, N nodes, W
workers, D decisions, A actions (the workers, accept, stop).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tutelage.orchestration.data.outcomes import Floats
from tutelage.orchestration.evaluation.rewards import (
    ExecutionResult,
    Preset,
    RewardWeights,
    reward_terms,
)
from tutelage.orchestration.routing.predictor import VerifierRates
from tutelage.orchestration.routing.settings import Prior
from tutelage.orchestration.routing.workflows import (
    Bools,
    Ints,
    QueryForecast,
    QueryTable,
    WorkflowBatch,
)

WAITING, READY, RUNNING, DONE = 0, 1, 2, 3
TRUTHS = 12
"""Numbers that `WorkflowSimulator.truth` says of a decision."""


@dataclass(frozen=True, slots=True)
class DecisionBatch:
    """A batch of decisions. Money in USD, times in seconds from the workflow's start."""

    mask_DA: Bools
    chance_DW: Floats
    """That a worker's answer is right, given what was tried at this node."""
    cost_DW: Floats
    seconds_DW: Floats
    load_DW: Floats
    """Works that each worker has in hand."""
    last_D: Floats
    """Chance that the last answer is right; 0 if there is none."""
    tries_D: Floats
    max_tries: int
    others_D: Floats
    """Chance that all other nodes come right."""
    rest_cost_D: Floats
    """Expected cost of the other nodes that did not start."""
    rest_least_D: Floats
    """What they cost at the least."""
    now_D: Floats
    ends_D: Floats
    """When the workflow would end if this node took no time."""
    tail_D: Floats
    """Expected time of the longest chain behind this node."""
    spent_D: Floats
    """What runs is counted at its bound."""
    budget_D: Floats
    """Infinite without one."""
    deadline_D: Floats
    cost_ref_D: Floats
    latency_ref_D: Floats
    nodes_D: Floats
    open_D: Floats
    """Nodes that did not end, this one included."""

    @property
    def end_D(self) -> Floats:
        """When the workflow may be expected to end if the last answer is accepted."""
        return np.maximum(self.ends_D, self.now_D + self.tail_D)

    @property
    def end_DW(self) -> Floats:
        """When it may be expected to end if a worker is asked."""
        after_DW = (self.now_D + self.tail_D)[:, None] + self.seconds_DW
        return np.maximum(self.ends_D[:, None], after_DW)


@dataclass(frozen=True, slots=True)
class RewardTerms:
    """What success, a dollar and a second are worth, and the rules that a workflow ends by."""

    preset: Preset
    weights: RewardWeights
    rates: VerifierRates
    prior: Prior = "lookahead"
    """Which utility the policy starts from and sees."""
    max_steps: int = 50
    """Decisions in one workflow, at most; then it is given up."""

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> RewardTerms:
        """The reward and the verifier that a checkpoint's router was trained for."""
        weights, rates = RewardWeights(**state["weights"]), VerifierRates(**state["rates"])
        return RewardTerms(state["reward"], weights, rates, state["prior"])

    def prices(self, cost_ref_D: Floats, latency_ref_D: Floats) -> tuple[Floats, Floats]:
        """Reward lost by a dollar and by a second."""
        weights = self.weights
        if self.preset in ("normalized", "gated"):
            return weights.beta / cost_ref_D, weights.gamma_latency / latency_ref_D
        second = 1000.0 if self.preset == "seed" else 1.0
        return (
            np.full_like(cost_ref_D, weights.beta),
            np.full_like(latency_ref_D, weights.gamma_latency * second),
        )


def look_ahead(at: DecisionBatch, terms: RewardTerms) -> Floats:
    """Expected utilities, [D, A]; minus infinity where the mask forbids.

    The module's docstring has the formula.
    """
    alpha = terms.weights.alpha
    shares = terms.preset in ("normalized", "gated")
    shaped_D = terms.weights.shaped_reward / np.where(shares, at.nodes_D, 1.0)
    per_usd_D, per_second_D = terms.prices(at.cost_ref_D, at.latency_ref_D)
    pass_DW, right_if_pass_DW, right_if_fail_DW = terms.rates.verdict(at.chance_DW)
    end_D, end_DW = at.end_D, at.end_DW
    worth_DW = alpha * at.others_D[:, None] * _in_time(end_DW, at) * _affordable(at, at.cost_DW)
    rest_D1 = (per_usd_D * at.rest_cost_D)[:, None]
    try_DW = (
        pass_DW * (np.maximum(worth_DW * right_if_pass_DW - rest_D1, 0) + shaped_D[:, None])
        + (1 - pass_DW) * np.maximum(worth_DW * right_if_fail_DW - rest_D1, 0)
        - per_usd_D[:, None] * at.cost_DW
        - per_second_D[:, None] * (end_DW - at.now_D[:, None])
    )
    in_time_D, affordable_D = _in_time(end_D[:, None], at)[:, 0], _affordable(at, 0.0)[:, 0]
    accept_D = (
        alpha * at.others_D * at.last_D * in_time_D * affordable_D
        - rest_D1[:, 0]
        - per_second_D * (end_D - at.now_D)
    )
    utility_DA = np.concatenate([try_DW, accept_D[:, None], np.zeros((len(accept_D), 1))], axis=1)
    return np.where(at.mask_DA, utility_DA, -np.inf)


def plain_utility(at: DecisionBatch, terms: RewardTerms) -> Floats:
    """alpha * chance - cost - seconds for each worker, [D, A]; nothing else is in view.

    Accepting is worth alpha * P(last answer is right), stopping 0.
    """
    per_usd_D, per_second_D = terms.prices(at.cost_ref_D, at.latency_ref_D)
    try_DW = (
        terms.weights.alpha * at.chance_DW
        - per_usd_D[:, None] * at.cost_DW
        - per_second_D[:, None] * at.seconds_DW
    )
    settle_D2 = np.stack([terms.weights.alpha * at.last_D, np.zeros_like(at.last_D)], axis=1)
    return np.where(at.mask_DA, np.concatenate([try_DW, settle_D2], axis=1), -np.inf)


def _affordable(at: DecisionBatch, cost_DW: Floats | float) -> Floats:
    """1 where the least cost of the other nodes still fits after this one."""
    left_D = at.budget_D - at.spent_D - at.rest_least_D
    return (left_D[:, None] - cost_DW >= -1e-12).astype(np.float64)


def _in_time(end_DW: Floats, at: DecisionBatch) -> Floats:
    """About how likely an expected end keeps the deadline: logistic in its relative distance."""
    ahead_DW = np.maximum(end_DW - at.now_D[:, None], 1e-6)
    with np.errstate(invalid="ignore"):
        far_DW = (at.deadline_D[:, None] - end_DW) / (0.15 * ahead_DW)
    return 1.0 / (1.0 + np.exp(-np.clip(far_DW, -30, 30)))


class WorkflowState:
    """How far workflows are, and what is expected of their nodes."""

    def __init__(self, known: QueryForecast, flows: WorkflowBatch, terms: RewardTerms) -> None:
        self.known, self.flows, self.terms = known, flows, terms
        shape = flows.query_BN.shape
        self.exists_BN = flows.exists_BN
        self.query_BN = np.maximum(flows.query_BN, 0)
        self.size_B = self.exists_BN.sum(axis=1)
        self.status_BN = np.where(self.exists_BN, WAITING, DONE)
        self.finish_BN = np.zeros(shape)
        """When each node ended, where it did."""
        self.expected_end_BN = np.zeros(shape)
        """When it may be expected to end, where it runs."""
        self.chance_BN = np.where(self.exists_BN, known.hope_Q[self.query_BN], 1.0)
        """That each node comes right."""
        self.if_pass_BN = np.zeros(shape)
        """That, should the running answer pass."""
        # USD and seconds of each node by the worker that looks best before anything is tried; a
        # chance is counted by half, since not all others come right.
        cost_BNW, seconds_BNW = known.cost_QW[self.query_BN], known.seconds_QW[self.query_BN]
        legal_BNW = known.legal_QW[self.query_BN]
        per_usd_B, per_second_B = terms.prices(flows.cost_ref_B, flows.latency_ref_B)
        worth_BNW = (
            0.5 * terms.weights.alpha * known.chance_QW[self.query_BN]
            - per_usd_B[:, None, None] * cost_BNW
            - per_second_B[:, None, None] * seconds_BNW
        )
        best_BN1 = np.where(legal_BNW, worth_BNW, -np.inf).argmax(axis=2)[:, :, None]
        self._plan_cost_BN, self._plan_seconds_BN = (
            np.take_along_axis(x_BNW, best_BN1, 2)[:, :, 0] * self.exists_BN
            for x_BNW in (cost_BNW, seconds_BNW)
        )
        least_BN = np.where(legal_BNW, cost_BNW, np.inf).min(axis=2)
        self._least_BN = np.where(self.exists_BN, least_BN, 0.0)

    def ask(self, rows: Ints, node: Ints, worker: Ints, chance_DW: Floats, now_D: Floats) -> None:
        """Workers are asked. `chance_DW` are the chances that the situation showed.

        Should the answer be rejected, the next best worker is counted at half its chance.
        """
        places = np.arange(len(worker))
        passes, if_pass, _ = self.terms.rates.verdict(chance_DW[places, worker])
        others_DW = chance_DW.copy()
        others_DW[places, worker] = 0.0
        self.status_BN[rows, node] = RUNNING
        seconds_D = self.known.seconds_QW[self.query_BN[rows, node], worker]
        self.expected_end_BN[rows, node] = now_D + seconds_D
        self.if_pass_BN[rows, node] = if_pass
        self.chance_BN[rows, node] = passes * if_pass + (1 - passes) * 0.5 * others_DW.max(axis=1)

    def situation(
        self, rows: Ints, node: Ints, now_D: Floats, *, failed_DW: Bools, last_D: Ints, **known: Any
    ) -> DecisionBatch:
        """What is known before these decisions. `failed_DW` are the workers that were rejected at
        the node, `last_D` that of the last answer, -1 if there is none; `known` are the fields
        that do not follow from the state.
        """
        places, query = np.arange(len(rows)), self.query_BN[rows, node]
        status_DN = self.status_BN[rows]
        done_DN, running_DN = status_DN == DONE, status_DN == RUNNING
        others_DN = self.chance_BN[rows]
        others_DN[places, node] = 1.0
        unstarted_DN = ~done_DN & ~running_DN
        unstarted_DN[places, node] = False
        lasts_DN = self._plan_seconds_BN[rows]
        lasts_DN[places, node] = 0.0
        # The end of all, and the longest chain behind each node. When a try that runs will end is
        # not known yet: only expected durations are used.
        parents_DNN = self.flows.parents_BNN[rows]
        running_end_DN = np.maximum(self.expected_end_BN[rows], now_D[:, None])
        end_DN, tail_DN = np.zeros_like(lasts_DN), np.zeros_like(lasts_DN)
        for j in range(lasts_DN.shape[1]):
            before_D = np.where(parents_DNN[:, :, j], end_DN, 0.0).max(axis=1, initial=0.0)
            later_D = np.maximum(before_D, now_D) + lasts_DN[:, j]
            open_D = np.where(running_DN[:, j], running_end_DN[:, j], later_D)
            end_DN[:, j] = np.where(done_DN[:, j], self.finish_BN[rows, j], open_D)
        for i in reversed(range(lasts_DN.shape[1])):
            chains_DN = np.where(parents_DNN[:, i, :], tail_DN + lasts_DN, 0.0)
            tail_DN[:, i] = chains_DN.max(axis=1, initial=0.0)
        chance_DW = self.known.after(query, failed_DW, self.terms.rates)
        return DecisionBatch(
            chance_DW=chance_DW,
            cost_DW=self.known.cost_QW[query],
            seconds_DW=self.known.seconds_QW[query],
            last_D=np.where(last_D >= 0, chance_DW[places, last_D], 0.0),
            tries_D=failed_DW.sum(axis=1).astype(np.float64),
            max_tries=self.known.max_tries,
            others_D=others_DN.prod(axis=1),
            rest_cost_D=(self._plan_cost_BN[rows] * unstarted_DN).sum(axis=1),
            rest_least_D=(self._least_BN[rows] * unstarted_DN).sum(axis=1),
            now_D=now_D,
            ends_D=end_DN.max(axis=1),
            tail_D=tail_DN[places, node],
            cost_ref_D=self.flows.cost_ref_B[rows],
            latency_ref_D=self.flows.latency_ref_B[rows],
            nodes_D=self.size_B[rows].astype(np.float64),
            open_D=(~done_DN).sum(axis=1).astype(np.float64),
            **known,
        )


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
        self._taken: list[tuple[Ints, Ints]] = []
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
        self._taken.append((rows, actions))
        self._steps_B[rows] += 1
        ask, accept, stop = actions < workers, actions == workers, actions == workers + 1
        if ask.any():
            places, worker = rows[ask], actions[ask]
            node, query, now_D = self.node_B[places], self.queries(places), self._now_B[places]
            cost = self.query_table.table.costs_QW[query, worker]
            bound = self.query_table.bound_QW[query, worker]
            self._spent_B[places] += cost
            self._unused_BN[places, node] = np.maximum(0.0, bound - cost)
            self._worker_BN[places, node] = worker
            self._due_BN[places, node] = now_D + self.query_table.table.seconds_QW[query, worker]
            self.ask(places, node, worker, ahead_chance_DW[ask], now_D)
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
            answered, at = rows[running], node[running]
            worker = self._worker_BN[answered, at]
            passed = self.query_table.passes_QW[self.query_BN[answered, at], worker]
            self._unused_BN[answered, at] = 0.0
            self._tried_BNW[answered, at, worker] = True
            self._last_BN[answered, at] = worker
            good, good_at = answered[passed], at[passed]
            self.chance_BN[good, good_at] = self.if_pass_BN[good, good_at]
            self._finish(good, good_at, worker[passed], passed=True)
            self.status_BN[answered[~passed], at[~passed]] = READY
            waiting = self._to_decide(rows[~running], node[~running])
            again = np.concatenate([answered, waiting])
            rows = np.sort(again[~self._over_B[again]])

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
        """The current reward of each workflow: of what is over, the final one."""
        flows = self.flows
        ends_BN = np.where(self.status_BN == RUNNING, self._due_BN, self.finish_BN)
        ahead_B = np.minimum(ends_BN.max(axis=1), flows.deadline_B)
        parts = reward_terms(
            self.terms.preset,
            self.terms.weights,
            success=self._success_B,
            cost=self._spent_B,
            seconds=np.where(self._over_B, self._now_B, np.maximum(ahead_B, self._now_B)),
            outputs=self._outputs(),
            verified=self._passed_BN.sum(axis=1) / self.size_B,
            references=(flows.cost_ref_B, flows.latency_ref_B),
        )
        return parts["success"] + parts["cost"] + parts["latency"] + parts["shaped"]

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


Chooser = Callable[[WorkflowSimulator, Ints, DecisionBatch], Ints]
"""The action of each waiting row, given what is known before it."""


def run_chooser(
    query_table: QueryTable, flows: WorkflowBatch, terms: RewardTerms, choose: Chooser
) -> SimulationResult:
    """Run a chooser on all workflows."""
    simulator = WorkflowSimulator(query_table, flows, terms)
    while len(rows := simulator.rows):
        at = simulator.observe(rows)
        simulator.step(rows, choose(simulator, rows, at), at.chance_DW)
    return simulator.outcome()
