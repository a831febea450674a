"""Which advantage estimators and policy losses there are, and how a function becomes one.

One of either is a file with a function under `@estimator(...)` or `@loss(...)`, and its name in
`ESTIMATORS` or `LOSSES` below. What it needs is said there and nowhere else: `config/extensions.py`
has what may be declared and takes defaults and unread keys from it, and the trainer asks it for
what to prepare. A function in a file of the user's becomes one in the same way, by `FILE.py:name`.
Nothing here loads torch: the formulas in `rl/` do, when one is asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tutelage.config.extensions import Estimator, Loss
from tutelage.errors import ConfigError
from tutelage.tools.extensions import ExtensionRegistry

if TYPE_CHECKING:
    from tutelage.algorithms.rl.advantages.packed import Estimate, Packed
    from tutelage.algorithms.rl.losses.common import TokenLoss


def estimator(**needs: Any) -> Callable[[Callable[[Packed], Estimate]], Estimator]:
    """Declare a function of a `Packed` batch as an advantage estimator; `needs` are `Estimator`'s
    fields."""
    return partial(Estimator, **needs)


def loss(**needs: Any) -> Callable[[Callable[..., TokenLoss]], Loss]:
    """Declare a function of `LossInputs` as a policy loss; `needs` are `Loss`'s fields."""
    return partial(Loss, **needs)


def _as_estimator(found: object) -> Estimator:
    """What a user's file holds, as an estimator; a plain function declares nothing."""
    made = found if isinstance(found, Estimator) else Estimator(_function(found))
    _check_call(made.function, "(batch)", "batch: Packed")
    return made


def _as_loss(found: object) -> Loss:
    made = found if isinstance(found, Loss) else Loss(_function(found))
    _check_call(made.function, "(inputs)", "inputs: LossInputs, *, option=default")
    return made


def _function(found: object) -> Callable[..., Any]:
    if not inspect.isfunction(found):
        raise ConfigError(f"is a {type(found).__name__}; point at a function")
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
        raise ConfigError(f"is async, and is called without an event loop; write def {wanted}")


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
