"""Corrections and powers of comparisons, against numbers worked out elsewhere."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutelage.evaluate.statistics import holm, pairs_for_power, sign_flip_test


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
