"""smolagents: a `ToolCallingAgent` with `OpenAIModel`. It knows Chat Completions only.

It answers by a tool of its own, `final_answer`, asks for a call in every turn (`tool_choice`
required), and is not async: as an agent of a `Trainer` it runs in threads.

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python smolagents_agent.py "What is 12 + 34?"
"""

from __future__ import annotations

from typing import Any

from calculator import INSTRUCTIONS, MAX_TURNS, Server, calculator, program
from rich.console import Console
from smolagents import AgentLogger, LogLevel, OpenAIModel, ToolCallingAgent, tool

from tutelage import rollout

TOOL = tool(calculator)


def solve(question: str, server: Server) -> str:
    """The agent's answer to a question."""
    if server.api != "chat":
        raise ValueError("smolagents has no model class for the Responses API")
    agent = ToolCallingAgent(
        tools=[TOOL],
        model=OpenAIModel(server.model, api_base=server.base_url, api_key=server.api_key),
        instructions=INSTRUCTIONS,
        max_steps=MAX_TURNS,
        stream_outputs=server.stream,
        logger=AgentLogger(LogLevel.OFF, Console(quiet=True)),
    )
    return str(agent.run(question))


@rollout
def agent(task: dict[str, Any], llm: Any) -> str:
    """For `Trainer(reward="math")`: the answer, to be graded."""
    return solve(task["question"], Server.of(llm))


if __name__ == "__main__":
    program(solve)
