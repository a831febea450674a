"""Which advantage estimators and policy losses there are, and how a function becomes one.

One of either is a file with a function under `@estimator(...)` or `@loss(...)`, and its name in
`ESTIMATORS` or `LOSSES` below. What it needs (which keys it reads, what it takes where nobody
chose, what it cannot work with) is said there and nowhere else: a configuration takes defaults and
unread keys from it (`weights/config/`), and the trainer asks it for what to prepare. A function in
a user's file becomes one in the same way, by `FILE.py:name`. Nothing here loads torch: the
formulas in `rl/` do, when one is asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from tutelage.errors import ConfigError
from tutelage.tools.extensions import ExtensionRegistry
from tutelage.tools.loading import hint

if TYPE_CHECKING:
    from tutelage.algorithms.rl.advantages.packed import Estimate, Packed
    from tutelage.algorithms.rl.losses.common import TokenLoss


CLIP_KEYS = ("actor.clip_ratio_low", "actor.clip_ratio_high")
OPTIONS = "actor.policy_loss."
OWN_CLIP = (0.2, 0.2)
"""The clip range of a user's loss that declares none: PPO's (arXiv 1707.06347, section 3)."""


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
        """The keys that it reads and not every estimator does; `critic.` is a section."""
        compared = ("algorithm.single_member",) if self.groups else ()
        critic = ("critic.", "trainer.critic_warmup", "algorithm.bootstrap_truncated")
        valued = critic if self.critic else ()
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
    aggregation: str = "token-mean"
    clip: tuple[float, float] | None = None
    """Clip distances, low and high; None where the loss clips no ratio."""
    dual_clip: bool = False
    """Whether it reads `actor.clip_ratio_c`."""
    whole_rollouts: bool = False
    """Whether it weighs a token by all of its rollout, so that its rows may not be parted."""
    zero_advantages: bool = False
    """Whether tokens have a gradient also where the advantage is zero."""
    select: Callable[..., Any] | None = None
    """Selects tokens of a whole optimizer batch, [B, T] bool, from `(logp_BT, advantages_BT,
    mask_BT)` and options; the loss is given its rows as `selection_BT`."""
    wrong: Callable[..., Iterable[tuple[str, str, str]]] = _none_wrong
    """Finds what `impossible` tells, from the options as keyword arguments."""

    def __post_init__(self) -> None:
        clip: Any = self.clip  # a user's file is not typed
        if clip is not None and not (isinstance(clip, tuple) and len(clip) == 2):
            raise TypeError(f"@loss(clip={clip!r}) must be (low, high), such as {OWN_CLIP}")

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


@cache
def _keywords(function: Callable[..., object]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def estimator(
    *misplaced: object, **needs: Any
) -> Callable[[Callable[[Packed], Estimate]], Estimator]:
    """Declare a function of a `Packed` batch as an advantage estimator; `needs` are `Estimator`'s
    fields. Raises `TypeError` for other names, and without parentheses."""
    _check_needs("estimator", Estimator, misplaced, needs)
    return partial(Estimator, **needs)


def loss(*misplaced: object, **needs: Any) -> Callable[[Callable[..., TokenLoss]], Loss]:
    """Declare a function of `LossInputs` as a policy loss; `needs` are `Loss`'s fields. Raises
    `TypeError` for other names, and without parentheses."""
    _check_needs("loss", Loss, misplaced, needs)
    return partial(Loss, **needs)


def _check_needs(name: str, made: type, misplaced: Iterable[object], needs: Iterable[str]) -> None:
    if any(True for _ in misplaced):
        raise TypeError(f"use @{name}() with parentheses")
    known = [field.name for field in fields(made) if field.name != "function"]
    for need in needs:
        if need not in known:
            raise TypeError(
                f"@{name} has no option {need!r}{hint(need, known)}; use {', '.join(known)}"
            )


def _as_estimator(found: object) -> Estimator:
    """What a user's file holds, as an estimator; a plain function declares nothing."""
    made = found if isinstance(found, Estimator) else Estimator(_function(found))
    _check_call(made.function, "(batch)", "batch: Packed")
    return made


def _as_loss(found: object) -> Loss:
    """What a user's file holds, as a loss, which may read the clip range without declaring one."""
    made = found if isinstance(found, Loss) else Loss(_function(found))
    _check_call(made.function, "(inputs)", "inputs: LossInputs, *, option=default")
    return replace(made, clip=made.clip or OWN_CLIP, dual_clip=True)


def _function(found: object) -> Callable[..., Any]:
    if not inspect.isfunction(found):
        raise ConfigError(f"is a {type(found).__name__}; pass a function")
    return found


def _check_call(function: Callable[..., object], call: str, wanted: str) -> None:
    """Raise `ConfigError` unless the function takes one argument and awaits nothing."""
    signature = inspect.signature(function)
    try:
        signature.bind(object())
    except TypeError as error:
        raise ConfigError(
            f"cannot be called as {function.__name__}{call}: {error}; declare it as "
            f"{function.__name__}({wanted})"
        ) from error
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"is async, which is not supported; use def {wanted}")


_RL = "tutelage.algorithms.rl"
ESTIMATORS = ExtensionRegistry(
    "algorithm.adv_estimator",
    {
        name: f"{_RL}.advantages.{name}:{name}"
        for name in (
            "gae",
            "grpo",
            "rloo",
            "reinforce_plus_plus",
            "reinforce_plus_plus_baseline",
            "remax",
            "opo",
            "gpg",
            "grpo_passk",
            "maxrl",
            "raft",
            "best_of_n",
            "advantage_filtered",
        )
    },
    _as_estimator,
)
"""The values of `algorithm.adv_estimator`: each is the function of its name in the file of its
name."""

LOSSES = ExtensionRegistry(
    "actor.policy_loss.loss_mode",
    {
        name: f"{_RL}.losses.{name}:{name}"
        for name in (
            "vanilla",
            "gspo",
            "cispo",
            "sapo",
            "gpg",
            "geo_mean",
            "clip_cov",
            "kl_cov",
        )
    },
    _as_loss,
)
"""The values of `actor.policy_loss.loss_mode`, found as the estimators are."""

ESTIMATOR, LOSS = ESTIMATORS.key, LOSSES.key
METHODS: dict[str, dict[str, Any]] = {
    "ppo": {ESTIMATOR: "gae"},
    **{name: {ESTIMATOR: "grpo", LOSS: name} for name in LOSSES if name != "vanilla"},
    **{name: {ESTIMATOR: name} for name in ESTIMATORS},
    "gpg": {ESTIMATOR: "gpg", LOSS: "gpg"},
    "dr_grpo": {ESTIMATOR: "grpo", "algorithm.norm_adv_by_std_in_grpo": False},
    "dapo": {ESTIMATOR: "grpo"},
}
"""Methods by the name that `algorithm` and `--algorithm` take, with the keys that define each: a
user's key that says otherwise is refused."""
METHOD_DEFAULTS: dict[str, dict[str, Any]] = {
    "dr_grpo": {"actor.loss_agg_mode": "seq-mean-token-sum-norm", "actor.use_kl_loss": False},
    "dapo": {
        "actor.clip_ratio_high": 0.28,
        "actor.use_kl_loss": False,
        "algorithm.filter_groups.enable": True,
    },
}
"""Further keys of a method, which users' keys win over."""
