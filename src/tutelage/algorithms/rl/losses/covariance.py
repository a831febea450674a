"""The covariance of advantage and log-probability, which lowers the entropy of the policy.

`clip_cov.py` and `kl_cov.py` act on the few tokens where it is large. Means and selections are
over the whole optimizer batch: select once, before splitting micro-batches, from the
log-probabilities at the start of the step (`old_logp`), and pass each micro-batch its rows.

Source: Cui et al., arXiv 2505.22617. Legend: B rows, T tokens, K trained tokens of the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tutelage.algorithms.rl.index import check_shapes
from tutelage.errors import ConfigError


def covariance_K(logp_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Compute `(A - mean A) * (logp - mean logp)` of each trained token [K], without gradient."""
    check_shapes(mask_BT, logp_BT=logp_BT, advantages_BT=advantages_BT)
    trained = mask_BT != 0
    logp_K, advantages_K = logp_BT.detach()[trained], advantages_BT.detach()[trained]
    return (advantages_K - advantages_K.mean()) * (logp_K - logp_K.mean())


def count_selected(ratio: float, tokens: int, key: str) -> int:
    """Return the number of tokens selected by `ratio`, at least 1. Raises `ConfigError` for a ratio
    outside (0, 1]."""
    if not 0 < ratio <= 1:
        raise ConfigError(f"actor.policy_loss.{key}={ratio!r} must be above 0 and at most 1")
    return max(1, int(ratio * tokens))


def mark_tokens(mask_BT: Tensor, index_K: Tensor) -> Tensor:
    """Return a mask [B, T] that is True at the trained tokens with the indices `index_K`."""
    trained = mask_BT != 0
    flags_K = torch.zeros(int(trained.sum()), dtype=torch.bool, device=mask_BT.device)
    flags_K[index_K] = True
    selection_BT = torch.zeros_like(trained)
    selection_BT[trained] = flags_K
    return selection_BT
