"""The critic's loss: squared error to the returns, with PPO's clip of the change of values.

`0.5 * agg(max((v - G)^2, (clip(v, v_old - c, v_old + c) - G)^2))`, c = 0.5, with the aggregation
`token-mean`: the denominator is the number of trained tokens of the optimizer batch. Returns come
from `rl/advantages/gae.py`. Source: PPO (arXiv 1707.06347) as in its reference code.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from torch import Tensor

from tutelage.algorithms.rl.aggregate import aggregate_indexed
from tutelage.algorithms.rl.index import Ids, RolloutIndex, check_shapes
from tutelage.errors import ConfigError


def value_loss(
    values_BT: Tensor,
    returns_BT: Tensor,
    old_values_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip: float = 0.5,
    rollouts_B: Ids | None = None,
    denominator: float | Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the loss (0-dim, with gradient to `values_BT`) and the fraction of clipped tokens.

    All tensors are [B, T]. `denominator` is the optimizer batch's number of trained tokens, so that
    rows may be split in any way. Raises `ValueError` for wrong shapes, `ConfigError` for a negative
    clip.
    """
    if not clip >= 0:
        raise ConfigError(f"critic clip={clip!r} must be at least 0")
    check_shapes(mask_BT, values_BT=values_BT, returns_BT=returns_BT, old_values_BT=old_values_BT)
    index = RolloutIndex.build(mask_BT, rollouts_B)
    # Filled before any arithmetic, so that a NaN in padding reaches no gradient.
    values_BT, returns_BT, old_BT = (
        x_BT.masked_fill(~index.mask_BT, 0)
        for x_BT in (values_BT, returns_BT.detach(), old_values_BT.detach())
    )
    clipped_BT = values_BT.clamp(old_BT - clip, old_BT + clip)
    plain_BT = (values_BT - returns_BT).square()
    held_BT = (clipped_BT - returns_BT).square()
    loss = 0.5 * aggregate_indexed(
        plain_BT.maximum(held_BT), index, "token-mean", denominator=denominator
    )
    active_BT = (held_BT > plain_BT).detach().to(values_BT.dtype)
    return loss, aggregate_indexed(active_BT, index, "token-mean")


def explained_variance(values_K: Tensor, returns_K: Tensor) -> float:
    """Compute `1 - Var(G - V) / Var(G)`, or 0 if G is constant; 1 means exact values."""
    spread = float(returns_K.var(correction=0)) if returns_K.numel() else 0.0
    if spread < 1e-12:
        return 0.0
    return 1.0 - float((returns_K - values_K).var(correction=0)) / spread
