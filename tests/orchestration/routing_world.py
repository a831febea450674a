"""Helpers of the routing tests: a small simulated world, made once."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from tutelage.orchestration.data.outcomes import OutcomeTable
from tutelage.orchestration.data.synthetic_outcomes import simulate_outcomes
from tutelage.orchestration.routing.phase2_data import Phase2Data
from tutelage.orchestration.routing.settings import Phase2Settings
from tutelage.orchestration.routing.workflows import Scenario
from tutelage.seeds import SeedTree

SMALL = Phase2Settings(
    num_episodes=6,
    workflows_per_episode=16,
    episodes_per_update=1,
    validate_every=2,
    val_workflows=64,
    test_workflows=96,
    learning_rate=3e-4,
)


@functools.cache
def table(seed: int = 0) -> OutcomeTable:
    """360 simulated queries whose prompts are as long as their text, as the router counts."""
    made = simulate_outcomes(360, SeedTree(seed))
    tokens_in_Q = np.array([float(-(-len(text) // 4)) for text in made.instructions])
    prices_W = np.array([worker.price_in for worker in made.workers])
    costs_QW = (tokens_in_Q[:, None] + made.tokens_out_QW) * prices_W / 1e6
    return replace(made, tokens_in_Q=tokens_in_Q, costs_QW=costs_QW)


@functools.cache
def world(scenario: Scenario | None = None) -> Phase2Data:
    """Splits, predictor and boards of that table."""
    return Phase2Data.of(table(), scenario or Scenario(), SMALL, SeedTree(0).child("phase2"))
