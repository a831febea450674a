"""Logistic regression by Newton's method, its weights held to given ones: small, exact, the same
each time."""

from __future__ import annotations

import torch
from torch import Tensor

_STEPS = 50
_DONE = 1e-9


def fit_logistic(
    rows_BS: Tensor, wanted_B: Tensor, pull_S: Tensor, first_S: Tensor | None = None
) -> Tensor:
    """(S,) weights that make `wanted_B` (0 or 1) most probable, less `pull_S` / 2 times the squared
    distance from `first_S`, by default 0. All are of double precision."""
    first = torch.zeros_like(pull_S) if first_S is None else first_S
    weights = first.clone()
    for _ in range(_STEPS):
        chance = torch.sigmoid(rows_BS @ weights)
        slope = rows_BS.T @ (chance - wanted_B) + pull_S * (weights - first)
        curve = (rows_BS * (chance * (1 - chance))[:, None]).T @ rows_BS + pull_S.diag()
        step = torch.linalg.solve(curve, slope)
        weights = weights - step
        if float(step.abs().max()) < _DONE:
            break
    return weights
