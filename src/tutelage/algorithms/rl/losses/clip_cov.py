"""Clip-Cov: PPO's clip, without gradient at some random tokens of high covariance.

    L = max(-A q, -A clip(q, 1 - el, 1 + eh)), detached at the selected tokens

Selected: `clip_cov_ratio` (2e-4, at least one) of the batch's trained tokens, drawn at random among
those with centred A * logp in (`clip_cov_lb`, `clip_cov_ub`) = (1, 5).

PPO's clip is wide by default, as in the paper's script (el = eh = 1), since the selection replaces
it.

Source: Cui et al., arXiv 2505.22617. Shapes [B, T]. Denominator: that of the aggregation, over the
optimizer batch. Pass `selection_BT`, drawn once per optimizer batch by `select_clip_cov`: without
it the rows of the call are taken to be the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tutelage.algorithms.extensions import loss
from tutelage.algorithms.rl.losses.common import (
    LossInputs,
    TokenLoss,
    clipped_surrogate,
)
from tutelage.algorithms.rl.losses.covariance import count_selected, covariance_K, mark_tokens


def select_clip_cov(
    logp_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_cov_ratio: float = 2e-4,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return a bool mask [B, T] of the tokens of an optimizer batch to detach.

    `generator` is a CPU generator seeded from the run's seed tree; by default it is a new one with
    seed 0, never the global one.
    """
    covariances_K = covariance_K(logp_BT, advantages_BT, mask_BT)
    inside_K = (covariances_K > clip_cov_lb) & (covariances_K < clip_cov_ub)
    candidates = inside_K.nonzero().squeeze(1)
    wanted = count_selected(clip_cov_ratio, covariances_K.numel(), "clip_cov_ratio")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    drawn = torch.randperm(candidates.numel(), generator=generator)[:wanted]
    return mark_tokens(mask_BT, candidates[drawn.to(candidates.device)])


def _find_empty_range(
    *, clip_cov_lb: float, clip_cov_ub: float, **_: object
) -> Iterator[tuple[str, str, str]]:
    if clip_cov_lb >= clip_cov_ub:
        reason = f"not below clip_cov_ub={clip_cov_ub!r}, so no token could be selected"
        yield "clip_cov_lb", reason, "Lower it."


@loss(
    clip=(1.0, 1.0),
    select=select_clip_cov,
    wrong=_find_empty_range,
)
def clip_cov(
    inputs: LossInputs,
    *,
    clip_cov_ratio: float = 2e-4,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
    selection_BT: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> TokenLoss:
    """Return the clipped surrogate of each token, without gradient at the selected tokens."""
    if selection_BT is None:
        selection_BT = select_clip_cov(
            inputs.logp_BT,
            inputs.advantages_BT,
            inputs.index.mask_BT,
            clip_cov_ratio=clip_cov_ratio,
            clip_cov_lb=clip_cov_lb,
            clip_cov_ub=clip_cov_ub,
            generator=generator,
        )
    loss_BT, clipped_BT = clipped_surrogate(inputs, inputs.ratio_BT)
    selected_BT = selection_BT != 0
    return TokenLoss(torch.where(selected_BT, loss_BT.detach(), loss_BT), clipped_BT | selected_BT)
