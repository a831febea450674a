"""What is known before a decision, and what each action may be expected to bring.

A `DecisionBatch` is a batch of decisions, each at one node of one workflow, in plain arrays: the
vectorised simulator and the router of the real executor fill the same fields, so a policy cannot
tell them apart. From it come the expected utility of each action, one step ahead, and the features
that the policy sees (`policy.py`). Nothing depends on which workers there are, or how many.

The utility of an action, in units of the reward: with F the chance that time and budget last, o the
chance that all other nodes come right, rest the expected cost of the nodes to come,

    try j:  P(pass) * max(0, alpha F o P(right | pass) - rest)
            + P(reject) * max(0, alpha F o P(right | reject) - rest) - cost_j - time_j
    accept: alpha F o P(last answer is right) - rest - time
    stop:   0

Legend: D decisions, W workers, A actions (the workers, accept, stop), F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tutelage.orchestration.data.outcomes import Floats
from tutelage.orchestration.evaluation.rewards import Preset, RewardWeights
from tutelage.orchestration.routing.predictor import VerifierRates
from tutelage.orchestration.routing.settings import Prior

Bools = NDArray[np.bool_]


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
