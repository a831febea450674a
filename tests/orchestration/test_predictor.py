"""The predictor of outcomes: out of fold, given failures, and for a worker that comes later."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from routing_world import table, topical_outcomes

from tutelage.orchestration.data.neighbours import NearestTexts, hashed
from tutelage.orchestration.data.outcomes import OutcomeTable
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


def test_the_nearest_text_is_the_same_text_unless_it_is_ones_own() -> None:
    texts = ["sort a list in python", "translate this to french", "sort the list in python now"]
    index = NearestTexts.of(texts)
    places, cosines = index.nearest([hashed(texts[0])], 2)
    assert places[0, 0] == 0
    assert cosines[0, 0] == pytest.approx(1.0, abs=1e-5)
    own, _ = index.nearest([hashed(texts[0])], 2, own=np.array([0]))
    assert own[0].tolist() == [2, 1]
    empty, cosines = index.nearest([hashed("")], 1)
    assert empty.shape == (1, 1)
    assert np.isfinite(cosines).all()


def test_predictions_beat_the_means_out_of_fold(
    halves: tuple[OutcomeTable, OutcomeTable], fitted: OutcomePredictor
) -> None:
    train, test = halves
    right = test.right_QW.astype(float)
    chances = fitted.chances(fitted.support(test.instructions, test.types))
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
    assert np.array_equal(predictor.chances(mine), other.chances(mine))


def test_a_failure_lowers_the_chances_of_those_that_fail_together(
    halves: tuple[OutcomeTable, OutcomeTable], fitted: OutcomePredictor
) -> None:
    test = halves[1]
    support = fitted.support(test.instructions, test.types)
    before = fitted.chances(support)
    failed = np.zeros_like(before, dtype=bool)
    failed[:, 3] = True
    after = fitted.chances(support, failed)
    assert after[:, 3].mean() < 0.5 * before[:, 3].mean()
    others = np.arange(before.shape[1]) != 3
    assert after[:, others].mean() < before[:, others].mean() - 0.03
    wrong = ~test.right_QW[:, 3]
    right = test.right_QW[wrong].astype(float)
    assert log_loss(after[wrong], right) < log_loss(before[wrong], right)


def test_costs_and_seconds_are_near_what_they_come_to(
    halves: tuple[OutcomeTable, OutcomeTable], fitted: OutcomePredictor
) -> None:
    test = halves[1]
    costs, seconds = fitted.expected(
        fitted.support(test.instructions, test.types), test.tokens_in_Q
    )
    assert costs.mean(axis=0) == pytest.approx(test.costs_QW.mean(axis=0), rel=0.1)
    assert seconds.mean(axis=0) == pytest.approx(test.seconds_QW.mean(axis=0), rel=0.15)


def test_the_state_reads_without_pickled_code(tmp_path_factory: pytest.TempPathFactory) -> None:
    predictor, _ = OutcomePredictor.fit(table(), SeedTree(0))
    path = tmp_path_factory.mktemp("state") / "predictor.pt"
    torch.save(predictor.state_dict(), path)
    again = OutcomePredictor.from_state(torch.load(path, weights_only=True))
    texts, types = ["the code0x1 of topic code0", "?"], ["code", "never seen"]
    assert np.array_equal(
        predictor.chances(predictor.support(texts, types)),
        again.chances(again.support(texts, types)),
    )
    assert again.workers == predictor.workers
