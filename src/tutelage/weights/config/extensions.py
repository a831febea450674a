"""Look up the extensions that a configuration names: estimators, losses and agent types.

The registries of these three keys can be extended by users. An extension declares its defaults and
requirements with its function (`algorithms/extensions.py`, `agents/loop.py`), and resolving, checks
and the trainer read the declaration. Extensions are loaded on first use.
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
"""Values of `trainer.control` other than names of estimators."""


def registered_names() -> dict[str, tuple[str, ...]]:
    """Return the registered names by key, including those of `trainer.control`."""
    known: Mapping[str, Mapping[str, Any]] = {ESTIMATOR: ESTIMATORS, LOSS: LOSSES, AGENT: AGENTS}
    values = {key: tuple(registry) for key, registry in known.items()}
    return values | {CONTROL: (*NO_ESTIMATOR, *values[ESTIMATOR])}


def unknown_names(config: RunConfig) -> Iterator[ConfigIssue]:
    """Yield a problem for each unknown extension name in a configuration."""
    for key, name, registry in _list_extensions(config):
        if (wrong := registry.check_name(name)) is not None:
            yield ConfigIssue(key, name, *wrong)


def load_extensions(config: RunConfig) -> None:
    """Load the configured estimators, losses and agent types from user files.

    Raises `ConfigError` if an extension is invalid.
    """
    for _, name, registry in _list_extensions(config):
        registry.load(name)


def _list_extensions(config: RunConfig) -> list[tuple[str, str, ExtensionRegistry[Any]]]:
    """Return (key, name, registry) of all configured extensions."""
    control = config.trainer.control
    return [
        (ESTIMATOR, config.algorithm.adv_estimator, ESTIMATORS),
        (LOSS, config.actor.policy_loss.loss_mode, LOSSES),
        (AGENT, config.agent.agent_type, AGENTS),
        *([] if control in NO_ESTIMATOR else [(CONTROL, control, ESTIMATORS)]),
    ]


def has_critic(config: RunConfig) -> bool:
    """Return True if the configuration trains a critic."""
    return config.algorithm.name == "rl" and ESTIMATORS.find(config.algorithm.adv_estimator).critic
