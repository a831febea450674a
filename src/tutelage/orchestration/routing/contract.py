"""The router protocol, and simple rule-based routers.

The executor calls a router once before every try, in dispatch order, and executes its choice. The
mask in the state already excludes workers that lack the capability, were tried at this node, or
cost more than the remaining budget. Actions are integers: the index of a worker in the pool, then
`accept` (keep the last answer although its verifier rejected it), then `stop` (give up the node).
The trained router is in `router.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tutelage.errors import ConfigError
from tutelage.orchestration.execution.workers import Subtask, Worker, WorkerEstimate
from tutelage.orchestration.plan.dag import Plan
from tutelage.seeds import SeedTree


@dataclass(frozen=True, slots=True)
class RouteState:
    """Input of a router before each try. Costs are in USD, times in seconds."""

    plan: Plan
    work: Subtask
    workers: tuple[Worker, ...]
    mask: tuple[bool, ...]
    """True for legal actions: the workers, then accept, then stop."""
    estimates: tuple[WorkerEstimate, ...]
    """Estimated cost and latency of each worker for this subtask."""
    tries: tuple[int, ...] = ()
    """Indices of the workers that were tried at this node, in order."""
    load: tuple[int, ...] = ()
    """Number of running or waiting subtasks of each worker."""
    done: Mapping[int, bool] = field(default_factory=dict[int, bool])
    """Finished nodes; True if the node succeeded."""
    ends: Mapping[int, float] = field(default_factory=dict[int, float])
    """End time of each finished node along the critical path, from the start of the workflow."""
    spent: float = 0.0
    budget_left: float | None = None
    """Remaining budget; None if there is no budget."""
    elapsed: float = 0.0
    deadline_left: float | None = None
    max_tries: int = 3
    seeds: SeedTree = field(default_factory=lambda: SeedTree(0))
    """Seeds for random draws of the router at this try."""

    @property
    def accept(self) -> int:
        """Index of the action that keeps the last answer."""
        return len(self.workers)

    @property
    def stop(self) -> int:
        """Index of the action that abandons the node."""
        return len(self.workers) + 1

    @property
    def candidates(self) -> tuple[int, ...]:
        """Indices of the workers that the mask allows."""
        return tuple(i for i, may in enumerate(self.mask[:-2]) if may)

    def add_mask(self, choice: Choice) -> Choice:
        """Add the mask to a choice. Raises `ConfigError` if its action is masked."""
        legal = [i for i, may in enumerate(self.mask) if may]
        if choice.action not in legal:
            raise ConfigError(
                f"the router chose the illegal action {choice.action!r} at node {self.work.node}; "
                f"the mask allows {legal!r} of {len(self.mask)}"
            )
        return replace(choice, mask=self.mask)


@dataclass(frozen=True, slots=True)
class Choice:
    """Action of a router, with the data needed for training."""

    action: int
    log_prob: float = 0.0
    mask: tuple[bool, ...] = ()
    """Mask of the state, set by `RouteState.add_mask`."""
    features: Any = field(default=None, compare=False, repr=False)
    """`DecisionFeatures` of the decision, as `ModelSelector.compute_loss` takes them; None for
    routers without a policy and for steps that were loaded from disk."""


class Router(Protocol):
    """Protocol of routers. `choose` is called in the event loop, so it must not block."""

    def choose(self, state: RouteState) -> Choice:
        """Return an action that is legal in `state.mask`. Illegal actions raise `ConfigError`."""
        ...


class RankedRouter:
    """Router that selects the worker with the lowest key, or stops if no key is finite."""

    def __init__(self, name: str, key: Callable[[RouteState, int], float]) -> None:
        self.name, self._key = name, key

    def choose(self, state: RouteState) -> Choice:
        """Select the worker with the lowest key, or stop if no key is finite."""
        keys = [(self._key(state, i), i) for i in state.candidates]
        known = [pair for pair in keys if pair[0] < math.inf]
        return Choice(min(known)[1] if known else state.stop)


def cheapest_router() -> RankedRouter:
    """Return a router that selects the worker with the lowest expected cost."""
    return RankedRouter("cheapest", lambda state, i: state.estimates[i].cost)


def accurate_router() -> RankedRouter:
    """Return a router that selects the worker with the highest skill for the subtask."""
    return RankedRouter("accurate", lambda s, i: -s.workers[i].skill(*s.work.labels))


def cascade_router(names: Sequence[str]) -> RankedRouter:
    """Return a router that tries the workers with these names in order, and no other workers."""
    order = {name: float(place) for place, name in enumerate(names)}
    return RankedRouter("cascade", lambda s, i: order.get(s.workers[i].name, math.inf))
