"""The built-in agent types by their `agent.agent_type`; users' types are `FILE.py:Class`.

A type is one file with a class that inherits from `LoopAgent` (`loop.py`), which declares its
needs, and one line here. `weights/inputs.py` and `evaluate/targets.py` create agents from a
configuration.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from tutelage.agents.loop import LoopAgent
from tutelage.config import RunConfig
from tutelage.errors import ConfigError
from tutelage.tools.extensions import ExtensionRegistry
from tutelage.tools.tool import Tool
from tutelage.types import Sampling, ToolSpec


def template_tools(config: RunConfig, tools: Mapping[str, Tool]) -> list[ToolSpec]:
    """Return the tools that the agent passes to the model's chat template.

    Raises `ConfigError` if calls are required and there is no tool to call.
    """
    kind = config.agent.agent_type
    told = AGENTS.find(kind)(tools, Sampling()).tool_specs()
    if config.needs_calls and not told:
        raise ConfigError(
            f"agent.tool_choice='required': the agent {kind!r} passes no tools to the chat "
            "template, so tool calls cannot be enforced; use agent.agent_type=hf with tools, or "
            "remove agent.tool_choice"
        )
    return told


def _check_agent_type(value: object) -> type[LoopAgent]:
    """Return a loaded object if it is an agent type. Raises `ConfigError` otherwise."""
    if not isinstance(value, type) or not issubclass(value, LoopAgent):
        kind = value.__name__ if isinstance(value, type) else type(value).__name__
        raise ConfigError(
            f"must be a class that inherits from tutelage.agents.loop.LoopAgent, not {kind}"
        )
    for name in ("play", "tool_specs", "read", "observe", "refusal"):
        method, own = getattr(value, name), getattr(LoopAgent, name)
        parameters = [*inspect.signature(own).parameters]
        missing = getattr(method, "__isabstractmethod__", False)
        if missing or [*inspect.signature(method).parameters] != parameters:
            prefix = "async " if inspect.iscoroutinefunction(own) else ""
            raise ConfigError(f"must define {prefix}def {name}({', '.join(parameters)})")
    try:
        inspect.signature(value).bind(
            tools={}, sampling=None, max_turns=1, token_budget=1, system_prompt=None
        )
    except TypeError as error:
        raise ConfigError(
            f"cannot be created with the settings of the loop: {error}; give all added fields "
            "a default"
        ) from error
    return value


AGENTS = ExtensionRegistry(
    "agent.agent_type",
    {
        "hf": "tutelage.agents.tool_calling:ToolCallingAgent",
        "react": "tutelage.agents.react:ReactAgent",
        "code": "tutelage.agents.code:CodeAgent",
    },
    _check_agent_type,
)
"""The values of `agent.agent_type`."""
