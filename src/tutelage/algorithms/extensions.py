"""The registries of advantage estimators and policy losses, and the decorators that declare them.

An estimator or loss is a function under `@estimator(...)` or `@loss(...)` in a file of its own,
with its name in `ESTIMATORS` or `LOSSES` below. Its decorator declares which keys it reads, its
default values and its requirements, and nothing else repeats them: the configuration
(`weights/config/`) and the trainer read the declaration. A function in a user's file is declared in
the same way and named `FILE.py:name`. This module does not need torch; the formulas in `rl/`, which
do, are imported on first use.
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


def _accept_options(**options: Any) -> Iterable[tuple[str, str, str]]:
    return ()


@dataclass(frozen=True, slots=True)
class Estimator:
    """An advantage estimator: its function and its requirements."""

    function: Callable[[Any], Any]
    """Computes an `Estimate` from a `Packed` batch (`algorithms/rl/advantages`)."""
    groups: bool = False
    """True if the estimator compares the rollouts of one task."""
    lonely: bool = True
    """True if the estimator can learn from a single rollout with `algorithm.single_member=verl`."""
    critic: bool = False
    """True if the estimator needs a critic's values."""
    baselines: bool = False
    """True if the estimator needs the reward of one greedy rollout of each task."""
    chains: int | None = None
    """Default of `agent.num_chains`, or None for the recipe's default."""
    settings: tuple[str, ...] = ()
    """Other keys that the estimator reads, such as `algorithm.gamma`."""

    def __call__(self, batch: Any) -> Any:
        """Return the advantages and returns of a batch."""
        return self.function(batch)

    @property
    def config_keys(self) -> tuple[str, ...]:
        """Return the config keys that this estimator reads in addition to the common keys.

        A key that ends with a period, such as `critic.`, is a whole section.
        """
        compared = ("algorithm.single_member",) if self.groups else ()
        critic = ("critic.", "trainer.critic_warmup", "algorithm.bootstrap_truncated")
        valued = critic if self.critic else ()
        return (*self.settings, *compared, *valued)

    @property
    def defaults(self) -> Mapping[str, object]:
        """Return this estimator's default values of config keys."""
        return {} if self.chains is None else {"agent.num_chains": self.chains}


@dataclass(frozen=True, slots=True)
class Loss:
    """A policy loss: its function, its default settings and its requirements.

    The keyword arguments of `function` and of `select` are its options. An option that is a key of
    `actor.policy_loss` gets the configured value.
    """

    function: Callable[..., Any]
    """Computes a `TokenLoss` from `LossInputs` (`algorithms/rl/losses`)."""
    aggregation: str = "token-mean"
    clip: tuple[float, float] | None = None
    """Default clip range, low and high, or None if the loss does not clip ratios."""
    dual_clip: bool = False
    """True if the loss reads `actor.clip_ratio_c`."""
    whole_rollouts: bool = False
    """True if a token's loss depends on its whole rollout, whose rows then share a micro-batch."""
    zero_advantages: bool = False
    """True if tokens with an advantage of zero have a gradient too."""
    select: Callable[..., Any] | None = None
    """Selects tokens of a whole optimizer batch, [B, T] bool, from `(logp_BT, advantages_BT,
    mask_BT)` and options; the loss gets its rows of the selection as `selection_BT`."""
    wrong: Callable[..., Iterable[tuple[str, str, str]]] = _accept_options
    """Yields invalid options, given as keyword arguments, as (option, problem, advice)."""

    def __post_init__(self) -> None:
        clip: Any = self.clip  # a user's file is not typed
        if clip is not None and not (isinstance(clip, tuple) and len(clip) == 2):
            raise TypeError(f"@loss(clip={clip!r}) must be (low, high), such as {OWN_CLIP}")

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Return the loss of each token."""
        return self.function(inputs, **options)

    @property
    def name(self) -> str:
        """Return the name of the function, which is also used as its path in the seed tree."""
        return self.function.__name__

    @property
    def options(self) -> tuple[str, ...]:
        """Return the names of the function's keyword arguments."""
        return _keyword_names(self.function)

    @property
    def selection_options(self) -> tuple[str, ...]:
        """Return the names of the keyword arguments of `select`, empty if `select` is None."""
        return () if self.select is None else _keyword_names(self.select)

    @property
    def config_keys(self) -> tuple[str, ...]:
        """Return the config keys that this loss reads in addition to the common keys."""
        clip = ("actor.clip_ratio", *CLIP_KEYS) if self.clip else ()
        dual = ("actor.clip_ratio_c",) if self.dual_clip else ()
        options = dict.fromkeys((*self.options, *self.selection_options))
        return (*clip, *dual, *(f"{OPTIONS}{name}" for name in options))

    @property
    def defaults(self) -> Mapping[str, object]:
        """Return this loss's default values of config keys."""
        clip = {} if self.clip is None else zip(CLIP_KEYS, self.clip, strict=True)
        return {"actor.loss_agg_mode": self.aggregation, **dict(clip)}

    def invalid_options(self, options: Mapping[str, object]) -> Iterable[tuple[str, str, str]]:
        """Return the invalid options as (option, problem, advice)."""
        return self.wrong(**options)


@cache
def _keyword_names(function: Callable[..., object]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def estimator(*args: object, **options: Any) -> Callable[[Callable[[Packed], Estimate]], Estimator]:
    """Decorator that declares a function of a `Packed` batch as an advantage estimator.

    `options` are fields of `Estimator`. Raises `TypeError` for other names, and if the parentheses
    are missing.
    """
    _check_fields("estimator", Estimator, args, options)
    return partial(Estimator, **options)


def loss(*args: object, **options: Any) -> Callable[[Callable[..., TokenLoss]], Loss]:
    """Decorator that declares a function of `LossInputs` as a policy loss.

    `options` are fields of `Loss`. Raises `TypeError` for other names, and if the parentheses are
    missing.
    """
    _check_fields("loss", Loss, args, options)
    return partial(Loss, **options)


def _check_fields(name: str, cls: type, args: Iterable[object], names: Iterable[str]) -> None:
    if any(True for _ in args):
        raise TypeError(f"use @{name}() with parentheses")
    allowed = [field.name for field in fields(cls) if field.name != "function"]
    for option in names:
        if option not in allowed:
            raise TypeError(
                f"@{name} has no option {option!r}{hint(option, allowed)}; use {', '.join(allowed)}"
            )


def _to_estimator(value: object) -> Estimator:
    """Convert an object from a user's file to an estimator. A plain function gets the defaults."""
    made = value if isinstance(value, Estimator) else Estimator(_require_function(value))
    _check_call(made.function, "(batch)", "batch: Packed")
    return made


def _to_loss(value: object) -> Loss:
    """Convert an object from a user's file to a loss, by default with the clip range of PPO."""
    made = value if isinstance(value, Loss) else Loss(_require_function(value))
    _check_call(made.function, "(inputs)", "inputs: LossInputs, *, option=default")
    return replace(made, clip=made.clip or OWN_CLIP, dual_clip=True)


def _require_function(value: object) -> Callable[..., Any]:
    if not inspect.isfunction(value):
        raise ConfigError(f"must be a function, not a {type(value).__name__}")
    return value


def _check_call(function: Callable[..., object], arguments: str, parameters: str) -> None:
    """Raise `ConfigError` unless the function is synchronous and takes one argument."""
    signature = inspect.signature(function)
    try:
        signature.bind(object())
    except TypeError as error:
        raise ConfigError(
            f"cannot be called as {function.__name__}{arguments}: {error}; declare it as "
            f"{function.__name__}({parameters})"
        ) from error
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"is async, which is not supported; use def {parameters}")


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
    _to_estimator,
)
"""The built-in values of `algorithm.adv_estimator`; estimator `NAME` is in `advantages/NAME.py`."""

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
    _to_loss,
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
