"""What a user hands over as an agent, as the `Program` that the runner plays.

`function.py`, `lit_agent.py` and `external.py` are the three kinds there are.
"""

from __future__ import annotations

from typing import Any

from tutelage.agents.function import AgentFunction
from tutelage.agents.program import Program
from tutelage.errors import ConfigError


def as_program(agent: Any) -> Program:
    """The program for what a user hands over. Raises `ConfigError` for what is none."""
    if isinstance(agent, type):
        raise ConfigError(f"{agent.__name__} is a class; hand over an instance: {agent.__name__}()")
    if isinstance(agent, Program):
        return agent
    if callable(agent):
        return AgentFunction(agent)
    raise ConfigError(
        f"{agent!r} is no agent: use a function with @rollout, a LitAgent, or an ExternalAgent"
    )
