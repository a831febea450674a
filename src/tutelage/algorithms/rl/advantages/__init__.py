"""Compute advantages from rewards: one function for thirteen estimators, each in its own file.

`estimate_advantages` packs the rows into rollouts (`packed.py`), calls the estimator and unpacks
the result into rows, so that an estimator's file has little more than its formula. Group statistics
are in `groups.py`, the recursion over tokens in `discount.py`, the registry of estimators in
`algorithms/extensions.py`. `../losses/` uses the advantages.

Legend: B rows, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tutelage.algorithms.extensions import ESTIMATORS
from tutelage.algorithms.rl.advantages.packed import (
    Estimate,
    Packed,
    TokenSlots,
)
from tutelage.algorithms.rl.index import Ids, check_shapes
from tutelage.algorithms.rl.lookup import unknown_name_error
from tutelage.errors import ConfigError

SUCCESS = 1.0 - 1e-9
"""Minimum reward of a successful rollout if `successes_B` is not passed."""

SINGLE_MEMBER = ("zero", "verl")
"""Treatment of a group of one rollout: advantage 0, or the same as in verl."""


@torch.no_grad()
def estimate_advantages(
    name: str,
    rewards_BT: Tensor,
    mask_BT: Tensor,
    *,
    groups_B: Ids | None = None,
    rollouts_B: Ids | None = None,
    values_BT: Tensor | None = None,
    baselines_B: Tensor | None = None,
    successes_B: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
    norm_by_std: bool = True,
    single_member: str = "zero",
) -> tuple[Tensor, Tensor]:
    """Return the advantages and returns, each [B, T] in the rewards' dtype and 0 where the mask is
    0.

    Pass the whole batch at once, since groups and whitening need it. `rewards_BT` holds the reward
    of each token; the reward of a masked token moves to the last trained token of its rollout. The
    sum of a rollout's rewards is its R. `groups_B` and `rollouts_B` are ids per row. Rows of one
    rollout are in time order, possibly with other rows between them, and have the same group and
    baseline. `values_BT` is for gae, `baselines_B` [B] for remax, `successes_B` [B] for raft (True
    if the rollout succeeded; by default if R is at least 1), `gamma` for gae and
    reinforce_plus_plus, `lam` for gae, `norm_by_std` for grpo and grpo_passk, `single_member`
    (`zero` or `verl`) for the group estimators. Returns are the critic's targets for gae, rewards
    to go for reinforce_plus_plus and remax, and equal to the advantages for the group estimators. A
    rollout without a trained token gets no advantage, but its R counts in its group.

    Raises `ConfigError` for an unknown name or a setting out of range, and `ValueError` for wrong
    shapes, for contradicting rows of one rollout, and for inputs that the estimator needs and that
    are missing.
    """
    estimator = ESTIMATORS.find(name)
    if single_member not in SINGLE_MEMBER:
        raise unknown_name_error(single_member, SINGLE_MEMBER, "single_member")
    for key, value in (("gamma", gamma), ("lam", lam)):
        if not 0.0 <= value <= 1.0:
            raise ConfigError(f"algorithm.{key}={value!r} must be between 0 and 1")
    places = TokenSlots.build(mask_BT, rollouts_B)
    index = places.index
    rewards_NL, final_N = places.pack_rewards(rewards_BT)
    group_N, groups = (None, 0) if groups_B is None else places.groups(groups_B)
    values_NL, success_N = None, final_N >= SUCCESS
    if values_BT is not None:
        check_shapes(index.mask_BT, values_BT=values_BT)
        values_NL = places.pack(values_BT)
    if successes_B is not None:
        success_N = places.reduce_rows(successes_B, "successes_B") != 0
    batch = Packed(
        rewards_NL=rewards_NL,
        mask_NL=places.pack(index.mask_BT),
        lengths_N=index.lengths_N,
        final_N=final_N,
        group_N=group_N,
        groups=groups,
        values_NL=values_NL,
        baseline_N=None if baselines_B is None else places.reduce_rows(baselines_B, "baselines_B"),
        success_N=success_N,
        gamma=gamma,
        lam=lam,
        norm_by_std=norm_by_std,
        single_member=single_member,
    )
    estimate = _check_estimate(name, ESTIMATORS.call(name, estimator.function, batch), batch)
    return places.unpack(estimate.advantages_NL), places.unpack(estimate.returns_NL)


def _check_estimate(name: str, estimate: object, batch: Packed) -> Estimate:
    """Return an estimator's result. Raises `ConfigError` unless it is an estimate of this batch."""
    shape = tuple(batch.mask_NL.shape)
    if not isinstance(estimate, Estimate) or any(tuple(x_NL.shape) != shape for x_NL in estimate):
        own = [tuple(x.shape) for x in estimate] if isinstance(estimate, Estimate) else estimate
        raise ConfigError(
            f"algorithm.adv_estimator={name!r} returned {own!r:.200}; return "
            f"Estimate(advantages_NL, returns_NL) with tensors of the shape {shape!r} of "
            "batch.mask_NL"
        )
    if not all(bool(x_NL[batch.mask_NL].isfinite().all()) for x_NL in estimate):
        raise ConfigError(
            f"algorithm.adv_estimator={name!r} returned NaN or infinity for a trained token; "
            "check for division by a group's standard deviation, which is 0 for equal rewards"
        )
    return estimate
