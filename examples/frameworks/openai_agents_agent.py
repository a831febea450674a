"""openai-agents: an `Agent` and its `Runner`, with the model class of either API.

OPENAI_BASE_URL=... OPENAI_API_KEY=... python openai_agents_agent.py "What is 12 + 34?"
"""

from __future__ import annotations

from typing import Any

import agents
from calculator import INSTRUCTIONS, MAX_TURNS, Server, calculator, http_client, program
from openai import AsyncOpenAI

from tutelage import rollout

agents.set_tracing_disabled(True)  # its traces go to OpenAI

TOOL = agents.function_tool(calculator)


async def solve(question: str, server: Server) -> str:
    """The agent's answer to a question."""
    client = AsyncOpenAI(
        base_url=server.base_url, api_key=server.api_key, http_client=http_client()
    )
    if server.api == "responses":
        model = agents.OpenAIResponsesModel(server.model, client)
    else:
        model = agents.OpenAIChatCompletionsModel(server.model, client)
    agent = agents.Agent(name="calculator", instructions=INSTRUCTIONS, tools=[TOOL], model=model)
    if not server.stream:
        result = await agents.Runner.run(agent, question, max_turns=MAX_TURNS)
        return str(result.final_output)
    streamed = agents.Runner.run_streamed(agent, question, max_turns=MAX_TURNS)
    async for _event in streamed.stream_events():
        pass
    return str(streamed.final_output)


@rollout
async def agent(task: dict[str, Any], llm: Any) -> str:
    """For `Trainer(reward="math")`: the answer, to be graded."""
    return await solve(task["question"], Server.of(llm))


if __name__ == "__main__":
    program(solve)
