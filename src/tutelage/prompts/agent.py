"""The built-in tool-calling agent with texts that are resources.

Its system prompt and the descriptions of its tools are read from the rollout's resources each time
it plays, so a search can replace them. `read_components` returns the texts of resources that a
search may rewrite, `set_components` puts new texts in place. The loop of the agent is
`agents/tool_calling.py`; `play.py` plays it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tutelage.agents.agent import Agent
from tutelage.agents.external import resource_text
from tutelage.agents.session import RolloutSession
from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.errors import ConfigError
from tutelage.resources import NamedResources, PromptTemplate
from tutelage.tools.loading import hint
from tutelage.tools.tool import Tool
from tutelage.types import Sampling, Task

PROMPT = "prompt"
"""The resource that is the built-in agent's system prompt."""


@dataclass(frozen=True, slots=True)
class ToolAgent(Agent):
    """Tool-calling agent with the resources `prompt`, `tool_NAME` and an LLM."""

    schedule = "deterministic"
    sampling: Sampling
    max_turns: int = 4

    @property
    def name(self) -> str:
        """Return the agent's name."""
        return "tool_agent"

    async def play(self, task: Task, session: RolloutSession, resources: NamedResources) -> None:
        """Run the agent on the task; the reward function of the run grades the answer."""
        tools = [value for value in resources.values() if isinstance(value, Tool)]
        agent = ToolCallingAgent(
            {tool.name: tool for tool in tools},
            session.llm().sampling(self.sampling),
            max_turns=self.max_turns,
            system_prompt=resources[PROMPT].format(),
        )
        await agent.play(task, session, resources)


def read_components(resources: NamedResources, names: Sequence[str]) -> dict[str, str]:
    """Return the texts that a search optimises: those of the named resources, or of all prompt
    templates by default.

    Prompt templates, texts and tools (their descriptions) can be named. Raises `ConfigError`.
    """
    values: dict[str, str] = {}
    for name, value in resources.items():
        if name in names or (isinstance(value, PromptTemplate) and not names):
            text = resource_text(value)
            if text is None:
                raise ConfigError(
                    f"the resource {name!r} is a {type(value).__name__}, which has no text to "
                    "optimize; pass a PromptTemplate, a string or a Tool"
                )
            values[name] = text
    for name in names:
        if name not in resources:
            near = hint(name, resources) or "."
            known = ", ".join(map(repr, resources)) or "none"
            raise ConfigError(f"unknown resource {name!r}{near} Available: {known}")
    if not values:
        raise ConfigError(
            "the agent has no text to optimize; add a resource such as "
            "prompt_template=PromptTemplate('...'), or pass one with components="
        )
    return values


def set_components(resources: NamedResources, components: Mapping[str, str]) -> NamedResources:
    """Return the resources with the given texts; all other resources are unchanged."""
    new: dict[str, object] = dict(components)
    for name, text in components.items():
        value = resources[name]
        if isinstance(value, PromptTemplate):
            new[name] = PromptTemplate(text, value.version + (text != value.template))
        elif isinstance(value, Tool):
            new[name] = replace(value, description=text)
    return resources.replaced(new)
