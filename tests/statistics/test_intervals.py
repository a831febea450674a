"""Corrections and powers of comparisons, against numbers worked out elsewhere."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from benchmarks.prompt.significance import holm, pairs_for_power, sign_flip_test
from hypothesis import given
from hypothesis import strategies as st

from tutelage.statistics.intervals import (
    mean_interval,
    rate_interval,
    student_quantile,
    wilson,
)


def test_holm_is_the_step_down_of_the_paper() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_lowers_a_p_value_nor_changes_their_order(p_values: list[float]) -> None:
    corrected = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, corrected, strict=True))
    ranked = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert all(corrected[a] <= corrected[b] for a, b in itertools.pairwise(ranked))


def test_the_sign_flips_of_few_pairs_come_to_the_exact_share() -> None:
    rng = np.random.default_rng(0)
    # All five above 0: one sign pattern in 32 reaches the sum.
    assert sign_flip_test([0.1, 0.2, 0.3, 0.4, 0.5], rng) == pytest.approx(1 / 32, abs=0.005)
    assert sign_flip_test([-0.1, 0.1], rng) == pytest.approx(0.75, abs=0.02)
    assert sign_flip_test([0.0, 0.0], rng) == 1
    with pytest.raises(ValueError, match="at least one"):
        sign_flip_test([], rng)


def test_pairs_for_power_follow_the_normal_approximation() -> None:
    # (1.645 + 1.282)^2 * (0.1 / 0.05)^2 = 34.3
    assert pairs_for_power(0.1, 0.05, least=1) == 35
    assert pairs_for_power(0.01, 0.05) == 30
    assert pairs_for_power(0.1, 0.05, comparisons=10) > pairs_for_power(0.1, 0.05)
    with pytest.raises(ValueError, match="above 0"):
        pairs_for_power(0.1, 0.0)


def test_one_rollout_of_each_task_has_the_interval_of_wilson() -> None:
    wins = [i % 5 > 0 for i in range(40)]
    assert rate_interval(wins, [str(i) for i in range(40)]) == wilson(32, 40)


def test_samples_of_one_task_are_no_independent_evidence() -> None:
    """Ten tasks that are always or never solved tell the same with 1 sample as with 20."""
    wins = [task < 6 for task in range(10) for _ in range(20)]
    tasks = [str(task) for task in range(10) for _ in range(20)]
    assert rate_interval(wins, tasks) == pytest.approx(wilson(6, 10))
    # Samples that vary within their tasks as much as between them count each.
    coins = [bool(sample % 2) for _ in range(10) for sample in range(20)]
    assert rate_interval(coins, tasks) == wilson(100, 200)


def test_a_rate_of_all_or_nothing_counts_tasks() -> None:
    assert rate_interval([True] * 40, [str(i // 4) for i in range(40)]) == wilson(10, 10)
    assert rate_interval([], []) == (0.0, 1.0)
    assert {wilson(0, total)[0] for total in range(1, 40)} == {0.0}


def test_the_interval_of_a_mean_is_that_of_student_over_tasks() -> None:
    values = [0.2, 0.4, 0.6, 1.0]
    low, high = mean_interval(values, ["a", "b", "c", "d"]) or (0, 0)
    half = 3.1824 * np.std(values, ddof=1) / 2
    assert (low, high) == pytest.approx((0.55 - half, 0.55 + half))
    doubled = mean_interval([v for v in values for _ in "12"], [t for t in "abcd" for _ in "12"])
    assert doubled == pytest.approx((low, high))
    assert mean_interval([0.5, 0.7], ["a", "a"]) is None


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (9, 2.2622), (10, 2.2281), (30, 2.0423), (199, 1.9720)]
)
def test_quantiles_of_student(freedom: int, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, abs=5e-5)
