"""Several policies that learn from the same rollouts, each from its own calls.

Every policy has its own weights, optimizer and rows; they share tasks, rewards and groups. One in
whose rollouts nobody spoke for it learns nothing from a step. `learner.py` is one member; most runs
have only the main one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tutelage.resources import POLICY
from tutelage.seeds import SeedTree
from tutelage.types import Rollout
from tutelage.weights.batch import Batch
from tutelage.weights.learner import Learner


class Learners:
    """A main learner, and learners of further policies by name."""

    def __init__(self, main: Learner, others: Mapping[str, Learner]) -> None:
        self._main, self._others = main, others
        self._all = {POLICY: main, **others}

    def make_rows(self, rollouts: Sequence[Rollout]) -> dict[str, Batch]:
        """Rows of each policy that spoke."""
        spoke = {c.policy for r in rollouts for c in r.last.calls}
        return {
            name: learner.make_rows(rollouts)
            for name, learner in self._all.items()
            if learner is self._main or name in spoke
        }

    def estimate_advantages(
        self, rows: Mapping[str, Batch], baselines: Mapping[str, float] | None
    ) -> dict[str, Batch]:
        """`Learner.estimate_advantages` of each."""
        return {
            name: self._all[name].estimate_advantages(batch, baselines)
            for name, batch in rows.items()
        }

    def optimize(
        self, batches: Mapping[str, Batch], *, seeds: SeedTree, step: int, limit: int | None
    ) -> tuple[dict[str, Batch], dict[str, float]]:
        """`Learner.optimize` of each; the others' metrics begin with `policy/NAME/`."""
        done: dict[str, Batch] = {}
        values: dict[str, float] = {}
        for name, batch in batches.items():
            main = name == POLICY
            under = seeds if main else seeds.child("policy", name)
            done[name], found = self._all[name].optimize(batch, seeds=under, step=step, limit=limit)
            prefix = "" if main else f"policy/{name}/"
            values |= {f"{prefix}{key}": value for key, value in found.items()}
            values["max_dlogp"] = max(values["max_dlogp"], found["max_dlogp"])
        return done, values

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on beside the policies' weights."""
        others = {name: learner.state_dict() for name, learner in self._others.items()}
        return {**self._main.state_dict(), **({"others": others} if others else {})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a `state_dict`, bit for bit."""
        self._main.load_state_dict(state)
        for name, learner in self._others.items():
            learner.load_state_dict(state["others"][name])
