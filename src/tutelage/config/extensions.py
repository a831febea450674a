"""What the configuration reads of an estimator, a loss and an agent type: what each declares.

Three keys name a thing that a user may add to. What belongs to one of them (which keys it reads,
what it takes where nobody chose, what it cannot work with) is declared where it is written, and
`resolve.py`, `checks.py` and `unused.py` ask the declaration: no name of one stands in them. The
registries come with `Built` (`weights/built.py` has them): reading a declaration may load torch,
which this package does not. Without registries, names are taken as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tutelage.config.problems import Problem
from tutelage.config.schema import RunConfig

ESTIMATOR, LOSS, AGENT = (
    "algorithm.adv_estimator",
    "actor.policy_loss.loss_mode",
    "agent.agent_type",
)
CONTROL = "trainer.control"
NO_ESTIMATOR = ("none", "auto")
"""What `trainer.control` may say instead of the name of an estimator."""


class LearningRule(Protocol):
    """What an estimator and a loss declare alike."""

    @property
    def reads(self) -> Collection[str]:
        """The keys that it reads and others of its kind may not; a name that ends in `.` is all
        that begin so."""
        ...

    @property
    def defaults(self) -> Mapping[str, object]:
        """What it takes for keys that nobody chose."""
        ...


class EstimatorRule(LearningRule, Protocol):
    """What an advantage estimator declares."""

    @property
    def groups(self) -> bool:
        """Whether it compares the rollouts of one task."""
        ...

    @property
    def lonely(self) -> bool:
        """Whether it can learn from a group of one, with `algorithm.single_member=verl`."""
        ...

    @property
    def critic(self) -> bool:
        """Whether it needs a critic."""
        ...

    @property
    def baselines(self) -> bool:
        """Whether it needs a greedy rollout of each task."""
        ...


class LossRule(LearningRule, Protocol):
    """What a policy loss declares."""

    @property
    def source(self) -> str:
        """Who says what it takes, in words that follow "as"."""
        ...

    def contradictions(
        self, aggregation: str | None, low: float | None, high: float | None
    ) -> Iterable[tuple[str, object, object]]:
        """(key of `actor`, value, its own) of each choice that its paper contradicts."""
        ...

    def impossible(self, options: Mapping[str, object]) -> Iterable[tuple[str, str, str]]:
        """(option, what is wrong with it, the way out) of options that cannot be meant."""
        ...


class AgentRule(Protocol):
    """What an agent type declares."""

    def refusal(self, tools: Sequence[str]) -> tuple[str, str] | None:
        """Why it cannot use tools of these names, and the way out; None where it can."""
        ...


Rule = TypeVar("Rule", covariant=True)


class Declarations(Protocol[Rule]):
    """The entries of one key by name, and from files of the user's (`tools/extensions.py`)."""

    def __iter__(self) -> Iterator[str]: ...

    def load(self, name: str) -> Rule:
        """The entry of a name or of `FILE.py:name`; raises `ConfigError`."""
        ...

    def problem(self, name: str) -> tuple[str, str] | None:
        """What is wrong with a name that stands for nothing, and the way out."""
        ...


@dataclass(frozen=True, slots=True)
class Extensions:
    """The registries of the three keys; None where names are not looked up."""

    estimators: Declarations[EstimatorRule] | None = None
    losses: Declarations[LossRule] | None = None
    agents: Declarations[AgentRule] | None = None

    def names(self) -> dict[str, tuple[str, ...]]:
        """The registered names by key, those of `trainer.control` too."""
        known = {ESTIMATOR: self.estimators, LOSS: self.losses, AGENT: self.agents}
        found = {key: tuple(names) for key, names in known.items() if names is not None}
        if ESTIMATOR in found:
            found[CONTROL] = (*NO_ESTIMATOR, *found[ESTIMATOR])
        return found

    def estimator(self, name: str) -> EstimatorRule | None:
        """What the estimator declares, None for a name that is not registered."""
        return _rule(self.estimators, name)

    def loss(self, name: str) -> LossRule | None:
        """What the loss declares, None for a name that is not registered."""
        return _rule(self.losses, name)

    def agent(self, name: str) -> AgentRule | None:
        """What the agent type declares, None for a name that is not registered."""
        return _rule(self.agents, name)

    def problems(self, config: RunConfig) -> Iterator[Problem]:
        """The names that stand for nothing."""
        for key, value, registry in (
            (ESTIMATOR, config.algorithm.adv_estimator, self.estimators),
            (LOSS, config.actor.policy_loss.loss_mode, self.losses),
            (AGENT, config.agent.agent_type, self.agents),
            (CONTROL, config.trainer.control, self.estimators),
        ):
            if key == CONTROL and value in NO_ESTIMATOR:
                continue
            wrong = None if registry is None else registry.problem(value)
            if wrong is not None:
                yield Problem(key, value, *wrong)

    def unread(self, config: RunConfig) -> Iterator[tuple[str, str]]:
        """(key, reason) of what another estimator or loss would read, and this one does not."""
        yield from _unread(ESTIMATOR, config.algorithm.adv_estimator, self.estimators)
        yield from _unread(LOSS, config.actor.policy_loss.loss_mode, self.losses)


def _rule(registry: Declarations[Rule] | None, name: str) -> Rule | None:
    return None if registry is None or registry.problem(name) else registry.load(name)


def _unread(
    key: str, name: str, registry: Declarations[LearningRule] | None
) -> Iterator[tuple[str, str]]:
    rule = _rule(registry, name)
    if registry is None or rule is None:
        return
    readers: dict[str, list[str]] = {}
    for other in registry:
        for read in registry.load(other).reads:
            readers.setdefault(read, []).append(other)
    for read, names in readers.items():
        if read not in rule.reads:
            yield read, f"only {key}={' or '.join(names)} reads it"
