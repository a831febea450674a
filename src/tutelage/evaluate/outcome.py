"""What evaluation rollouts add up to: success, its interval, mean reward, and both by family.

A rollout succeeds when its reward is at least 1. `run.py` makes the rollouts, `statistics.py` the
intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tutelage.evaluate.statistics import wilson
from tutelage.types import Rollout


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation. `by_family` maps a task family to (rollouts, success)."""

    rollouts: list[Rollout]
    tasks: int
    success: float
    interval: tuple[float, float]
    mean_reward: float
    by_family: dict[str, tuple[int, float]]


def succeeded(rollout: Rollout) -> bool:
    """Whether the rollout earned a reward of at least 1."""
    return rollout.reward is not None and rollout.reward.value >= 1.0 - 1e-9


def summarise(rollouts: Sequence[Rollout]) -> Evaluation:
    """Add up rollouts; those that infrastructure lost are left out."""
    counted = [r for r in rollouts if r.reward is not None]
    wins = sum(succeeded(r) for r in counted)
    families: dict[str, list[bool]] = {}
    for rollout in counted:
        family = rollout.task.fields.get("family")
        if isinstance(family, str):
            families.setdefault(family, []).append(succeeded(rollout))
    total = max(1, len(counted))
    return Evaluation(
        rollouts=list(rollouts),
        tasks=len({r.task.id for r in rollouts}),
        success=wins / total,
        interval=wilson(wins, len(counted)),
        mean_reward=sum(r.reward.value for r in counted if r.reward is not None) / total,
        by_family={f: (len(v), sum(v) / len(v)) for f, v in sorted(families.items())},
    )
