"""The built-in agents by the name that `agent.agent_type` gives them.

One constructor for all, because they take the same settings; each one's module says how it reads
turns. `weights/setting.py` and `evaluate/run.py` make them from a configuration.
"""

from __future__ import annotations

from collections.abc import Mapping

from tutelage.agents.code import EXECUTOR, CodeAgent
from tutelage.agents.react import ReactAgent
from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.tools.tool import Tool
from tutelage.types import Sampling

BuiltinAgent = ToolCallingAgent | ReactAgent | CodeAgent

AGENTS: Mapping[str, type[BuiltinAgent]] = {
    "hf": ToolCallingAgent,
    "react": ReactAgent,
    "code": CodeAgent,
}
"""Agents by name."""

OWN_TOOLS: Mapping[str, tuple[str, ...]] = {"code": (EXECUTOR,)}
"""Tools that an agent has when none are named."""


def builtin_agent(
    kind: str,
    tools: Mapping[str, Tool],
    sampling: Sampling,
    *,
    max_turns: int,
    token_budget: int,
    system_prompt: str | None = None,
) -> BuiltinAgent:
    """The agent of a kind in `AGENTS`. Raises `ConfigError` for tools that it cannot use."""
    return AGENTS[kind](
        tools=tools,
        sampling=sampling,
        max_turns=max_turns,
        token_budget=token_budget,
        system_prompt=system_prompt,
    )
