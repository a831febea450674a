"""Environments in gymnasium's terms, in which an agent acts during a rollout.

`protocol.py` has the protocol, `loading.py` loads an environment by name, `lifecycle.py` opens,
steps and closes the instance of a rollout, `episode.py` plays without a model, `tool_classes.py`
adapts classes with `@tool` methods.
"""

from tutelage.environments.episode import PlayedEpisode, check_deterministic, play_episode
from tutelage.environments.lifecycle import RolloutEnvironment, rollout_environments
from tutelage.environments.loading import as_factory, load_environment
from tutelage.environments.protocol import Environment, EnvironmentFactory, Observation, Step
from tutelage.environments.tool_classes import ToolEnvironment

__all__ = [
    "Environment",
    "EnvironmentFactory",
    "Observation",
    "PlayedEpisode",
    "RolloutEnvironment",
    "Step",
    "ToolEnvironment",
    "as_factory",
    "check_deterministic",
    "load_environment",
    "play_episode",
    "rollout_environments",
]
