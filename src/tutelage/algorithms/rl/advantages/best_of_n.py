"""Best of n: imitate the best rollout of each group, without a baseline.

    A = 1 where R = max_g R and the group is not flat, 0 else

All rollouts with the best reward count, since a choice among them would be arbitrary. In a flat
group, whose rewards are all equal, all advantages are 0, as in every other group estimator. A
single rollout gets 0 in both settings of `single_member`.

Source: best-of-n fine-tuning as in RAFT (Dong et al., arXiv 2304.06767), inside the RL loop.
Denominator: the rollouts of the group, for the maximum. Shapes: N rollouts, G groups.
"""

from __future__ import annotations

from tutelage.algorithms.extensions import estimator
from tutelage.algorithms.rl.advantages.groups import extreme_G, group_ids, over_tokens
from tutelage.algorithms.rl.advantages.packed import Estimate, Packed


@estimator(groups=True, lonely=False)
def best_of_n(batch: Packed) -> Estimate:
    """Return 1 for each rollout with its group's highest reward, 0 for other rollouts."""
    group_N, reward_N = group_ids(batch), batch.final_N
    best_N = extreme_G(reward_N, group_N, batch.groups, "amax")[group_N]
    worst_N = extreme_G(reward_N, group_N, batch.groups, "amin")[group_N]
    chosen_N = (reward_N == best_N) & (best_N > worst_N)
    return over_tokens(batch, chosen_N.to(reward_N.dtype))
