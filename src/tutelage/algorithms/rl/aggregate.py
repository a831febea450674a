"""Average values per token to one loss, in four modes, all over the optimizer batch.

A loss is the sum of `x * weight` over trained tokens, divided by one `denominator`. The weight
depends on one rollout only and the denominator is computed once for the whole optimizer batch
(`aggregation_denominator`), so the losses of micro-batches add up to the loss of the batch, and so
do their gradients. The values come from `losses/`, `kl.py`, `entropy.py` and `value.py`.

| mode | sum over trained tokens of | denominator |
|---|---|---|
| `token-mean` | x | trained tokens |
| `seq-mean-token-sum` | x | rollouts |
| `seq-mean-token-mean` | x / trained tokens of its rollout | rollouts |
| `seq-mean-token-sum-norm` | x | rollouts * scale |

Rollouts without a trained token are not counted. A rollout counts once, whatever its number of
rows. `seq-mean-token-mean` needs the rollout's length: **its rows must be in the same
micro-batch**. The other modes allow any split.

Sources: DAPO (arXiv 2503.14476) for token-mean, Dr.GRPO (arXiv 2503.20783) for the fixed scale.
Legend: B rows, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tutelage.algorithms.rl.index import Ids, RolloutIndex, check_shapes
from tutelage.algorithms.rl.lookup import unknown_name_error
from tutelage.errors import ConfigError


@dataclass(frozen=True, slots=True)
class _Aggregation:
    """One aggregation mode: the weight of each token, and the denominator of the weighted sum."""

    token_mean: bool
    """True if values are divided by the number of trained tokens of their rollout."""
    count: Callable[[RolloutIndex], int]
    """Counts the trained tokens, or the rollouts with a trained token."""
    scaled: bool = False
    """True if the count is multiplied by `scale`."""


def _count_tokens(index: RolloutIndex) -> int:
    return int(index.lengths_N.sum())


def _count_rollouts(index: RolloutIndex) -> int:
    return int((index.lengths_N > 0).sum())


AGGREGATIONS: dict[str, _Aggregation] = {
    "token-mean": _Aggregation(token_mean=False, count=_count_tokens),
    "seq-mean-token-sum": _Aggregation(token_mean=False, count=_count_rollouts),
    "seq-mean-token-mean": _Aggregation(token_mean=True, count=_count_rollouts),
    "seq-mean-token-sum-norm": _Aggregation(token_mean=False, count=_count_rollouts, scaled=True),
}
"""The modes of `actor.loss_agg_mode`."""


def aggregation_denominator(
    mask_BT: Tensor, mode: str, *, rollouts_B: Ids | None = None, scale: float | None = None
) -> float:
    """Return the denominator of the loss over an optimizer batch, before it is split into
    micro-batches.

    `mask_BT` is the mask of the whole optimizer batch. `scale` is used by `seq-mean-token-sum-norm`
    only. The denominators of two batches without a common rollout may be added. A batch without
    trained tokens gives 0. Raises `ConfigError` for an unknown mode or a missing scale.
    """
    return _compute_denominator(RolloutIndex.build(mask_BT, rollouts_B), mode, scale)


def aggregate(
    x_BT: Tensor,
    mask_BT: Tensor,
    mode: str,
    *,
    rollouts_B: Ids | None = None,
    denominator: float | Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Average `x_BT` over the trained tokens by `mode`, as a 0-dim tensor of x's dtype.

    `denominator` is the `aggregation_denominator` of the whole optimizer batch, scale included;
    without it these rows are taken to be the whole batch. Values where the mask is 0, NaN included,
    affect neither the result nor the gradient. Without trained tokens the result is 0.
    """
    check_shapes(mask_BT, x_BT=x_BT)
    index = RolloutIndex.build(mask_BT, rollouts_B)
    return aggregate_indexed(x_BT, index, mode, denominator=denominator, scale=scale)


def aggregate_indexed(
    x_BT: Tensor,
    index: RolloutIndex,
    mode: str,
    *,
    denominator: float | Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Compute `aggregate` with a `RolloutIndex` instead of a mask and rollout ids."""
    way = _find_mode(mode)
    sums_N = index.mean_N(x_BT) if way.token_mean else index.sum_N(x_BT)
    total = sums_N.sum()
    if denominator is None:
        # Nothing to average: the sum is an exact 0 that keeps its place in the graph.
        return total / (_compute_denominator(index, mode, scale) or 1.0)
    if not _is_positive(denominator):
        if _count_tokens(index) == 0 and float(denominator) == 0:
            return total
        raise ValueError(
            f"denominator={denominator!r} must be positive; compute it over the whole optimizer "
            "batch with aggregation_denominator"
        )
    return total / denominator


def _find_mode(mode: str) -> _Aggregation:
    if mode not in AGGREGATIONS:
        raise unknown_name_error(mode, AGGREGATIONS, "actor.loss_agg_mode")
    return AGGREGATIONS[mode]


def _compute_denominator(index: RolloutIndex, mode: str, scale: float | None) -> float:
    way = _find_mode(mode)
    if not way.scaled:
        return float(way.count(index))
    if scale is None or not _is_positive(scale):
        # The padded width would do, and would make the loss depend on padding.
        raise ConfigError(
            f"actor.loss_agg_mode={mode!r} divides by a fixed length, but loss_scale_factor is "
            f"{scale!r}; set actor.loss_scale_factor to a positive number, such as "
            "rollout.response_length"
        )
    return way.count(index) * float(scale)


def _is_positive(number: float | Tensor) -> bool:
    value = float(number.detach()) if isinstance(number, torch.Tensor) else float(number)
    return math.isfinite(value) and value > 0
