"""A training asks its placement who plays, and plays nothing by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tutelage.policy.model import load_policy
from tutelage.rollouts.runner import RolloutSpec, Runner
from tutelage.rollouts.workers import RolloutWorkers
from tutelage.types import Rollout
from tutelage.weights import run as training_run
from tutelage.weights.placement import LocalPlacement, PlaySettings

from .tiny_job import material, run


class Backwards:
    """Workers that play the specs one after another, the last one first."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def run(
        self, specs: Sequence[RolloutSpec], on_done: Callable[[Rollout], None] | None = None
    ) -> list[Rollout]:
        found = [
            rollout for s in reversed(specs) for rollout in await self._runner.run([s], on_done)
        ]
        return found[::-1]


class BackwardsPlacement(LocalPlacement):
    """Has others play, and keeps what it was asked for."""

    asked: list[PlaySettings]

    def workers(self, options: PlaySettings, *hooks: Any) -> Any:
        self.asked.append(options)
        workers: RolloutWorkers = Backwards(super().workers(options, *hooks))
        return workers


@pytest.mark.full
def test_what_other_workers_play_is_trained_on_in_the_order_of_the_specs(
    one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone in the engine or not, a rollout of an invariant engine is the same."""
    source = tmp_path / "source"
    source.mkdir()
    material(source)
    keys = {"trainer__total_training_steps": 2, "trainer__val_before_train": "true"}
    usual = run(source, tmp_path / "usual", **keys)
    BackwardsPlacement.asked = []
    monkeypatch.setattr(training_run, "LocalPlacement", BackwardsPlacement)
    other = run(source, tmp_path / "other", **keys)
    asked = BackwardsPlacement.asked
    assert {play.run_id for play in asked} == {"other"}
    assert {play.temperature for play in asked} >= {0.0, 1.0}
    assert any(play.invariant for play in asked)
    assert not any(play.own_agent for play in asked)
    first, second = (dict(load_policy(str(f.policy)).named_tensors()) for f in (usual, other))
    assert all((first[name] - second[name]).abs().max() < 1e-4 for name in first)
