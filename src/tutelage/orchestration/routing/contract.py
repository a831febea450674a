"""Who does the next try at a node: the contract of routers, and simple rules.

A router is asked once before every try, in the order in which the executor dispatches, and what it
chooses is what runs: the mask that it is given already leaves out workers that lack the capability,
were tried, or cost more than the budget has left. Actions are numbers: a worker's place in the
pool, then `accept` (keep the last answer although its verifier did not pass it), then `stop` (give
the node up). The trained router is in `router.py`.
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
    """What a router sees before one try. Money in USD, times in seconds."""

    plan: Plan
    work: Subtask
    workers: tuple[Worker, ...]
    mask: tuple[bool, ...]
    """Legal actions: workers, then accept, then stop."""
    estimates: tuple[WorkerEstimate, ...]
    """What each worker may come to for this work."""
    tries: tuple[int, ...] = ()
    """The workers that were tried at this node, the earliest first."""
    load: tuple[int, ...] = ()
    """How many works each worker has, running or waiting."""
    done: Mapping[int, bool] = field(default_factory=dict[int, bool])
    """The nodes that ended, and whether each succeeded."""
    ends: Mapping[int, float] = field(default_factory=dict[int, float])
    """For each node that ended, its end along the critical path, from the workflow's start."""
    spent: float = 0.0
    budget_left: float | None = None
    """None: no budget."""
    elapsed: float = 0.0
    deadline_left: float | None = None
    max_tries: int = 3
    seeds: SeedTree = field(default_factory=lambda: SeedTree(0))
    """For the router's own draws at this try."""

    @property
    def accept(self) -> int:
        """The action that keeps the last answer."""
        return len(self.workers)

    @property
    def stop(self) -> int:
        """The action that gives the node up."""
        return len(self.workers) + 1

    @property
    def candidates(self) -> tuple[int, ...]:
        """The workers that may be chosen."""
        return tuple(i for i, may in enumerate(self.mask[:-2]) if may)

    def checked(self, choice: Choice) -> Choice:
        """Return the choice with this mask. Raises `ConfigError` for a forbidden action."""
        legal = [i for i, may in enumerate(self.mask) if may]
        if choice.action not in legal:
            raise ConfigError(
                f"the router chose action {choice.action!r} at node {self.work.node}, and legal "
                f"are {legal!r} of {len(self.mask)}; a router keeps to the mask"
            )
        return replace(choice, mask=self.mask)


@dataclass(frozen=True, slots=True)
class Choice:
    """An action, and what training needs to credit it."""

    action: int
    log_prob: float = 0.0
    mask: tuple[bool, ...] = ()
    """The state's, filled in when the choice is executed."""
    features: Any = field(default=None, compare=False, repr=False)
    """The `DecisionFeatures` that a policy saw, a state of `ModelSelector.compute_loss`; None for
    routers without one, and for steps that were read back from disk."""


class Router(Protocol):
    """Chooses the next action; see `RouteState`. Called in the event loop, so it must not wait."""

    def choose(self, state: RouteState) -> Choice:
        """Return an action that `state.mask` allows; another one is refused with `ConfigError`."""
        ...


class RankedRouter:
    """Takes the worker with the least finite key; gives up when none is left."""

    def __init__(self, name: str, key: Callable[[RouteState, int], float]) -> None:
        self.name, self._key = name, key

    def choose(self, state: RouteState) -> Choice:
        """See `Router`."""
        keys = [(self._key(state, i), i) for i in state.candidates]
        known = [pair for pair in keys if pair[0] < math.inf]
        return Choice(min(known)[1] if known else state.stop)


def cheapest() -> RankedRouter:
    """Return a router that asks the worker whose expected cost for this work is least."""
    return RankedRouter("cheapest", lambda state, i: state.estimates[i].cost)


def most_accurate() -> RankedRouter:
    """Return a router that asks the worker whose own share of right answers is highest here."""
    return RankedRouter("accurate", lambda s, i: -s.workers[i].skill(*s.work.labels))


def cascade(names: Sequence[str]) -> RankedRouter:
    """Return a router with a fixed order of workers by name; others are never asked."""
    order = {name: float(place) for place, name in enumerate(names)}
    return RankedRouter("cascade", lambda s, i: order.get(s.workers[i].name, math.inf))
