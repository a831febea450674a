"""Weights that correct the mismatch between the sampler and the trainer.

The same weights give slightly different log-probabilities in the engine that sampled (mu) and in
the trainer (pi_old). The ratio `rho = pi_old / mu` corrects this and is separate from the policy's
ratio pi / pi_old: it multiplies each token's loss (`policy_loss(..., weights_BT=...)`) and has no
gradient. With
`rho_t = exp(clip(log_ratio_t, -20, 20))` and `rho = exp(clip(sum_t log_ratio_t, -20, 20))`:

| level | weight of a trained token | source |
|---|---|---|
| `none` | 1 | |
| `token_tis` | min(rho_t, cap) | truncated importance sampling, Yao et al. (2025) |
| `sequence_tis` | min(rho, cap) | the same on the whole sequence |
| `sequence_mask` | rho where rho <= cap, else 0 | masked importance sampling, Liu et al. (2025) |
| `icepop` | rho_t where 1/cap <= rho_t <= cap, else 0 | IcePop, Ling team (2025) |

Legend: B rows, T tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tutelage.algorithms.rl.index import Ids, RolloutIndex, check_shapes
from tutelage.algorithms.rl.lookup import unknown_name_error
from tutelage.errors import ConfigError

CORRECTIONS: tuple[str, ...] = ("none", "token_tis", "sequence_tis", "sequence_mask", "icepop")
"""The levels of correction."""


@torch.no_grad()
def importance_weights(
    log_ratio_BT: Tensor,
    mask_BT: Tensor,
    level: str,
    cap: float,
    *,
    rollouts_B: Ids | None = None,
) -> Tensor:
    """Return the weight of each token [B, T], without gradient and exactly 0 where the mask is 0.

    `log_ratio_BT` is the trainer's log-probability minus the sampler's. A sequence is a row, or
    with `rollouts_B` a rollout, all of whose rows must then be passed together. Raises
    `ConfigError` for an unknown level or a cap below 1.
    """
    if level not in CORRECTIONS:
        raise unknown_name_error(level, CORRECTIONS, "correction")
    if not (math.isfinite(cap) and cap >= 1):
        raise ConfigError(f"correction cap={cap!r} must be a number of at least 1, such as 2.0")
    check_shapes(mask_BT, log_ratio_BT=log_ratio_BT)
    index = RolloutIndex.build(mask_BT, rollouts_B)
    log_BT = log_ratio_BT.masked_fill(~index.mask_BT, 0)
    if level.startswith("sequence"):
        log_BT = index.rows_B1(index.sum_N(log_BT)).expand_as(log_BT)
    rho_BT = log_BT.clamp(-20.0, 20.0).exp()
    if level == "none":
        rho_BT = torch.ones_like(log_BT)
    elif level in ("token_tis", "sequence_tis"):
        rho_BT = rho_BT.clamp(max=cap)
    else:
        low = 1.0 / cap if level == "icepop" else 0.0
        rho_BT = rho_BT.masked_fill((rho_BT > cap) | (rho_BT < low), 0)
    return rho_BT.masked_fill(~index.mask_BT, 0)
