"""Environments in gymnasium's terms, in which an agent acts during a rollout.

`protocol.py` has the protocol, `loading.py` loads an environment by name, `lifecycle.py` opens,
steps and closes the instance of a rollout, `episode.py` plays without a model, `tool_classes.py`
adapts classes with `@tool` methods.
"""

from tutelage.environments.episode import PlayedEpisode as PlayedEpisode
from tutelage.environments.episode import check_deterministic as check_deterministic
from tutelage.environments.episode import play_episode as play_episode
from tutelage.environments.lifecycle import RolloutEnvironment as RolloutEnvironment
from tutelage.environments.lifecycle import rollout_environments as rollout_environments
from tutelage.environments.loading import as_factory as as_factory
from tutelage.environments.loading import load_environment as load_environment
from tutelage.environments.protocol import Environment as Environment
from tutelage.environments.protocol import EnvironmentFactory as EnvironmentFactory
from tutelage.environments.protocol import Observation as Observation
from tutelage.environments.protocol import Step as Step
from tutelage.environments.tool_classes import ToolEnvironment as ToolEnvironment
