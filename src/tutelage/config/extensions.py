"""What an estimator, a loss and an agent type declare, and what the configuration makes of it.

Three keys name a thing that a user may add to. What belongs to one of them (which keys it reads,
what it takes where nobody chose, what it cannot work with) is declared where it is written, with
the fields below, and `resolve.py`, `checks.py` and `unused.py` ask the declaration: no name of one
stands in them. The registries come with `Built` (`weights/built.py` has them): reading a
declaration may load torch, which this package does not. Without registries, names are taken as
they are. The estimators and losses themselves are in `algorithms/rl`, agent types in `agents`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar

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


CLIP_KEYS = ("actor.clip_ratio_low", "actor.clip_ratio_high")
OPTIONS = "actor.policy_loss."


def _none_wrong(**options: Any) -> Iterable[tuple[str, str, str]]:
    return ()


@dataclass(frozen=True, slots=True)
class Estimator:
    """An advantage estimator: its function, and what it needs."""

    function: Callable[[Any], Any]
    """Makes an `Estimate` of a `Packed` batch (`algorithms/rl/advantages`)."""
    groups: bool = False
    """Whether it compares the rollouts of one task."""
    lonely: bool = True
    """Whether `algorithm.single_member=verl` lets it learn from a group of one."""
    critic: bool = False
    """Whether it needs a critic's values."""
    baselines: bool = False
    """Whether it needs the reward of one greedy rollout of each task."""
    chains: int | None = None
    """Its own `agent.num_chains`; None takes that of the recipe."""
    settings: tuple[str, ...] = ()
    """Further keys that it reads, such as `algorithm.gamma`."""

    def __call__(self, batch: Any) -> Any:
        """Advantages and returns of a batch."""
        return self.function(batch)

    @property
    def reads(self) -> tuple[str, ...]:
        """The keys that it reads and not every estimator does; `critic.` stands for a section."""
        compared = ("algorithm.single_member",) if self.groups else ()
        valued = ("critic.", "trainer.critic_warmup") if self.critic else ()
        return (*self.settings, *compared, *valued)

    @property
    def defaults(self) -> Mapping[str, object]:
        """What it takes for keys that nobody set."""
        return {} if self.chains is None else {"agent.num_chains": self.chains}


@dataclass(frozen=True, slots=True)
class Loss:
    """A policy loss: its function, what it takes where nobody says otherwise, and what it needs.

    The keyword arguments of `function`, and of `select`, are its options: those that are keys of
    `actor.policy_loss` are given the configured values.
    """

    function: Callable[..., Any]
    """Makes a `TokenLoss` of `LossInputs` (`algorithms/rl/losses`)."""
    source: str = "it declares it"
    """Who says so, in words that follow "as"."""
    aggregation: str = "token-mean"
    clip: tuple[float, float] | None = None
    """Clip distances, low and high; None where the loss clips no ratio."""
    dual_clip: bool = False
    """Whether it reads `actor.clip_ratio_c`."""
    sequence_level: bool = False
    """Whether its paper averages by sequence, so that another aggregation is another algorithm."""
    fitting_low: tuple[float, float] = (0.0, math.inf)
    """Clip distances below that its paper does not contradict."""
    fitting_high: tuple[float, float] = (0.0, math.inf)
    """Clip distances above that its paper does not contradict."""
    whole_rollouts: bool = False
    """Whether it weighs a token by all of its rollout, so that its rows may not be parted."""
    zero_advantages: bool = False
    """Whether tokens have a gradient also where the advantage is zero."""
    select: Callable[..., Any] | None = None
    """Selects tokens of a whole optimizer batch, [B, T] bool, from `(logp_BT, advantages_BT,
    mask_BT)` and options; the loss is given its rows as `selection_BT`."""
    wrong: Callable[..., Iterable[tuple[str, str, str]]] = _none_wrong
    """Finds what `impossible` tells, from the options as keyword arguments."""

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """The loss of each token."""
        return self.function(inputs, **options)

    @property
    def name(self) -> str:
        """Its function's name, which is its address in the seed tree."""
        return self.function.__name__

    @property
    def options(self) -> tuple[str, ...]:
        """The keyword arguments of its function."""
        return _keywords(self.function)

    @property
    def selecting(self) -> tuple[str, ...]:
        """The keyword arguments of its selection, if it makes one."""
        return () if self.select is None else _keywords(self.select)

    @property
    def reads(self) -> tuple[str, ...]:
        """The keys that it reads and not every loss does."""
        clip = ("actor.clip_ratio", *CLIP_KEYS) if self.clip else ()
        dual = ("actor.clip_ratio_c",) if self.dual_clip else ()
        options = dict.fromkeys((*self.options, *self.selecting))
        return (*clip, *dual, *(f"{OPTIONS}{name}" for name in options))

    @property
    def defaults(self) -> Mapping[str, object]:
        """What it takes for keys that nobody set."""
        clip = {} if self.clip is None else zip(CLIP_KEYS, self.clip, strict=True)
        return {"actor.loss_agg_mode": self.aggregation, **dict(clip)}

    def impossible(self, options: Mapping[str, object]) -> Iterable[tuple[str, str, str]]:
        """(option, what is wrong with it, the way out) of values that cannot be meant."""
        return self.wrong(**options)

    def contradictions(
        self, aggregation: str | None, low: float | None, high: float | None
    ) -> Iterator[tuple[str, object, object]]:
        """(key of `actor`, value, the loss's own) of each choice that its paper contradicts; None
        is no choice."""
        if aggregation is not None and self.sequence_level and aggregation != self.aggregation:
            yield "loss_agg_mode", aggregation, self.aggregation
        if self.clip is None:
            return
        for key, value, fitting, own in (
            ("clip_ratio_low", low, self.fitting_low, self.clip[0]),
            ("clip_ratio_high", high, self.fitting_high, self.clip[1]),
        ):
            if value is not None and not fitting[0] <= value <= fitting[1]:
                yield key, value, own


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

    estimators: Declarations[Estimator] | None = None
    losses: Declarations[Loss] | None = None
    agents: Declarations[AgentRule] | None = None

    def names(self) -> dict[str, tuple[str, ...]]:
        """The registered names by key, those of `trainer.control` too."""
        known = {ESTIMATOR: self.estimators, LOSS: self.losses, AGENT: self.agents}
        found = {key: tuple(names) for key, names in known.items() if names is not None}
        if ESTIMATOR in found:
            found[CONTROL] = (*NO_ESTIMATOR, *found[ESTIMATOR])
        return found

    def estimator(self, name: str) -> Estimator | None:
        """What the estimator declares, None for a name that is not registered."""
        return _rule(self.estimators, name)

    def loss(self, name: str) -> Loss | None:
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
    key: str, name: str, registry: Declarations[Estimator | Loss] | None
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


@cache
def _keywords(function: Callable[..., object]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
