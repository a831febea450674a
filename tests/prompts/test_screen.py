"""Screening: what its regression recovers, and that its waves find rules that need each other."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tests.marks import first

from tutelage.prompts import Components, Episode, Limits, Play, Screen, Settings, Splits
from tutelage.prompts.contract import RolloutSlot
from tutelage.prompts.screen import WAVES, estimate_effects
from tutelage.prompts.search import SearchResult, optimise
from tutelage.seeds import SeedTree
from tutelage.types import Task

USEFUL = tuple(f"Rule {name}." for name in "ABCD")
BANK = (*(f"Idle {i}." for i in range(8)), *USEFUL)


def tasks(split: str, count: int) -> list[Task]:
    return [Task(f"{split}-{i}", {"question": f"{split} {i}"}) for i in range(count)]


DATA = Splits(tasks("train", 12), tasks("val", 12), tasks("test", 60))


async def gated(components: Components, task: Task, slot: RolloutSlot) -> Episode:
    """Half of the tasks need the rules A and B, half A, B, C and D: no rule alone earns a thing."""
    await asyncio.sleep(0)
    hard = int(task.id.split("-")[1]) % 2 == 1
    right = all(rule in components["prompt"] for rule in (USEFUL if hard else USEFUL[:2]))
    return Episode(float(right), right)


async def never(components: Components, task: Task, slot: RolloutSlot) -> Episode:
    await asyncio.sleep(0)
    return Episode(0.0)


async def searched(
    play: Play, seed: int = 0, rollouts: int = 500, runners: int = 8
) -> SearchResult:
    settings = Settings("gated", Limits(rollouts=rollouts), seed=seed, runners=runners)
    return await optimise(Screen(bank=BANK), {"prompt": "Answer."}, DATA, play, settings)


def test_effects_are_recovered_although_tasks_differ_in_difficulty() -> None:
    rng = SeedTree(0).child("effects").numpy()
    worth = np.array([0.5, 0.0, -0.3, 0.2, 0.0])
    difficulty = 3.0 * rng.standard_normal(10)
    played = rng.integers(0, 10, 300)
    design = (rng.random((300, 5)) < 0.5).astype(float)
    rewards = design @ worth + difficulty[played] + 0.1 * rng.standard_normal(300)
    found, covariance = estimate_effects(design, played, rewards, 1.0)
    blind, _ = estimate_effects(design, np.zeros(300, int), rewards, 1.0)
    assert np.abs(found - worth).max() < 0.1
    assert np.abs(blind - worth).max() > np.abs(found - worth).max()
    assert np.allclose(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > 0


@pytest.mark.parametrize("seed", first(1, range(5)))
async def test_rules_that_help_only_together_are_found(seed: int) -> None:
    result = await searched(gated, seed)
    assert result.test.best_exact == 1.0
    assert all(rule in result.components["prompt"] for rule in USEFUL)


async def test_waves_go_on_while_something_is_missing_and_end_when_they_find_nothing() -> None:
    result = await searched(never, rollouts=5000)
    waves = [entry for entry in result.lineage if entry.operation == "experiment"]
    assert len(waves) == WAVES + Screen().patience
    assert result.components == {"prompt": "Answer."}


def test_phrases_that_were_always_played_together_are_worth_the_same() -> None:
    """To the last digit, in which processors differ: else the ranking would depend on it."""
    for seed in range(40):
        rng = SeedTree(seed).child("ties").numpy()
        design = rng.integers(0, 2, (60, 12)).astype(float)
        design[:, 7] = design[:, 2]
        design[:, 11] = design[:, 4]
        mean, _ = estimate_effects(design, rng.integers(0, 5, 60), rng.random(60), 1.0)
        assert mean[7] == mean[2]
        assert mean[11] == mean[4]
