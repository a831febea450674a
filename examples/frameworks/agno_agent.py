"""agno: an `Agent` with `OpenAILike` (Chat Completions) or `OpenAIResponses`.

OPENAI_BASE_URL=... OPENAI_API_KEY=... python agno_agent.py "What is 12 + 34?"
"""

from __future__ import annotations

from typing import Any

from agno.agent import Agent, RunCompletedEvent
from agno.models.openai import OpenAILike, OpenAIResponses
from calculator import INSTRUCTIONS, MAX_TURNS, Server, calculator, http_client, program

from tutelage import rollout


async def solve(question: str, server: Server) -> str:
    """The agent's answer to a question."""
    model = OpenAIResponses if server.api == "responses" else OpenAILike
    agent = Agent(
        model=model(
            id=server.model,
            base_url=server.base_url,
            api_key=server.api_key,
            client_params={"http_client": http_client()},
        ),
        instructions=INSTRUCTIONS,
        tools=[calculator],
        tool_call_limit=MAX_TURNS - 1,
        telemetry=False,
    )
    if not server.stream:
        return str((await agent.arun(question)).content or "")
    answer = ""
    async for event in agent.arun(question, stream=True, stream_events=True):
        if isinstance(event, RunCompletedEvent):
            answer = str(event.content or "")
    return answer


@rollout
async def agent(task: dict[str, Any], llm: Any) -> str:
    """For `Trainer(reward="math")`: the answer, to be graded."""
    return await solve(task["question"], Server.of(llm))


if __name__ == "__main__":
    program(solve)
