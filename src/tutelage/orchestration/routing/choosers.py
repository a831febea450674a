"""Ways to choose workers: fixed rules, greedy ones, the trained policy, and an oracle.

A chooser sees the simulator, the waiting rows and what is known before each decision, and says an
action for each; `run_chooser` runs workflows with one. Rules that try once accept whatever the
verifier says; those that escalate go on until an answer passes or tries, money or workers run out.
The oracle alone looks at the outcomes themselves, to say what is possible.

Legend: D decisions, W workers, A actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from tutelage.orchestration.data.outcomes import Floats, OutcomeTable
from tutelage.orchestration.routing.decisions import (
    DecisionBatch,
    RewardTerms,
    look_ahead,
    plain_utility,
)
from tutelage.orchestration.routing.policy import DecisionFeatures, ModelSelector
from tutelage.orchestration.routing.simulator import SimulationResult, WorkflowSimulator
from tutelage.orchestration.routing.workflows import Bools, Ints, QueryTable, WorkflowBatch
from tutelage.seeds import SeedTree

Chooser = Callable[[WorkflowSimulator, Ints, DecisionBatch], Ints]
"""The action of each waiting row, given what is known before it."""
GREEDY = "greedy utility"
LOOKAHEAD = "one-step lookahead"


def run_chooser(
    query_table: QueryTable, flows: WorkflowBatch, terms: RewardTerms, choose: Chooser
) -> SimulationResult:
    """Run a chooser on all workflows."""
    simulator = WorkflowSimulator(query_table, flows, terms)
    while len(rows := simulator.rows):
        at = simulator.observe(rows)
        simulator.step(rows, choose(simulator, rows, at), at.chance_DW)
    return simulator.outcome()


def baselines(train: OutcomeTable, terms: RewardTerms, seeds: SeedTree) -> dict[str, Chooser]:
    """What the trained policy is compared with, by name; the oracle stands apart.

    Most accurate, best of the type and the cascade are those of the training table.
    """
    means_W = _means(train)
    return {
        "random": _random_choice(seeds),
        "cheapest": _once(lambda at: -at.cost_DW),
        "fastest": _once(lambda at: -at.seconds_DW),
        "most accurate": _favouring(means_W),
        "best of the type": _per_type_best(train),
        "kNN": _once(lambda at: at.chance_DW),
        "kNN, escalating": lambda _, rows, at: _ranked(at.chance_DW, at, escalate=True),
        "fixed cascade": _cascade(train),
        GREEDY: node_utility(terms),
        LOOKAHEAD: greedy(terms),
    }


def _once(score: Callable[[DecisionBatch], Floats]) -> Chooser:
    """The legal worker of the highest score, once."""
    return lambda _, rows, at: _ranked(score(at), at)


def _favouring(scores_W: Floats) -> Chooser:
    return _once(lambda at: np.broadcast_to(scores_W, at.chance_DW.shape))


def single_worker(worker: int, workers: int) -> Chooser:
    """That one of the workers, once, and another where it is not legal."""
    return _favouring(np.eye(workers)[worker])


def _ranked(scores_DW: Floats, at: DecisionBatch, *, escalate: bool = False) -> Ints:
    """The legal worker of the highest score; accept or stop when there is none to ask."""
    workers = scores_DW.shape[1]
    able_DW = at.mask_DA[:, :workers]
    best_D = np.where(able_DW, scores_DW, -np.inf).argmax(axis=1)
    ask_D = able_DW.any(axis=1) & (escalate | (at.tries_D == 0))
    settle_D = np.where(at.mask_DA[:, workers], workers, workers + 1)
    return np.where(ask_D, best_D, settle_D)


def _random_choice(seeds: SeedTree) -> Chooser:
    """Any legal action but stopping, evenly; stops when nothing else is left."""
    rng = seeds.numpy()

    def choose(simulator: WorkflowSimulator, rows: Ints, at: DecisionBatch) -> Ints:
        keys_DA = np.where(at.mask_DA, rng.random(at.mask_DA.shape), -1.0)
        keys_DA[:, -1] -= 1.0
        return keys_DA.argmax(axis=1)

    return choose


def _per_type_best(train: OutcomeTable) -> Chooser:
    """The worker that is right most often for the type, once; one that was never asked for it
    has its mean over all types."""
    kinds, overall = np.array(train.types), _means(train)
    rows = {kind: np.flatnonzero(kinds == kind) for kind in set(train.types)}
    best = {kind: _means(train.take(some), overall) for kind, some in rows.items()}

    def choose(simulator: WorkflowSimulator, rows: Ints, at: DecisionBatch) -> Ints:
        types = simulator.query_table.table.types
        scores = [best.get(types[q], overall) for q in simulator.queries(rows)]
        return _ranked(np.array(scores), at)

    return choose


def _cascade(train: OutcomeTable) -> Chooser:
    """A fixed order: the best worker of each of three price classes, cheap to expensive."""
    means_W, costs_W = _means(train), np.nanmean(train.costs_QW, axis=0)
    order = np.argsort(costs_W, kind="stable")
    picked = [part[means_W[part].argmax()] for part in np.array_split(order, 3) if len(part)]
    rank_W = np.full(len(means_W), -np.inf)
    for place, worker in enumerate(picked):
        rank_W[worker] = -float(place)

    def choose(simulator: WorkflowSimulator, rows: Ints, at: DecisionBatch) -> Ints:
        legal_DW = at.mask_DA[:, :-2]
        listed_DW = legal_DW & np.isfinite(rank_W)
        # With none of the three affordable, any other is better than giving up.
        none_D1 = (~listed_DW.any(axis=1) & (at.tries_D == 0))[:, None]
        able_DW = np.where(none_D1, legal_DW, listed_DW)
        scores = np.where(np.isfinite(rank_W), rank_W, -1e6 - costs_W)
        narrowed = replace(at, mask_DA=np.concatenate([able_DW, at.mask_DA[:, -2:]], axis=1))
        return _ranked(np.broadcast_to(scores, able_DW.shape), narrowed, escalate=True)

    return choose


def greedy(terms: RewardTerms) -> Chooser:
    """The action of the highest expected utility one step ahead (`decisions.look_ahead`)."""
    return lambda _, rows, at: look_ahead(at, terms).argmax(axis=1)


def node_utility(terms: RewardTerms) -> Chooser:
    """Greedy as it is usual: the action of the highest utility at this node, alone.

    A worker is worth alpha * chance - cost - seconds, accepting alpha * the chance that the last
    answer is right, stopping 0 (`decisions.plain_utility`); no other node is in view.
    """
    return lambda _, rows, at: plain_utility(at, terms).argmax(axis=1)


def policy_chooser(model: ModelSelector, terms: RewardTerms) -> Chooser:
    """The policy's most probable action."""

    def choose(simulator: WorkflowSimulator, rows: Ints, at: DecisionBatch) -> Ints:
        with torch.no_grad():
            logp_DA, _ = model(DecisionFeatures.of(at, terms))
        return logp_DA.argmax(dim=1).numpy()

    return choose


def oracle(terms: RewardTerms) -> Chooser:
    """Knows every outcome: at each node the cheapest right worker, and no start where one lacks.

    A bound that nobody can reach without looking, and nearly the highest: it weighs cost and
    seconds node by node and does not search over plans.
    """

    def choose(simulator: WorkflowSimulator, rows: Ints, at: DecisionBatch) -> Ints:
        query_table = simulator.query_table
        query = simulator.queries(rows)
        right_DW = query_table.table.right_QW[query]
        passes_DW = query_table.passes_QW[query]
        per_usd_D, per_second_D = terms.prices(at.cost_ref_D, at.latency_ref_D)
        price_DW = (
            per_usd_D[:, None] * query_table.table.costs_QW[query]
            + per_second_D[:, None] * query_table.table.seconds_QW[query]
            # A right answer that is rejected costs a decision more, and is accepted then.
            + 1e-6 * ~passes_DW
        )
        workers = right_DW.shape[1]
        chosen = _ranked(np.where(right_DW, -price_DW, -np.inf), at, escalate=True)
        possible_D = (right_DW & at.mask_DA[:, :workers]).any(axis=1)
        last_D = simulator.last(rows)
        held_D = (last_D >= 0) & right_DW[np.arange(len(rows)), np.maximum(last_D, 0)]
        good_Q: Bools = np.any(query_table.table.right_QW & query_table.legal_QW, axis=1)
        solvable_DN = good_Q[simulator.query_BN[rows]] | ~simulator.exists_BN[rows]
        hopeless_D = ~solvable_DN.all(axis=1) | (~possible_D & ~held_D)
        chosen = np.where(held_D, workers, chosen)
        return np.where(hopeless_D, workers + 1, chosen)

    return choose


def _means(table: OutcomeTable, unknown_W: Floats | float = 0.0) -> Floats:
    """How often each worker was right, `unknown_W` where it was never asked."""
    known_W = table.known_QW.sum(axis=0)
    right_W = (table.right_QW & table.known_QW).sum(axis=0)
    return np.where(known_W > 0, right_W / np.maximum(known_W, 1), unknown_W)
