"""The covariance that makes entropy fall: centred advantage times centred log-probability.

`clip_cov.py` and `kl_cov.py` act on the few tokens where it is large. Means and selections are
those of the whole optimizer batch: select once, before micro-batches, from the log-probabilities
that the step starts with (`old_logp`), and hand each micro-batch its rows of the selection.

Source: Cui et al., arXiv 2505.22617. Legend: B rows, T tokens, K trained tokens of the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tutelage.algorithms.rl.index import check_shapes
from tutelage.errors import ConfigError


def covariance_K(logp_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`(A - mean A) * (logp - mean logp)` of each trained token, in row order, no gradient."""
    check_shapes(mask_BT, logp_BT=logp_BT, advantages_BT=advantages_BT)
    trained = mask_BT != 0
    logp_K, advantages_K = logp_BT.detach()[trained], advantages_BT.detach()[trained]
    return (advantages_K - advantages_K.mean()) * (logp_K - logp_K.mean())


def share(ratio: float, tokens: int, key: str) -> int:
    """How many of `tokens` a ratio means: at least one. Raises `ConfigError` outside (0, 1]."""
    if not 0 < ratio <= 1:
        raise ConfigError(f"actor.policy_loss.{key}={ratio!r} must be above 0 and at most 1")
    return max(1, int(ratio * tokens))


def mark(mask_BT: Tensor, chosen_K: Tensor) -> Tensor:
    """[B, T] bool that is true at the trained tokens with the numbers `chosen_K`."""
    trained = mask_BT != 0
    flags_K = torch.zeros(int(trained.sum()), dtype=torch.bool, device=mask_BT.device)
    flags_K[chosen_K] = True
    selection_BT = torch.zeros_like(trained)
    selection_BT[trained] = flags_K
    return selection_BT
