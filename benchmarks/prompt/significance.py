"""Tests and corrections of the comparison of searches, which are paired over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import NormalDist

import numpy as np


def sign_flip_test(gaps: Sequence[float], rng: np.random.Generator, draws: int = 20_000) -> float:
    """One-sided p-value of a mean above 0, by random signs of paired differences.

    The differences are taken to be symmetric about 0 under the null; at least 1 / (draws + 1).
    """
    if not gaps:
        raise ValueError("need at least one paired difference")
    values = np.asarray(gaps, dtype=np.float64)
    signs = rng.integers(0, 2, size=(draws, len(values)), dtype=np.int8) * 2 - 1
    # Sums of the same numbers in another order differ in the last digit; they are ties.
    reached = int(((signs @ values) >= values.sum() - 1e-12).sum())
    return (1 + reached) / (1 + draws)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (Holm 1979): p-values that hold for all comparisons at once."""
    ranked = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for place, index in enumerate(ranked):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = highest
    return corrected


def pairs_for_power(
    spread: float,
    effect: float,
    *,
    power: float = 0.9,
    level: float = 0.05,
    comparisons: int = 1,
    least: int = 30,
) -> int:
    """Pairs with which a one-sided test finds `effect`, when differences have this spread (sd).

    Normal approximation, the level divided by the number of comparisons (Holm's worst case).
    """
    if effect <= 0:
        raise ValueError(f"the effect {effect!r} must be above 0")
    normal = NormalDist()
    reach = normal.inv_cdf(1 - level / comparisons) + normal.inv_cdf(power)
    return max(least, ceil((reach * spread / effect) ** 2))
