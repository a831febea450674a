"""Who does the next try at a node: the contract of routers, and the simple ones.

A router is asked once before every try, in the order in which the executor dispatches, and what it
chooses is what runs: the mask that it is given already leaves out workers that lack the capability,
were tried, or cost more than the budget has left. Actions are numbers: a worker's place in the
pool, then `accept` (keep the last answer although its verifier did not pass it), then `stop` (give
the node up). `execution/workers.py` has the words; the learned router is in `router.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tutelage.errors import ConfigError
from tutelage.orchestration.evaluation.rewards import References, RewardWeights
from tutelage.orchestration.execution.workers import Subtask, Worker, WorkerAnswer, WorkerEstimate
from tutelage.orchestration.plan.dag import Plan
from tutelage.seeds import SeedTree


@dataclass(frozen=True, slots=True)
class PreviousTry:
    """One try that has ended at the node that is being routed."""

    worker: int
    answer: WorkerAnswer
    passed: bool
    """What the verifier said; False when there was no usable answer."""


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
    tries: tuple[PreviousTry, ...] = ()
    """At this node, the earliest first."""
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
    references: References | None = None
    """What cost and latency are measured against; None where nothing costs or takes anything."""

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
        """The choice with its mask filled in. Raises `ConfigError` for a forbidden action."""
        mask, legal = choice.mask or self.mask, [i for i, may in enumerate(self.mask) if may]
        narrowed = [i for i, may in enumerate(mask) if may]
        widened = len(mask) != len(self.mask) or not set(narrowed) <= set(legal)
        if widened or choice.action not in narrowed:
            raise ConfigError(
                f"the router chose action {choice.action!r} at node {self.work.node}, and legal "
                f"are {legal!r} of {len(self.mask)}; a router keeps to the mask"
            )
        return choice if mask is choice.mask else replace(choice, mask=mask)


@dataclass(frozen=True, slots=True)
class Choice:
    """An action, and what training needs to credit it.

    `mask` is the one under which `log_prob` was computed: the state's, or a narrower one. A router
    that does not draw leaves both as they are.
    """

    action: int
    log_prob: float = 0.0
    mask: tuple[bool, ...] = ()
    features: Any = field(default=None, compare=False)
    """What the router saw, as its loss takes it: `DecisionFeatures` of the trained one. The step of
    an execution carries them, and its record does not."""


class Router(Protocol):
    """Chooses the next action; see `RouteState`. Called in the event loop, so it must not wait."""

    def choose(self, state: RouteState) -> Choice:
        """An action that `state.mask` allows; another one is refused with `ConfigError`."""
        ...


class RankedRouter:
    """Takes the worker with the least finite key; gives up when none is left.

    `escalate` False tries one worker a node.
    """

    def __init__(
        self, key: Callable[[RouteState, int], float], *, escalate: bool = True, name: str = ""
    ) -> None:
        self.name = name
        self._key, self._escalate = key, escalate

    def choose(self, state: RouteState) -> Choice:
        """See `Router`."""
        keys = [(self._key(state, i), i) for i in state.candidates]
        known = [pair for pair in keys if pair[0] < math.inf]
        give_up = not known or (state.tries and not self._escalate)
        return Choice(state.stop if give_up else min(known)[1])


def cheapest(*, escalate: bool = True) -> RankedRouter:
    """The worker whose expected cost for this work is least."""
    return RankedRouter(lambda s, i: s.estimates[i].cost, escalate=escalate, name="cheapest")


def fastest() -> RankedRouter:
    """The worker that is expected to answer soonest."""
    return RankedRouter(lambda s, i: s.estimates[i].seconds, name="fastest")


def most_accurate(*, escalate: bool = True) -> RankedRouter:
    """The worker whose own share of right answers for this type is highest."""
    return RankedRouter(
        lambda s, i: -s.workers[i].skill(*s.work.labels), escalate=escalate, name="accurate"
    )


def greedy(weights: RewardWeights | None = None) -> RankedRouter:
    """The worker of the highest expected utility; after the first try, none when all are below 0.

    Utility = alpha * skill - beta * cost / references.cost - gamma * seconds / references.latency,
    with the weights of the reward: alpha is what a verified node is worth.
    """
    reward_weights = weights or RewardWeights()

    def key(state: RouteState, worker: int) -> float:
        estimate, against = state.estimates[worker], state.references or References(1.0, 1.0)
        utility = (
            reward_weights.alpha * state.workers[worker].skill(*state.work.labels)
            - reward_weights.beta * estimate.cost / against.cost
            - reward_weights.gamma_latency * estimate.seconds / against.latency
        )
        return math.inf if state.tries and utility <= 0 else -utility

    return RankedRouter(key, name="greedy")


def cascade(names: Sequence[str]) -> RankedRouter:
    """A fixed order of workers by name; those that it does not name are never asked.

    Raises `ConfigError` when it is empty.
    """
    if not names:
        raise ConfigError("a cascade names no workers; give them in the order of asking")
    order = {name: float(place) for place, name in enumerate(names)}
    return RankedRouter(lambda s, i: order.get(s.workers[i].name, math.inf), name="cascade")


class RandomRouter:
    """A worker drawn evenly among the legal ones, by the seed of the try."""

    name = "random"

    def __init__(self, *, escalate: bool = True) -> None:
        self._escalate = escalate

    def choose(self, state: RouteState) -> Choice:
        """See `Router`. The log-probability is that of the even draw."""
        numbers = state.candidates
        if not numbers or (state.tries and not self._escalate):
            return Choice(state.stop)
        mask = (*state.mask[:-2], False, False)
        return Choice(state.seeds.python().choice(numbers), -math.log(len(numbers)), mask)
