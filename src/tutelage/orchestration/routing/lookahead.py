"""Where workflows stand, and what may be expected of a try and of the rest of its workflow.

The simulator of training and the router at work keep what they know in a `WorkflowState`, so that a
policy sees at work what it saw in training: the simulator one of thousands of workflows, the router
one of the single workflow that it routes. Legend: B workflows, N nodes, D decisions, W workers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tutelage.orchestration.data.outcomes import Floats
from tutelage.orchestration.routing.decisions import DecisionBatch, RewardTerms
from tutelage.orchestration.routing.workflows import Bools, Ints, QueryForecast, WorkflowBatch

WAITING, READY, RUNNING, DONE = 0, 1, 2, 3


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
        self._plan_cost_BN, self._plan_seconds_BN, self._least_BN = self._expected_plan()

    def _expected_plan(self) -> tuple[Floats, Floats, Floats]:
        """USD and seconds of each node by the worker that looks best there, and its least USD.

        Before anything is tried; a chance is counted by half, since not all others come right.
        """
        known, flows, query_BN = self.known, self.flows, self.query_BN
        cost_BNW, seconds_BNW = known.cost_QW[query_BN], known.seconds_QW[query_BN]
        legal_BNW = known.legal_QW[query_BN]
        per_usd_B, per_second_B = self.terms.prices(flows.cost_ref_B, flows.latency_ref_B)
        worth_BNW = (
            0.5 * self.terms.weights.alpha * known.chance_QW[query_BN]
            - per_usd_B[:, None, None] * cost_BNW
            - per_second_B[:, None, None] * seconds_BNW
        )
        best_BN1 = np.where(legal_BNW, worth_BNW, -np.inf).argmax(axis=2)[:, :, None]
        cost_BN, seconds_BN = (
            np.take_along_axis(x_BNW, best_BN1, 2)[:, :, 0] * self.exists_BN
            for x_BNW in (cost_BNW, seconds_BNW)
        )
        least_BN = np.where(legal_BNW, cost_BNW, np.inf).min(axis=2)
        return cost_BN, seconds_BN, np.where(self.exists_BN, least_BN, 0.0)

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
        # When a try that runs will end is not known yet: only expected durations are used.
        ends_D, tail_DN = self._expected_path(rows, now_D, lasts_DN)
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
            ends_D=ends_D,
            tail_D=tail_DN[places, node],
            cost_ref_D=self.flows.cost_ref_B[rows],
            latency_ref_D=self.flows.latency_ref_B[rows],
            nodes_D=self.size_B[rows].astype(np.float64),
            open_D=(~done_DN).sum(axis=1).astype(np.float64),
            **known,
        )

    def _expected_path(self, rows: Ints, now_D: Floats, lasts_DN: Floats) -> tuple[Floats, Floats]:
        """(end of all [D], longest chain of expected seconds behind each node [D, N]), where those
        that did not start take `lasts_DN`."""
        parents_DNN, status_DN = self.flows.parents_BNN[rows], self.status_BN[rows]
        running_end_DN = np.maximum(self.expected_end_BN[rows], now_D[:, None])
        end_DN = np.zeros_like(lasts_DN)
        for j in range(lasts_DN.shape[1]):
            before_D = np.where(parents_DNN[:, :, j], end_DN, 0.0).max(axis=1, initial=0.0)
            later_D = np.maximum(before_D, now_D) + lasts_DN[:, j]
            open_D = np.where(status_DN[:, j] == RUNNING, running_end_DN[:, j], later_D)
            end_DN[:, j] = np.where(status_DN[:, j] == DONE, self.finish_BN[rows, j], open_D)
        behind_DN = np.zeros_like(lasts_DN)
        for i in reversed(range(lasts_DN.shape[1])):
            chains_DN = np.where(parents_DNN[:, i, :], behind_DN + lasts_DN, 0.0)
            behind_DN[:, i] = chains_DN.max(axis=1, initial=0.0)
        return end_DN.max(axis=1), behind_DN
