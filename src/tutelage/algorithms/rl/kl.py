"""KL divergence from a reference policy: estimators per token, and controllers of its coefficient.

With `k = logp - ref_logp` at a token that the policy sampled:

| kind | value | |
|---|---|---|
| `kl`, `k1` | k | unbiased, noisy; as a loss its expected gradient is 0 |
| `abs` | abs(k) | |
| `mse`, `k2` | k^2 / 2 | biased value, right gradient |
| `low_var_kl`, `k3` | clip(exp(x) - x - 1, -10, 10), x = clip(-k, -20, 20) | unbiased, calm |
| `full` | sum_v p_v (log p_v - log q_v) | exact, from the logits of both models |
| any but `full`, then `+` | the estimator's value with k2's gradient | straight-through |

Source: J. Schulman, "Approximating KL divergence" (2020); the adaptive controller is that of
Ziegler et al. (arXiv 1909.08593). The penalty enters the reward (`kl_in_reward`) or the loss
(through `aggregate.py`).

Legend: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tutelage.algorithms.rl.lookup import unknown_name_error
from tutelage.errors import ConfigError


def _k1(k_BT: Tensor) -> Tensor:
    return k_BT


def _k2(k_BT: Tensor) -> Tensor:
    return 0.5 * k_BT.square()


def _k3(k_BT: Tensor) -> Tensor:
    x_BT = (-k_BT).clamp(-20.0, 20.0)
    return (torch.expm1(x_BT) - x_BT).clamp(-10.0, 10.0)


_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "kl": _k1,
    "k1": _k1,
    "abs": torch.abs,
    "mse": _k2,
    "k2": _k2,
    "low_var_kl": _k3,
    "k3": _k3,
}

KL_KINDS: tuple[str, ...] = (*_ESTIMATORS, "full", *(f"{name}+" for name in _ESTIMATORS))
"""The values of `algorithm.kl_penalty` and `actor.kl_loss_type`."""


def kl_penalty(logp_BT: Tensor, ref_logp_BT: Tensor, kind: str) -> Tensor:
    """Return the KL penalty of each token [B, T]; the kinds are listed in the module's docstring.

    For `full` give the logits [B, T, V] of both models instead, divided by the sampling
    temperature first. Raises `ConfigError` for an unknown kind, `ValueError` when the shapes
    differ.
    """
    if kind == "full":
        return _full_kl(logp_BT, ref_logp_BT)
    estimator = _ESTIMATORS.get(kind.removesuffix("+"))
    if estimator is None or kind not in KL_KINDS:
        raise unknown_name_error(kind, KL_KINDS, "kl kind")
    if logp_BT.shape != ref_logp_BT.shape:
        raise ValueError(
            f"logp_BT has shape {tuple(logp_BT.shape)!r} but ref_logp_BT has "
            f"{tuple(ref_logp_BT.shape)!r}; both must be [rows, tokens]"
        )
    k_BT = logp_BT - ref_logp_BT
    if not kind.endswith("+"):
        return estimator(k_BT)
    slope_BT = _k2(k_BT)
    # The bracket is an exact 0, so the value keeps every bit of the estimator's.
    return estimator(k_BT).detach() + (slope_BT - slope_BT.detach())


def _full_kl(logits_BTV: Tensor, ref_logits_BTV: Tensor) -> Tensor:
    """Compute the exact `KL(policy || reference)` at each position [B, T], with gradient to both.

    A token that the policy cannot sample
    (logit of minus infinity) adds 0. Raises `ValueError` unless both are [B, T, V] alike.
    """
    if logits_BTV.ndim != 3 or logits_BTV.shape != ref_logits_BTV.shape:
        raise ValueError(
            f"full KL needs the logits [rows, tokens, vocabulary] of both models, got shapes "
            f"{tuple(logits_BTV.shape)!r} and {tuple(ref_logits_BTV.shape)!r}"
        )
    logp_BTV = torch.log_softmax(logits_BTV, dim=-1)
    ref_logp_BTV = torch.log_softmax(ref_logits_BTV, dim=-1)
    impossible_BTV = logp_BTV == -torch.inf
    ratio_BTV = (logp_BTV - ref_logp_BTV).masked_fill(impossible_BTV, 0)
    return (logp_BTV.exp() * ratio_BTV).sum(dim=-1)


def kl_gradient_ratio(
    logp_BT: Tensor, ref_logp_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, kind: str
) -> float | None:
    """Return the gradient norm of the KL loss relative to that of the policy loss, both with
    respect to log-probabilities. None if no scored token has an advantage; unscored tokens are
    NaN."""
    pushed_BT = mask_BT & (advantages_BT != 0) & ~logp_BT.isnan()
    logp_K = logp_BT[pushed_BT].requires_grad_()
    if not logp_K.numel():
        return None
    kind = "k2" if kind.startswith("full") else kind
    kl_penalty(logp_K, ref_logp_BT[pushed_BT], kind).sum().backward()
    assert logp_K.grad is not None, "every estimator depends on the policy"
    return float(logp_K.grad.norm() / advantages_BT[pushed_BT].norm())


def kl_in_reward(scores_BT: Tensor, kl_BT: Tensor, mask_BT: Tensor, beta: float) -> Tensor:
    """Compute `r[t] = score[t] - beta * kl[t] * m[t]` [B, T], without gradient to the KL."""
    return scores_BT - beta * kl_BT.detach().masked_fill(mask_BT == 0, 0)


@dataclass(slots=True)
class AdaptiveKL:
    """Adaptive KL coefficient, which keeps the measured KL near `target`.

    `coef *= 1 + clip(kl / target - 1, -0.2, 0.2) * n / horizon`: after about `horizon` rollouts
    with a KL far from the target the coefficient has changed by a fifth. `coef` is the whole state.
    """

    coef: float
    target: float
    horizon: float

    def __post_init__(self) -> None:
        for name in ("target", "horizon"):
            value: float = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                key = "target_kl" if name == "target" else name
                raise ConfigError(f"algorithm.kl_ctrl.{key}={value!r} must be a positive number")

    def update(self, kl: float, n: int) -> float:
        """Adapt the coefficient to the mean KL of a batch of `n` rollouts and return it."""
        if not math.isfinite(kl):
            raise ValueError(f"the measured KL must be finite, got {kl!r}")
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        self.coef *= 1.0 + error * n / self.horizon
        return self.coef
