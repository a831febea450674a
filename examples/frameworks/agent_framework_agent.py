"""Microsoft's agent-framework: an `Agent` with a chat client of either API.

OPENAI_BASE_URL=... OPENAI_API_KEY=... python agent_framework_agent.py "What is 12 + 34?"
"""

from __future__ import annotations

from typing import Any

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from calculator import INSTRUCTIONS, Server, calculator, http_client, program
from openai import AsyncOpenAI

from tutelage import rollout


async def solve(question: str, server: Server) -> str:
    """The agent's answer to a question."""
    of = OpenAIChatClient if server.api == "responses" else OpenAIChatCompletionClient
    asked = AsyncOpenAI(base_url=server.base_url, api_key=server.api_key, http_client=http_client())
    client = of(model=server.model, async_client=asked)
    agent = Agent(client=client, instructions=INSTRUCTIONS, tools=[calculator])
    if not server.stream:
        return (await agent.run(question)).text
    updates = agent.run(question, stream=True)
    async for _update in updates:
        pass
    return (await updates.get_final_response()).text


@rollout
async def agent(task: dict[str, Any], llm: Any) -> str:
    """For `Trainer(reward="math")`: the answer, to be graded."""
    return await solve(task["question"], Server.of(llm))


if __name__ == "__main__":
    program(solve)
