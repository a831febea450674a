"""REINFORCE++: discounted rewards to go, whitened over the whole batch; no critic, no groups.

    G[t] = r[t] + gamma * G[t'], t' the next trained token;  A = whiten(G)

Source: Hu, arXiv 2501.03262. Denominator: the batch's trained tokens (whitening). Returns: G.
We differ from verl b178a3cd, which zeroes the return of turns before an observation (fixed
upstream by PR 7300): G goes on across observations, and across the rows of a rollout.
Shapes: N rollouts, L trained tokens of a rollout.
"""

from __future__ import annotations

from tutelage.algorithms.extensions import estimator
from tutelage.algorithms.rl.advantages.discount import discounted_sum
from tutelage.algorithms.rl.advantages.packed import Estimate, Packed
from tutelage.algorithms.rl.advantages.whiten import whiten


@estimator(chains=1, settings=("algorithm.gamma",))
def reinforce_plus_plus(batch: Packed) -> Estimate:
    """Return whitened discounted returns."""
    returns_NL = discounted_sum(batch.rewards_NL, batch.gamma)
    return Estimate(whiten(returns_NL, batch.mask_NL), returns_NL)
