"""KL-Cov: the unclipped surrogate, and a KL penalty at the tokens of highest covariance.

    L = -A q, plus ppo_kl_coef * abs(d) at the selected tokens

Selected: the `kl_cov_ratio` (2e-4, at least one) of the batch's trained tokens with the greatest
centred A * logp. The coefficient is 0.1 by default, as in verl's configuration (the paper's scripts
set 1 for it).

Source: Cui et al., arXiv 2505.22617. Shapes [B, T]. Denominator: that of the aggregation, over the
optimizer batch. Pass `selection_BT`, made once per optimizer batch by `select_kl_cov`: without it
the rows of the call are taken to be the whole batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tutelage.algorithms.extensions import loss
from tutelage.algorithms.rl.losses.common import LossInputs, TokenLoss
from tutelage.algorithms.rl.losses.covariance import count_selected, covariance_K, mark_tokens


def select_kl_cov(
    logp_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, *, kl_cov_ratio: float = 2e-4
) -> Tensor:
    """Return a bool mask [B, T] of the tokens of an optimizer batch to penalise."""
    covariances_K = covariance_K(logp_BT, advantages_BT, mask_BT)
    wanted = count_selected(kl_cov_ratio, covariances_K.numel(), "kl_cov_ratio")
    # Stable, so that equal covariances are taken in row order on every machine.
    ranked = covariances_K.argsort(descending=True, stable=True)
    return mark_tokens(mask_BT, ranked[:wanted])


@loss(select=select_kl_cov, zero_advantages=True)
def kl_cov(
    inputs: LossInputs,
    *,
    kl_cov_ratio: float = 2e-4,
    ppo_kl_coef: float = 0.1,
    selection_BT: Tensor | None = None,
) -> TokenLoss:
    """Return the unclipped surrogate of each token, with a KL penalty at the selected tokens."""
    if selection_BT is None:
        selection_BT = select_kl_cov(
            inputs.logp_BT,
            inputs.advantages_BT,
            inputs.index.mask_BT,
            kl_cov_ratio=kl_cov_ratio,
        )
    loss_BT = -inputs.advantages_BT * inputs.ratio_BT
    penalty_BT = ppo_kl_coef * inputs.log_ratio_BT.abs()
    loss_BT = torch.where(selection_BT != 0, loss_BT + penalty_BT, loss_BT)
    return TokenLoss(loss_BT, torch.zeros_like(inputs.index.mask_BT))
