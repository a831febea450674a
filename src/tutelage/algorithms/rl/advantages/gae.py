"""GAE: generalized advantage estimation with a critic.

Right to left over trained tokens, t' the next trained one (V' = A' = 0 after the last):

    delta[t] = r[t] + gamma * V[t'] - V[t]
    A[t] = delta[t] + gamma * lam * A[t']
    return[t] = A[t] + V[t]

then A is whitened over the trained tokens of the batch: (A - mu) / sqrt(var + 1e-8), n - 1.
Masked tokens take no step, and the recursion goes on across the rows of a rollout.

Source: Schulman et al., arXiv 1506.02438. Denominator: the batch's trained tokens (whitening).
We differ from verl in that both outputs are exactly 0 where the mask is 0.
Shapes: N rollouts, L trained tokens of a rollout.
"""

from __future__ import annotations

import torch

from tutelage.algorithms.extensions import estimator
from tutelage.algorithms.rl.advantages.discount import discounted_sum
from tutelage.algorithms.rl.advantages.packed import Estimate, Packed
from tutelage.algorithms.rl.advantages.whiten import whiten


@estimator(critic=True, chains=1, settings=("algorithm.gamma", "algorithm.lam"))
def gae(batch: Packed) -> Estimate:
    """Return whitened advantages and the critic's target returns. Requires `values_BT`."""
    values_NL = batch.values_NL
    if values_NL is None:
        raise ValueError("adv_estimator='gae' needs values_BT, the critic's value at each token")
    next_NL = torch.zeros_like(values_NL)
    next_NL[:, :-1] = values_NL[:, 1:]
    delta_NL = batch.rewards_NL + batch.gamma * next_NL - values_NL
    advantages_NL = discounted_sum(delta_NL, batch.gamma * batch.lam)
    return Estimate(whiten(advantages_NL, batch.mask_NL), advantages_NL + values_NL)
