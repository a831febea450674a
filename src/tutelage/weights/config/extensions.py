"""What a configuration asks of the registries: estimators, losses and agent types.

Three keys name a thing that a user may add to. What belongs to one of them it declares where it is
written (`algorithms/extensions.py`, `agents/loop.py`), and resolving, checks and the trainer ask
the declaration: no name of one stands in them. An entry is loaded when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tutelage.agents.builtin import AGENTS
from tutelage.algorithms.extensions import ESTIMATOR, ESTIMATORS, LOSS, LOSSES
from tutelage.config import RunConfig
from tutelage.config.issues import ConfigIssue
from tutelage.tools.extensions import ExtensionRegistry

AGENT, CONTROL = "agent.agent_type", "trainer.control"
NO_ESTIMATOR = ("none", "auto")
"""What `trainer.control` may say instead of the name of an estimator."""


def registered_names() -> dict[str, tuple[str, ...]]:
    """The registered names by key, those of `trainer.control` too."""
    known: Mapping[str, Mapping[str, Any]] = {ESTIMATOR: ESTIMATORS, LOSS: LOSSES, AGENT: AGENTS}
    values = {key: tuple(registry) for key, registry in known.items()}
    return values | {CONTROL: (*NO_ESTIMATOR, *values[ESTIMATOR])}


def unknown_names(config: RunConfig) -> Iterator[ConfigIssue]:
    """The unknown names."""
    for key, name, registry in _named(config):
        if (wrong := registry.name_problem(name)) is not None:
            yield ConfigIssue(key, name, *wrong)


def load_extensions(config: RunConfig) -> None:
    """Read the files that a configuration names an estimator, a loss or an agent type in, as they
    are now. Raises `ConfigError` if one is not valid."""
    for _, name, registry in _named(config):
        registry.load(name)


def _named(config: RunConfig) -> list[tuple[str, str, ExtensionRegistry[Any]]]:
    """(key, name, registry) of what is asked for."""
    control = config.trainer.control
    return [
        (ESTIMATOR, config.algorithm.adv_estimator, ESTIMATORS),
        (LOSS, config.actor.policy_loss.loss_mode, LOSSES),
        (AGENT, config.agent.agent_type, AGENTS),
        *([] if control in NO_ESTIMATOR else [(CONTROL, control, ESTIMATORS)]),
    ]


def has_critic(config: RunConfig) -> bool:
    """Whether a value function is trained."""
    return config.algorithm.name == "rl" and ESTIMATORS.find(config.algorithm.adv_estimator).critic
