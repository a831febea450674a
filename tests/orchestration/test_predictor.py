"""The predictor of outcomes, and the tables that it learns from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from routing_world import TYPES, topical_outcomes

from tutelage.errors import DataError
from tutelage.orchestration.data.outcomes import OutcomeTable, read_outcomes, simulate_outcomes
from tutelage.orchestration.execution.worker_files import classic
from tutelage.orchestration.routing.predictor import OutcomePredictor
from tutelage.seeds import SeedTree


def log_loss(chances: np.ndarray, right: np.ndarray) -> float:
    return float(-(right * np.log(chances) + (1 - right) * np.log(1 - chances)).mean())


@pytest.fixture(scope="module")
def halves() -> tuple[OutcomeTable, OutcomeTable]:
    made = topical_outcomes(1200, SeedTree(5))
    return made.take(range(800)), made.take(range(800, 1200))


@pytest.fixture(scope="module")
def fitted(halves: tuple[OutcomeTable, OutcomeTable]) -> OutcomePredictor:
    return OutcomePredictor.fit(halves[0], SeedTree(0))[0]


def test_predictions_beat_the_means_out_of_fold(
    halves: tuple[OutcomeTable, OutcomeTable], fitted: OutcomePredictor
) -> None:
    train, test = halves
    right = test.right_QW.astype(float)
    chances = fitted.p_correct(fitted.neighbours(test.instructions, test.types))
    means = np.tile(train.right_QW.mean(axis=0), (len(test), 1)).clip(0.01, 0.99)
    assert log_loss(chances, right) < 0.85 * log_loss(means, right)
    # Calibrated: of answers predicted right with p, about a share p is right.
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 1.0)):
        inside = (chances >= low) & (chances < high)
        assert abs(chances[inside].mean() - right[inside].mean()) < 0.08


def test_a_known_query_is_never_its_own_support(halves: tuple[OutcomeTable, OutcomeTable]) -> None:
    train = halves[0]
    predictor, support = OutcomePredictor.fit(train, SeedTree(0))
    own = np.arange(len(train))[:, None]
    assert (support.weights_BK[support.rows_BK == own] == 0).all()
    assert np.allclose(support.weights_BK.sum(axis=1), 1.0)
    flipped = replace(train, scores_QW=1 - train.scores_QW)
    changed = train.scores_QW.copy()
    changed[7] = flipped.scores_QW[7]
    other = replace(predictor, right_QW=np.where(own == 7, 1 - predictor.right_QW,
                                                 predictor.right_QW))  # fmt: skip
    mine = support.take(np.array([7]))
    assert np.array_equal(predictor.p_correct(mine), other.p_correct(mine))


def test_a_failure_lowers_the_chances_of_those_that_fail_together(
    halves: tuple[OutcomeTable, OutcomeTable], fitted: OutcomePredictor
) -> None:
    test = halves[1]
    support = fitted.neighbours(test.instructions, test.types)
    before = fitted.p_correct(support)
    failed = np.zeros_like(before, dtype=bool)
    failed[:, 3] = True
    after = fitted.p_correct(support, failed)
    assert after[:, 3].mean() < 0.5 * before[:, 3].mean()
    others = np.arange(before.shape[1]) != 3
    assert after[:, others].mean() < before[:, others].mean() - 0.03
    wrong = ~test.right_QW[:, 3]
    right = test.right_QW[wrong].astype(float)
    assert log_loss(after[wrong], right) < log_loss(before[wrong], right)


# ------------------------------------------------------------ tables of outcomes


MODELS = {
    "small-7b": {"size": "7B", "input_price": 0.2, "output_price": 0.4},
    "big": {"size": "70B", "input_price": 1.0, "output_price": 2.0},
    "unused": {"input_price": 9.0, "output_price": 9.0},
}


def rows(count: int = 2) -> list[dict[str, Any]]:
    return [
        {
            "id": f"q{i}",
            "instruction": "a" * 40,
            "task": "qa" if i % 2 else "code",
            "scores": {"small-7b": 1.0, "big": 0.25},
        }
        for i in range(count)
    ]


def read(folder: Path, table: Any, models: Any = MODELS) -> OutcomeTable:
    (folder / "table.json").write_text(json.dumps(table))
    (folder / "models.json").write_text(json.dumps(models))
    return read_outcomes(folder / "table.json", folder / "models.json", SeedTree(0))


def test_costs_come_from_tokens_and_list_prices(tmp_path: Path) -> None:
    table = read(tmp_path, rows())
    assert table.names == ("small-7b", "big")
    # 40 characters are 10 tokens; 250 tokens of answer are stated.
    assert table.costs_QW[0] == pytest.approx([(10 * 0.2 + 250 * 0.4) / 1e6, 510 / 1e6])
    assert table.right_QW.tolist() == [[True, False]] * 2
    assert table.bounds_QW == pytest.approx(table.costs_QW)


def test_what_the_file_says_is_used(tmp_path: Path) -> None:
    row = rows(1)[0] | {
        "cost": {"small-7b": 0.5, "big": 0.7},
        "latency": {"small-7b": 3.0, "big": 4.0},
    }
    table = read(tmp_path, [row])
    assert table.costs_QW.tolist() == [[0.5, 0.7]]
    assert table.seconds_QW.tolist() == [[3.0, 4.0]]
    assert (table.bounds_QW >= table.costs_QW).all()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"scores": {"small-7b": 1.5}},
            r"row 1: scores.small-7b is 1.5; input should be less than",
        ),
        ({"scores": {"smal-7b": 1.0}}, r"no price for 'smal-7b'; did you mean 'small-7b'"),
        ({"instruction": ""}, r"row 1: 'instruction' is ''; give a text"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    two = rows()
    two[1] |= change
    with pytest.raises(DataError, match=told):
        read(tmp_path, two)


def test_splits_share_no_row_and_have_every_type() -> None:
    table = topical_outcomes(400, SeedTree(0))
    parts = table.split(SeedTree(1))
    sets = [set(part.ids) for part in parts]
    assert sum(map(len, sets)) == len(set.union(*sets)) == 400
    assert all(set(part.types) == set(TYPES) for part in parts)
    assert table.split(SeedTree(1))[2].ids == parts[2].ids
    assert table.split(SeedTree(2))[2].ids != parts[2].ids


def test_simulated_outcomes_are_those_of_the_default_workers() -> None:
    table = simulate_outcomes(400, SeedTree(3))
    again = simulate_outcomes(400, SeedTree(3))
    assert np.array_equal(table.scores_QW, again.scores_QW, equal_nan=True)
    assert table.workers == classic()
    known = table.known_QW
    assert known[:, 0].all(), "gpt-4 can do everything"
    assert not known[:, 3].all(), "code-llama-7b cannot"
    right = table.right_QW.astype(float)
    best, oracle = right[:, 0].mean(), right.max(axis=1).mean()
    independent = 1 - np.prod([1 - right[known[:, j], j].mean() for j in range(3)])
    assert best < oracle < independent + 0.02
