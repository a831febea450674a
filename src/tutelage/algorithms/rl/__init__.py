"""The mathematics of RL on weights: pure functions of tensors, one algorithm per file.

The order of use: `estimate_advantages` turns rewards into one advantage per sampled token,
`policy_loss` turns advantages and log-probabilities into a scalar, `kl_penalty`, `value_loss` and
`entropy` add their terms through `aggregate`. Three rules hold everywhere: a token with mask 0 has
no loss, no advantage and no discount step; statistics are over rollouts, whatever their number of
rows; and with the optimizer batch's `denominator` the losses of its micro-batches add up to the
loss of the whole. Read `index.py` next (rows and rollouts), then `advantages/` and `losses/`;
`weights/` has the loop that calls them.
"""

from __future__ import annotations

from tutelage.algorithms.extensions import ESTIMATORS, LOSSES, estimator, loss
from tutelage.algorithms.rl.advantages import estimate_advantages
from tutelage.algorithms.rl.advantages.groups import count_groups
from tutelage.algorithms.rl.advantages.packed import Estimate, Packed
from tutelage.algorithms.rl.advantages.whiten import whiten
from tutelage.algorithms.rl.aggregate import AGGREGATIONS, aggregate, aggregation_denominator
from tutelage.algorithms.rl.corrections import CORRECTIONS, importance_weights
from tutelage.algorithms.rl.entropy import entropy
from tutelage.algorithms.rl.kl import (
    KL_KINDS,
    AdaptiveKL,
    kl_gradient_ratio,
    kl_in_reward,
    kl_penalty,
)
from tutelage.algorithms.rl.losses import merge_metrics, policy_loss
from tutelage.algorithms.rl.losses.clip_cov import select_clip_cov
from tutelage.algorithms.rl.losses.common import LossInputs, TokenLoss
from tutelage.algorithms.rl.losses.kl_cov import select_kl_cov
from tutelage.algorithms.rl.value import value_loss

__all__ = [
    "AGGREGATIONS",
    "CORRECTIONS",
    "ESTIMATORS",
    "KL_KINDS",
    "LOSSES",
    "AdaptiveKL",
    "Estimate",
    "LossInputs",
    "Packed",
    "TokenLoss",
    "aggregate",
    "aggregation_denominator",
    "count_groups",
    "entropy",
    "estimate_advantages",
    "estimator",
    "importance_weights",
    "kl_gradient_ratio",
    "kl_in_reward",
    "kl_penalty",
    "loss",
    "merge_metrics",
    "policy_loss",
    "select_clip_cov",
    "select_kl_cov",
    "value_loss",
    "whiten",
]
