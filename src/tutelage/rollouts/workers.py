"""The interface of rollout workers: the runner of this process, or workers elsewhere.

A training uses `RolloutWorkers` without knowing where they are. In this process it is one `Runner`;
`distributed` has a pool of Ray actors with a runner each. A rollout is a function of its spec, of
the weights and of the agent, so with an invariant engine (`engine/native.py`) the worker and the
number of starts do not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tutelage.rollouts.runner import RolloutSpec
from tutelage.types import Rollout


class RolloutWorkers(Protocol):
    """Interface of rollout workers with one agent and the current weights."""

    async def run(
        self, specs: Sequence[RolloutSpec], on_done: Callable[[Rollout], None] | None = None
    ) -> list[Rollout]:
        """Play all specs and return the rollouts in order; `on_done` receives each rollout.

        A `FailureBudgetError` raised by `on_done` cancels all rollouts.
        """
        ...
