"""Several policies that learn from the same rollouts, each from its own calls.

Every policy has its own weights, optimizer and rows; they share tasks, rewards and groups. A step
is the step of each, one after another. `rl.py` makes a team where a run has further policies;
`learner.py` is one member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tutelage.seeds import SeedTree
from tutelage.types import Rollout
from tutelage.weights.learner import Learner
from tutelage.weights.recording import Keep


class Team:
    """A main learner, and learners of further policies by name."""

    def __init__(self, main: Learner, others: Mapping[str, Learner]) -> None:
        self._main, self._others = main, others

    def step(
        self,
        rollouts: Sequence[Rollout],
        *,
        seeds: SeedTree,
        step: int,
        limit: int | None,
        baselines: Mapping[str, float] | None = None,
        keep: Keep | None = None,
    ) -> dict[str, float]:
        """`Learner.step` of each; the others' metrics begin with `policy/NAME/`.

        One whose agents said nothing in these rollouts learns nothing from them.
        """
        values = self._main.step(
            rollouts, seeds=seeds, step=step, limit=limit, baselines=baselines, keep=keep
        )
        for name, learner in self._others.items():
            if not any(c.policy == name for r in rollouts for c in r.last.calls):
                continue
            found = learner.step(
                rollouts,
                seeds=seeds.child("policy", name),
                step=step,
                limit=limit,
                baselines=baselines,
                keep=keep,
            )
            values |= {f"policy/{name}/{key}": value for key, value in found.items()}
            values["max_dlogp"] = max(values["max_dlogp"], found["max_dlogp"])
        return values

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on beside the policies' weights."""
        others = {name: learner.state_dict() for name, learner in self._others.items()}
        return {**self._main.state_dict(), "others": others}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a `state_dict`, bit for bit."""
        self._main.load_state_dict(state)
        for name, learner in self._others.items():
            learner.load_state_dict(state["others"][name])
