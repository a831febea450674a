"""Compute a loss from advantages: one function for eight policy losses, each in its own file.

`policy_loss` sets masked values to 0, calls the mode's loss (one value per token) and averages with
`../aggregate.py`. `common.py` has the inputs of a loss, `algorithms/extensions.py` the registry and
the declarations. Losses of a whole sequence (`gspo`, `geo_mean`, and any mode under
`seq-mean-token-mean`) need all rows of a rollout in the same micro-batch; losses that select tokens
of the whole batch (`clip_cov`, `kl_cov`) take the selection as an option.

Legend: B rows, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from tutelage.algorithms.extensions import LOSSES, Loss
from tutelage.algorithms.rl.aggregate import aggregate_indexed
from tutelage.algorithms.rl.index import Ids, RolloutIndex, check_shapes
from tutelage.algorithms.rl.kl import kl_penalty
from tutelage.algorithms.rl.lookup import unknown_name_error
from tutelage.algorithms.rl.losses.common import LossInputs, TokenLoss
from tutelage.errors import ConfigError
from tutelage.tools.loading import is_file_reference

COMMON_OPTIONS = ("weights_BT", "scale")


def policy_loss(
    mode: str,
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_ratio: float | None = None,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 3.0,
    aggregation: str | None = None,
    rollouts_B: Ids | None = None,
    denominator: float | Tensor | None = None,
    **mode_options: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the policy loss of rows (0-dim, gradient to `logp_BT` only) and its metrics.

    All tensors are [B, T]. `clip_ratio` is the default of low and high; a clip bound or an
    `aggregation` of None is the mode's default (`LOSSES`). `denominator` is the
    `aggregation_denominator` of the whole optimizer batch: with it the losses of micro-batches add
    up; without it these rows are the whole batch. Values where the mask is 0 are not read.

    Options of every mode: `weights_BT` (from `importance_weights`; multiplies each token's loss, no
    gradient) and `scale` (of `seq-mean-token-sum-norm`, if there is no denominator). Options of one
    mode are the keyword arguments of its function: `tau_pos`, `tau_neg` (sapo); `clip_cov_ratio`,
    `clip_cov_lb`, `clip_cov_ub`, `selection_BT`, `generator` (clip_cov); `kl_cov_ratio`,
    `ppo_kl_coef`, `selection_BT` (kl_cov).

    The metrics are detached 0-dim tensors over the trained tokens of these rows: `clip_fraction`
    (tokens whose loss a clip or selection changed), `approx_kl` (mean k3 of the old policy against
    the new), `ratio_max` (greatest q) and `tokens` (their number). `merge_metrics` combines
    micro-batches: means weighted by `tokens`, and the greatest `ratio_max`.

    Raises `ConfigError` for an unknown mode, aggregation or option and a clip out of range,
    `ValueError` for wrong shapes.
    """
    loss = LOSSES.find(mode)
    known = [*COMMON_OPTIONS, *loss.options]
    for name in mode_options:
        if name not in known:
            raise unknown_name_error(name, known, f"option of loss_mode {mode!r}")
    weights_BT: Tensor | None = mode_options.pop("weights_BT", None)
    scale: float | None = mode_options.pop("scale", None)
    check_shapes(mask_BT, logp_BT=logp_BT, old_logp_BT=old_logp_BT, advantages_BT=advantages_BT)
    for name, extra_BT in (("weights_BT", weights_BT), *mode_options.items()):
        if isinstance(extra_BT, Tensor):
            check_shapes(mask_BT, **{name: extra_BT})
    index = RolloutIndex.build(mask_BT, rollouts_B)
    low, high = _resolve_clip_range(loss, clip_ratio, clip_ratio_low, clip_ratio_high, clip_ratio_c)
    inputs = LossInputs(  # without masked values: a NaN in padding has no effect
        logp_BT=logp_BT.masked_fill(~index.mask_BT, 0),
        old_logp_BT=old_logp_BT.detach().masked_fill(~index.mask_BT, 0),
        advantages_BT=advantages_BT.detach().masked_fill(~index.mask_BT, 0),
        index=index,
        low=low,
        high=high,
        dual=clip_ratio_c,
    )
    token = _check_loss(mode, LOSSES.call(mode, loss.function, inputs, **mode_options), inputs)
    loss_BT = token.loss_BT
    if weights_BT is not None:
        loss_BT = loss_BT * weights_BT.detach().masked_fill(~index.mask_BT, 0)
    way = aggregation or loss.aggregation
    value = aggregate_indexed(loss_BT, index, way, denominator=denominator, scale=scale)
    return value, _compute_metrics(inputs, token.clipped_BT)


def _check_loss(mode: str, token: object, inputs: LossInputs) -> TokenLoss:
    """Validate the result of a loss. Raises `ConfigError` if it has no gradient or the wrong shape.

    The values of a user's loss must be finite too.
    """
    shape, name = tuple(inputs.logp_BT.shape), type(token).__name__
    shapes = [getattr(x, "shape", None) for x in token] if isinstance(token, TokenLoss) else []
    if isinstance(token, TokenLoss) and shapes == [shape, shape]:
        if inputs.logp_BT.requires_grad and not token.loss_BT.requires_grad:
            raise ConfigError(
                f"actor.policy_loss.loss_mode={mode!r} returned a loss without a gradient; compute "
                "it from inputs.logp_BT, inputs.ratio_BT or inputs.log_ratio_BT without detaching"
            )
        if is_file_reference(mode) and not bool(token.loss_BT.isfinite().all()):
            raise ConfigError(
                f"actor.policy_loss.loss_mode={mode!r} returned a loss that is not finite for some "
                "tokens; check it for divisions by zero, logarithms and exponentials"
            )
        return token
    actual = [x if x is None else tuple(x) for x in shapes]
    raise ConfigError(
        f"actor.policy_loss.loss_mode={mode!r} returned a {name}"
        f"{f' of the shapes {actual}' if shapes else ''}; return "
        f"TokenLoss(loss_BT, clipped_BT) with tensors of the shape {shape!r} of inputs.logp_BT"
    )


def merge_metrics(metrics: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Merge the metrics that `policy_loss` returned for several micro-batches."""
    known = list(metrics)
    if not known:
        raise ValueError("no metrics to merge; pass the metrics of at least one micro-batch")
    tokens = torch.stack([part["tokens"] for part in known])
    merged = {"tokens": tokens.sum()}
    merged["ratio_max"] = torch.stack([part["ratio_max"] for part in known]).max()
    for name in ("clip_fraction", "approx_kl"):
        values = torch.stack([part[name] for part in known])
        merged[name] = (values * tokens).sum() / merged["tokens"].clamp(min=1)
    return merged


@torch.no_grad()
def _compute_metrics(inputs: LossInputs, clipped_BT: Tensor) -> dict[str, Tensor]:
    index = inputs.index
    ratio_BT = inputs.ratio_BT.masked_fill(~index.mask_BT, 0)
    divergence_BT = kl_penalty(inputs.old_logp_BT, inputs.logp_BT.detach(), "k3")
    return {
        "clip_fraction": aggregate_indexed(clipped_BT.to(ratio_BT.dtype), index, "token-mean"),
        "approx_kl": aggregate_indexed(divergence_BT, index, "token-mean"),
        "ratio_max": ratio_BT.max() if ratio_BT.numel() else ratio_BT.new_zeros(()),
        "tokens": index.lengths_N.sum(),
    }


def _resolve_clip_range(
    loss: Loss, default: float | None, low: float | None, high: float | None, dual: float
) -> tuple[float, float]:
    own = (default, default) if default is not None else loss.clip or (0.0, 0.0)
    low = own[0] if low is None else low
    high = own[1] if high is None else high
    for name, value in (("clip_ratio_low", low), ("clip_ratio_high", high)):
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"actor.{name}={value!r} must be a number of at least 0")
    if not dual > 1:
        raise ConfigError(f"actor.clip_ratio_c={dual!r} must be above 1 (the default is 3.0)")
    return low, high
