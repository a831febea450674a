"""Short answers: SQuAD's F1 and exact match, and GAIA's scorer, on cases with known results."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tutelage.rewards.qa import exact_match, gaia_scorer, normalise, qa_f1_reward


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat!", "cat"),
        ("an A-frame", "aframe"),
        ("theatre", "theatre"),
        ("U.S.", "us"),
        ("a", ""),
    ],
)
def test_normalising(text: str, normal: str) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("prediction", "answer", "score", "exact"),
    [
        ("the Eiffel Tower", "Eiffel tower.", 1.0, 1.0),
        ("Eiffel", "Eiffel Tower", 2 / 3, 0.0),
        ("It is the Eiffel Tower in Paris", "Eiffel Tower", 2 * (2 / 6) / (2 / 6 + 1), 0.0),
        ("Rome or Paris", "Paris", 0.5, 0.0),
        ("Paris Paris Paris", "Paris", 0.5, 0.0),
        ("Lyon", ["Paris", "Lyon"], 1.0, 1.0),
        ("yes", "yes it is", 0.0, 0.0),
        ("yes", "Yes.", 1.0, 1.0),
        ("no", "yes", 0.0, 0.0),
        ("", "Paris", 0.0, 0.0),
        ("the", "a", 0.0, 0.0),
        ("Paris", [], 0.0, 0.0),
        ("12", 12, 1.0, 1.0),
    ],
)
def test_f1_and_exact_match(prediction: str, answer: Any, score: float, exact: float) -> None:
    assert qa_f1_reward(prediction, answer) == {"reward": pytest.approx(score), "exact": exact}
    assert exact_match(prediction, answer) == exact


def test_f1_and_exact_match_of_a_million_words() -> None:
    prediction = "a " * 10**6 + "Paris"
    assert qa_f1_reward(prediction, "Paris") == {"reward": 0.0, "exact": 0.0}
    assert exact_match(prediction, "Paris") == 0.0


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_f1_is_symmetric_and_bounded(a: str, b: str) -> None:
    one, other = qa_f1_reward(a, b)["reward"], qa_f1_reward(b, a)["reward"]
    assert 0.0 <= one <= 1.0
    assert one == pytest.approx(other)


@pytest.mark.parametrize(
    ("prediction", "answer", "right"),
    [
        ("$1,234.50", "1234.5", 1),
        ("17%", "17", 1),
        ("１７", "17", 1),
        ("17.0000009", "17", 1),
        ("17.00001", "17", 0),
        ("0.17", "17%", 0),
        ("1_7", "17", 0),
        ("١٧", "17", 0),
        ("nan", "17", 0),
        ("17 apples", "17", 0),
        ("b, 3, Red", "b,3,red", 1),
        ("3, b, red", "b,3,red", 0),
        ("b; 3", "b, 3", 1),
        ("b", "b,c", 0),
        ("$3, 4%", "3;4", 1),
        ("St. Petersburg", "st petersburg", 1),
        ("SaintPetersburg", "Saint Petersburg", 1),
        ("Paris, France", "Paris", 0),
        ("", "...", 0),
        ("", "Paris", 0),
    ],
)
def test_gaia(prediction: str, answer: str, right: int) -> None:
    assert gaia_scorer(prediction, answer) == right


def test_gaia_of_a_million_digits() -> None:
    assert gaia_scorer("9" * 10**6, "9") == 0
