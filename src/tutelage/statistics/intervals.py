"""Intervals and comparisons of success rates and rewards.

Success rates get Wilson's interval, which is sound for few tasks and rates near 0 or 1; means get a
t-interval, which a caller that knows the range of the values clips; differences between two agents
on the same tasks get a paired bootstrap over tasks. The unit is the task: several samples of one
task are not independent, so errors are clustered by task (Miller 2024, arXiv 2411.00640). Pure
functions, NumPy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import comb, nan, sqrt

import numpy as np

Z95 = 1.959963984540054
FEW = 50
"""Number of tasks below which the sign test decides, since a bootstrap is too sure."""
LEAST = 10
"""Number of independent tasks below which `reliable_interval` is undefined."""
LEVEL = 0.05


def wilson(successes: float, total: float, z: float = Z95) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a rate (Wilson 1927), or (0, 1) without trials.

    Neither number has to be whole: `rate_interval` counts effective trials.
    """
    if total == 0:
        return 0.0, 1.0
    rate = successes / total
    centre = (rate + z * z / (2 * total)) / (1 + z * z / total)
    half = z * sqrt(rate * (1 - rate) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    low = max(0.0, centre - half) if successes else 0.0  # which rounding would miss
    return low, min(1.0, centre + half)


def _clustered_variance(values: Sequence[float], tasks: Sequence[str]) -> float | None:
    """Return the variance of the mean of `values`, clustered by task; None for fewer than two
    tasks.

    `m / (m - 1) / n^2 * sum over tasks (sum over its samples (x - mean))^2` with m tasks and n
    samples.
    """
    mean, sums = sum(values) / max(1, len(values)), dict[str, float]()
    for value, task in zip(values, tasks, strict=True):
        sums[task] = sums.get(task, 0.0) + value - mean
    count = len(sums)
    if count < 2:
        return None
    return count / (count - 1) * sum(x * x for x in sums.values()) / len(values) ** 2


def rate_interval(wins: Sequence[bool], tasks: Sequence[str]) -> tuple[float, float]:
    """Return the 95 % interval of a success rate; `tasks[i]` is the task of the i-th rollout.

    Wilson's interval for the effective number of rollouts: the number of independent ones with the
    same variance, at least the number of tasks and at most the number of rollouts.
    """
    total, count = len(wins), len({*tasks})
    if total == 0:
        return wilson(0, 0)
    rate = sum(wins) / total
    effective = float(count)
    variance = _clustered_variance([float(w) for w in wins], tasks)
    if count < total and variance is not None and 0 < rate < 1:
        independent = rate * (1 - rate) / variance if variance > 0 else float(total)
        effective = min(float(total), max(effective, independent))
    if effective == total:
        return wilson(sum(wins), total)
    return wilson(rate * effective, effective)


def mean_interval(values: Sequence[float], tasks: Sequence[str]) -> tuple[float, float] | None:
    """Return the 95 % t-interval of a mean, clustered by task; None for fewer than two tasks."""
    variance = _clustered_variance(values, tasks)
    if variance is None:
        return None
    mean = sum(values) / len(values)
    half = student_quantile(len({*tasks}) - 1) * sqrt(variance)
    return mean - half, mean + half


def reliable_interval(interval: tuple[float, float] | None, tasks: int) -> tuple[float, float]:
    """Return the interval of a mean over independent tasks, or two NaN if it is undefined: for
    fewer than `LEAST` tasks, or for equal values, whose interval has width 0."""
    if interval is None or tasks < LEAST or not has_interval(*interval):
        return nan, nan
    return interval


def has_interval(low: float | None, high: float | None) -> bool:
    """Return True if both ends are numbers and differ by more than a rounding error."""
    return low is not None and high is not None and high - low > 1e-9 * max(abs(low), abs(high))


_STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
"""Quantiles of Student's t at 97.5 % for 1 to 9 degrees of freedom."""


def student_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution: from a table for fewer than 10
    degrees of freedom, else from the Cornish-Fisher expansion, accurate to five digits."""
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    z = Z95
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, 1))


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of b - a over tasks, its 95 % interval, and the number of tasks won, lost and tied by
    b."""

    mean: float
    low: float
    high: float
    wins: int
    losses: int
    ties: int


def paired_bootstrap(
    a: Sequence[float], b: Sequence[float], rng: np.random.Generator, draws: int = 10_000
) -> Difference:
    """Return the mean difference b - a with a bootstrap interval over tasks; `a[i]` and `b[i]` must
    belong to the same task."""
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
    """Return the exact two-sided p-value of the sign test; ties are ignored.

    Sound for few tasks, where a bootstrap is too sure. 1 if there are only ties.
    """
    total = wins + losses
    tail = sum(comb(total, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**total)


class Verdict(StrEnum):
    """Verdict on the second agent in a paired comparison of two agents."""

    IMPROVED = "improved"
    NO_EVIDENCE = "no evidence"
    REGRESSED = "regressed"

    @property
    def exit_code(self) -> int:
        """Return the exit code: 0, 3 or 4; 2 is reserved for configuration errors."""
        return {"improved": 0, "no evidence": 3, "regressed": 4}[self.value]


def judge_difference(difference: Difference) -> Verdict:
    """Return the verdict on a difference, by its interval or, for few tasks, the sign test."""
    if difference.wins + difference.losses + difference.ties < FEW:
        sure = sign_test(difference.wins, difference.losses) < LEVEL
        up, down = difference.wins > difference.losses, difference.wins < difference.losses
    else:
        sure, up, down = True, difference.low > 0, difference.high < 0
    if sure and up:
        return Verdict.IMPROVED
    return Verdict.REGRESSED if sure and down else Verdict.NO_EVIDENCE
