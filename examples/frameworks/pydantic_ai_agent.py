"""pydantic-ai: an `Agent` with the model class of either API.

OPENAI_BASE_URL=... OPENAI_API_KEY=... python pydantic_ai_agent.py "What is 12 + 34?"
"""

from __future__ import annotations

from typing import Any

from calculator import INSTRUCTIONS, MAX_TURNS, Server, calculator, http_client, program
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tutelage import rollout


async def solve(question: str, server: Server) -> str:
    """The agent's answer to a question."""
    of = OpenAIResponsesModel if server.api == "responses" else OpenAIChatModel
    provider = OpenAIProvider(
        base_url=server.base_url, api_key=server.api_key, http_client=http_client()
    )
    agent = Agent(
        of(server.model, provider=provider), instructions=INSTRUCTIONS, tools=[calculator]
    )
    limits = UsageLimits(request_limit=MAX_TURNS)
    if not server.stream:
        return (await agent.run(question, usage_limits=limits)).output
    async with agent.run_stream(question, usage_limits=limits) as streamed:
        return await streamed.get_output()


@rollout
async def agent(task: dict[str, Any], llm: Any) -> str:
    """For `Trainer(reward="math")`: the answer, to be graded."""
    return await solve(task["question"], Server.of(llm))


if __name__ == "__main__":
    program(solve)
