"""How sure a planner is: a model of its signals, fitted on what it was not trained on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.house.planner_recipe import PlannerRecipe, train
from torch import Tensor

from tutelage.orchestration.planner import saving
from tutelage.orchestration.planner.confidence import (
    KEEP,
    LOWEST,
    fit_confidence,
    floor_of,
    same_tools,
)
from tutelage.seeds import SeedTree

SEEDS = SeedTree(3)


def drawn() -> tuple[Tensor, list[bool]]:
    """Signals of 400 requests, of which the first tells what is right."""
    signals = torch.randn(400, 14, generator=torch.Generator().manual_seed(1))
    return signals, (signals[:, 0] > 0).tolist()


def test_it_tells_right_plans_from_wrong_ones_and_keeps_most_of_them() -> None:
    signals, right = drawn()
    fitted = fit_confidence(signals, right, 400)
    assert fitted is not None
    sure = fitted.of(signals) >= fitted.threshold
    kept = sure[torch.tensor(right)].double().mean()
    assert KEEP - 0.01 <= kept <= KEEP + 0.02
    assert (~sure)[~torch.tensor(right)].double().mean() > 0.9
    assert fitted == fit_confidence(signals, right, 400)


def test_signals_that_tell_nothing_make_it_unsure_of_everything() -> None:
    signals, _ = drawn()
    right = [i % 2 == 0 for i in range(400)]
    fitted = fit_confidence(signals, right, 400)
    assert fitted is not None
    assert ((fitted.of(signals) - 0.5).abs() < 0.35).all()


def test_few_held_out_plans_allow_no_low_threshold() -> None:
    signals = torch.zeros(22, 14)
    signals[:2, 0] = torch.tensor([2.0, 2.2])
    right = [True] * 2 + [False] * 20
    by_count = {n: fit_confidence(signals, right, n) for n in (5, 400)}
    few, many = by_count[5], by_count[400]
    assert few is not None
    assert many is not None
    assert few.weights == many.weights
    assert few.threshold == floor_of(5) > many.threshold
    floors = [floor_of(n) for n in (1, 2, 4, 8, 20, 100, 400)]
    assert floors == sorted(floors, reverse=True)
    assert (floors[0], floors[-1]) == (0.5, LOWEST)
    # Of plans of which such a share is wrong, 20 show none with the chance of one in twenty.
    assert (1 - floor_of(20)) ** 20 == pytest.approx(0.05)


@pytest.mark.full
@pytest.mark.usefixtures("one_thread")
def test_it_is_in_the_checkpoint(tmp_path: Path) -> None:
    model = train(PlannerRecipe(workflows=150, held_out=60, epochs=2, width=16)).model
    saving.write(tmp_path / saving.PHASE1, saving.checkpoint(model, {}, 1, 0.0))
    again = saving.load_planner(tmp_path)
    assert model.confidence is not None
    assert again.confidence == model.confidence
    (planned,) = model.plan_all(["Translate the letter into French"])
    assert planned.confidence is not None
    assert 0 <= planned.confidence <= 1
    assert same_tools(planned.plan, planned.plan)
