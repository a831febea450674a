"""One step of reinforcement learning, on one page.

    tasks ─▶ groups of rollouts ─▶ rows ─▶ advantages ─▶ loss, optimizer ─▶ engine
                                                                  └────────▶ store

The groups come from `sampling.py`, which plays rollouts through `run.py`, or from
`asynchronous.py`, which plays them ahead of the step; rows and advantages are `batch.py`'s, the
loss and the optimizer step `learner.py`'s; what is recorded is `recording.py`'s. What is measured,
logged, saved and reported happens around the step, in `rl.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tutelage.resources import POLICY
from tutelage.weights.batch import Batch
from tutelage.weights.learner import Learner
from tutelage.weights.recording import record
from tutelage.weights.run import TrainingRun
from tutelage.weights.sampling import RolloutGroups


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """State shared by the steps of a phase: run, learners, step limit and rollouts."""

    ctx: TrainingRun
    phase: str
    learners: Mapping[str, Learner]
    """The learners of all trained policies; the main one is `POLICY`."""
    limit: int | None
    """Number of steps of the phase, or None if it is unknown."""
    play_groups: Callable[[int], RolloutGroups]
    """Returns the rollouts of a step."""

    def step(self, number: int) -> tuple[RolloutGroups, dict[str, float]]:
        """Train all policies on new rollouts, and return the rollout groups and the metrics.

        Metrics of further policies are named `policy/NAME/...`.
        """
        main = self.ctx.setting.seeds.child(self.phase, number, "update")
        groups = self.play_groups(number)
        self.ctx.placement.free()
        batches: dict[str, Batch] = {}
        metrics: dict[str, float] = {}
        for name, learner in self.learners.items():
            if name not in (POLICY, *groups.policies):
                continue
            batch = learner.make_rows(groups.rollouts)
            batch = learner.estimate_advantages(batch, groups.baselines)
            seeds = main if name == POLICY else main.child("policy", name)
            batches[name], values = learner.optimize(
                batch, seeds=seeds, step=number, limit=self.limit
            )
            gaps = [told["max_dlogp"] for told in (metrics, values) if "max_dlogp" in told]
            prefix = "" if name == POLICY else f"policy/{name}/"
            metrics |= {f"{prefix}{key}": value for key, value in values.items()}
            metrics |= {"max_dlogp": max(gaps)} if gaps else {}
        self.ctx.placement.hand_over_weights()
        record(self.ctx.run.writer, self.ctx.run.id, self.ctx.state.tick, batches)
        return groups, metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the training state of all learners, except the weights of the policies."""
        states = {name: learner.state_dict() for name, learner in self.learners.items()}
        return {**states.pop(POLICY), **({"others": states} if states else {})}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict into all learners."""
        for name, learner in self.learners.items():
            learner.load_state_dict(state_dict if name == POLICY else state_dict["others"][name])
