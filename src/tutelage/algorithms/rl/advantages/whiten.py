"""Whitening: mean 0 and variance 1 over the trained tokens of the optimizer batch.

Used by `gae.py`, `reinforce_plus_plus.py` and `reinforce_plus_plus_baseline.py`. Pass the whole
batch at once, since a part of it has different statistics.

Legend: B rows (or rollouts), T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def whiten(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Compute `(x - mu) / sqrt(var + 1e-8)` where the mask is 1, and exactly 0 elsewhere.

    `mu` and `var` (n - 1) are over the tokens with mask 1. A single such token, or equal values,
    give 0.
    """
    trained = mask_BT != 0
    out_BT = torch.zeros_like(x_BT)
    x_K = x_BT[trained]
    if x_K.numel() == 0:
        return out_BT
    # Shifting by the least one first keeps equal numbers equal to their mean, to the last bit.
    shifted_K = x_K - x_K.min()
    centred_K = shifted_K - shifted_K.mean()
    variance = centred_K.square().sum() / max(1, x_K.numel() - 1)
    out_BT[trained] = centred_K / (variance + 1e-8).sqrt()
    return out_BT
