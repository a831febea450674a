"""Environments: what a rollout acts in, in gymnasium's words.

`protocol.py` has the protocol. A class with `@tool` methods is one through the adapter in
`tutelage.tools.environments`.
"""

from tutelage.environments.protocol import Environment, EnvironmentFactory, Observation, Step

__all__ = ["Environment", "EnvironmentFactory", "Observation", "Step"]
