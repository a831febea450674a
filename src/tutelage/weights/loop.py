"""One step of reinforcement learning, on one page.

    tasks ─▶ groups of rollouts ─▶ rows ─▶ advantages ─▶ loss, optimizer ─▶ engine
                                                                  └────────▶ store

The groups come from `sampling.py`, which plays rollouts through `run.py`, or from
`asynchronous.py`, which plays them ahead of the step; rows and advantages are `batch.py`'s, the
loss and the optimizer step `update.py`'s, each for every policy that is trained (`learner.py`);
what is recorded is `recording.py`'s. What is measured, logged, saved and reported happens around
the step, in `rl.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tutelage.weights.learner import MultiPolicyLearner
from tutelage.weights.recording import StepRecorder
from tutelage.weights.run import TrainingRun
from tutelage.weights.sampling import RolloutGroups


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """What a step of a phase works with."""

    work: TrainingRun
    phase: str
    learners: MultiPolicyLearner
    recorder: StepRecorder
    limit: int | None
    """How many steps there will be, where that is known."""
    play_groups: Callable[[int], RolloutGroups]
    """Gives the rollouts of a step."""

    def step(self, number: int) -> tuple[RolloutGroups, dict[str, float]]:
        """Train on fresh rollouts; returns their groups, and the metrics of the update."""
        seeds = self.work.setting.seeds.child(self.phase, number, "update")
        groups = self.play_groups(number)
        self.work.placement.free()
        rows = self.learners.make_rows(groups.rollouts)
        batches = self.learners.estimate_advantages(rows, groups.baselines)
        batches, metrics = self.learners.optimize(
            batches, seeds=seeds, step=number, limit=self.limit
        )
        self.work.placement.hand_over_weights()
        self.recorder.record(self.work.state.tick, batches)
        return groups, metrics
