"""Who plays rollouts: the runner of this process, or workers elsewhere, behind one method.

A training asks for `RolloutWorkers` and does not know where they are. In this process they are the
one `Runner`; `distributed` has a pool of Ray actors that hold a runner each. A
rollout is a function of its spec, of the weights and of the agent, so who plays it, and how often
it was begun, changes nothing of it where the engine is invariant (`engine/native.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tutelage.rollouts.runner import RolloutSpec
from tutelage.types import Rollout


class RolloutWorkers(Protocol):
    """Plays rollouts with one agent and the weights of now."""

    async def run(
        self, specs: Sequence[RolloutSpec], on_done: Callable[[Rollout], None] | None = None
    ) -> list[Rollout]:
        """Play all specs and return their rollouts in order; `on_done` sees each as it ends.

        Cancelling ends them all, and so does a `FailureBudgetError` that `on_done` raises.
        """
        ...
