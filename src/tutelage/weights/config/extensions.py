"""What a configuration asks of the registries: estimators, losses and agent types.

Three keys name a thing that a user may add to. What belongs to one of them it declares where it is
written (`algorithms/extensions.py`, `agents/loop.py`), and resolving, checks and the trainer ask
the declaration: no name of one stands in them. An entry is loaded when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tutelage.agents.builtin import AGENTS
from tutelage.agents.loop import LoopAgent
from tutelage.algorithms.extensions import ESTIMATORS, LOSSES, Estimator, Loss
from tutelage.config import RunConfig
from tutelage.config.problems import Problem
from tutelage.tools.extensions import ExtensionRegistry

ESTIMATOR, LOSS, AGENT = (
    "algorithm.adv_estimator",
    "actor.policy_loss.loss_mode",
    "agent.agent_type",
)
CONTROL = "trainer.control"
NO_ESTIMATOR = ("none", "auto")
"""What `trainer.control` may say instead of the name of an estimator."""


def registered_names() -> dict[str, tuple[str, ...]]:
    """The registered names by key, those of `trainer.control` too."""
    known: Mapping[str, Mapping[str, Any]] = {ESTIMATOR: ESTIMATORS, LOSS: LOSSES, AGENT: AGENTS}
    found = {key: tuple(registry) for key, registry in known.items()}
    return found | {CONTROL: (*NO_ESTIMATOR, *found[ESTIMATOR])}


def estimator_of(name: str) -> Estimator | None:
    """What the estimator declares, None for a name that stands for nothing."""
    return None if ESTIMATORS.problem(name) else ESTIMATORS.load(name)


def loss_of(name: str) -> Loss | None:
    """What the loss declares, None for a name that stands for nothing."""
    return None if LOSSES.problem(name) else LOSSES.load(name)


def agent_of(name: str) -> type[LoopAgent] | None:
    """The agent type, None for a name that stands for nothing."""
    return None if AGENTS.problem(name) else AGENTS.load(name)


def unknown_names(config: RunConfig) -> Iterator[Problem]:
    """The names that stand for nothing."""
    found: tuple[tuple[str, str, ExtensionRegistry[Any]], ...] = (
        (ESTIMATOR, config.algorithm.adv_estimator, ESTIMATORS),
        (LOSS, config.actor.policy_loss.loss_mode, LOSSES),
        (AGENT, config.agent.agent_type, AGENTS),
        (CONTROL, config.trainer.control, ESTIMATORS),
    )
    for key, name, registry in found:
        wrong = registry.problem(name)
        if wrong is not None and not (key == CONTROL and name in NO_ESTIMATOR):
            yield Problem(key, name, *wrong)


def unread(config: RunConfig) -> Iterator[tuple[str, str]]:
    """(key, reason) of what another estimator or loss would read, and this one does not."""
    yield from _unread(ESTIMATOR, estimator_of(config.algorithm.adv_estimator), ESTIMATORS)
    yield from _unread(LOSS, loss_of(config.actor.policy_loss.loss_mode), LOSSES)


def _unread(
    key: str, rule: Estimator | Loss | None, registry: Mapping[str, Estimator | Loss]
) -> Iterator[tuple[str, str]]:
    readers: dict[str, list[str]] = {}
    for name, other in registry.items():
        for read in other.reads:
            readers.setdefault(read, []).append(name)
    for read, names in readers.items():
        if rule is not None and read not in rule.reads:
            yield read, f"only {key}={' or '.join(names)} reads it"


def load_extensions(config: RunConfig) -> None:
    """Read the files that a configuration names an estimator, a loss or an agent type in, as they
    are now. Raises `ConfigError` for what is none."""
    ESTIMATORS.load(config.algorithm.adv_estimator)
    LOSSES.load(config.actor.policy_loss.loss_mode)
    AGENTS.load(config.agent.agent_type)
    if config.trainer.control not in NO_ESTIMATOR:
        ESTIMATORS.load(config.trainer.control)


def has_critic(config: RunConfig) -> bool:
    """Whether a value function is trained."""
    return config.algorithm.name == "rl" and ESTIMATORS.find(config.algorithm.adv_estimator).critic
