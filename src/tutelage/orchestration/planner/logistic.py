"""Logistic regression by Newton's method, its weights held to given ones: small, exact, the same
each time.

A whole step overshoots where the first weights are sure and wrong, and may then swing between two
places for ever; a step that does not lower the loss is halved until it does.
"""

from __future__ import annotations

import torch
from torch import Tensor

_STEPS = 100
_HALVED = 50
"""Times that a step is halved at most."""
_DONE = 1e-9
_NOISE = 1e-12
"""Share of the loss that a step may add by rounding."""


def fit_logistic(
    rows_BS: Tensor, wanted_B: Tensor, pull_S: Tensor, first_S: Tensor | None = None
) -> Tensor:
    """(S,) weights that make `wanted_B` (0 or 1) most probable, less `pull_S` / 2 times the squared
    distance from `first_S`, by default 0. All are of double precision."""
    first = torch.zeros_like(pull_S) if first_S is None else first_S

    def loss(weights: Tensor) -> float:
        scores = rows_BS @ weights
        missed = torch.nn.functional.softplus(scores).sum() - wanted_B @ scores
        return float(missed + (pull_S * (weights - first) ** 2).sum() / 2)

    weights, now = first.clone(), loss(first)
    for _ in range(_STEPS):
        chance = torch.sigmoid(rows_BS @ weights)
        slope = rows_BS.T @ (chance - wanted_B) + pull_S * (weights - first)
        curve = (rows_BS * (chance * (1 - chance))[:, None]).T @ rows_BS + pull_S.diag()
        step = torch.linalg.solve(curve, slope)
        for _ in range(_HALVED):
            if loss(weights - step) <= now + _NOISE * abs(now):
                break
            step = step / 2
        weights = weights - step
        now = loss(weights)
        if float(step.abs().max()) < _DONE:
            break
    return weights
