"""Intervals and comparisons: one owner of statistics for the whole package.

Success rates get Wilson's interval, which is sound for few tasks and rates near 0 or 1; differences
between two agents on the same tasks get a paired bootstrap over tasks. Pure functions, NumPy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np

Z95 = 1.959963984540054


def wilson(successes: int, total: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate (Wilson 1927). (0, 1) when there are no trials."""
    if total == 0:
        return 0.0, 1.0
    rate = successes / total
    centre = (rate + z * z / (2 * total)) / (1 + z * z / total)
    half = z * sqrt(rate * (1 - rate) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of b - a over tasks, its 95 % interval, and on how many tasks which one was better."""

    mean: float
    low: float
    high: float
    wins: int
    losses: int
    ties: int


def paired_bootstrap(
    a: Sequence[float], b: Sequence[float], rng: np.random.Generator, draws: int = 10_000
) -> Difference:
    """Resample tasks with replacement; `a[i]` and `b[i]` belong to the same task."""
    if len(a) != len(b) or not a:
        raise ValueError(f"need two equally long, non-empty lists, not {len(a)} and {len(b)}")
    gaps = np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)
    picks = rng.integers(0, len(gaps), size=(draws, len(gaps)))
    low, high = np.quantile(gaps[picks].mean(axis=1), [0.025, 0.975])
    return Difference(
        mean=float(gaps.mean()),
        low=float(low),
        high=float(high),
        wins=int((gaps > 0).sum()),
        losses=int((gaps < 0).sum()),
        ties=int((gaps == 0).sum()),
    )


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p-value of wins against losses at odds of 1:1; ties stand aside.

    Sound for the fewest tasks, where a bootstrap is too sure. 1 when there are only ties.
    """
    total = wins + losses
    tail = sum(comb(total, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**total)
