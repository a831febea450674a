"""What is built: the limits of `config/facts.py`, with the registries of what a user may add to.

A configuration is resolved with `built()`. Which estimator, loss and agent a run has is asked of
the registries themselves, wherever it matters.
"""

from __future__ import annotations

from dataclasses import replace

from tutelage.agents.builtin import AGENTS
from tutelage.algorithms.extensions import ESTIMATORS, LOSSES
from tutelage.config import BUILT, Built, RunConfig
from tutelage.config.extensions import NO_ESTIMATOR, Extensions


def built() -> Built:
    """What is built, with what estimators, losses and agent types declare."""
    return replace(BUILT, extensions=Extensions(ESTIMATORS, LOSSES, AGENTS))


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
