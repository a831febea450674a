"""The recursion over tokens: discounted sums from right to left, of all rollouts at once.

`gae.py` sums temporal differences with it, `reinforce_plus_plus.py` and `remax.py` rewards.

Legend: N rollouts, L trained tokens of a rollout (zeros in the padding on the right).
"""

from __future__ import annotations

import torch
from torch import Tensor


def discounted_sum(x_NL: Tensor, factor: float) -> Tensor:
    """Compute `y[t] = x[t] + factor * y[t + 1]` [N, L]. Zeros in the padding stay zero."""
    running_N = x_NL.new_zeros(x_NL.shape[0])
    columns: list[Tensor] = []
    for x_N in reversed(x_NL.unbind(dim=1)):
        running_N = x_N + factor * running_N
        columns.append(running_N)
    return torch.stack(columns[::-1], dim=1) if columns else x_NL.clone()
