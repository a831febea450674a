"""The anthropic SDK, with a loop of our own around it: Messages, streamed or not.

OPENAI_BASE_URL=... OPENAI_API_KEY=... python anthropic_agent.py "What is 12 + 34?"
"""

from __future__ import annotations

from typing import Any

import anthropic
from calculator import INSTRUCTIONS, MAX_TURNS, Server, calculator, http_client, program

from tutelage import rollout

TOOL: dict[str, Any] = {
    "name": "calculator",
    "description": "Evaluate an arithmetic expression.",
    "input_schema": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
}


def run_tool(name: str, given: Any) -> str:
    """What the tool says to a call; a call that does not fit gets a text that says so."""
    if name == "calculator" and isinstance(given, dict) and "expression" in given:
        return calculator(str(given["expression"]))
    return f"error: the tool is calculator(expression), not {name}({given})"


async def solve(question: str, server: Server) -> str:
    """The agent's answer to a question."""
    client = anthropic.AsyncAnthropic(
        base_url=server.base_url.removesuffix("/v1"),
        api_key=server.api_key,
        http_client=http_client(anthropic.DefaultAsyncHttpxClient),
    )
    messages: list[Any] = [{"role": "user", "content": question}]
    answer = ""
    for _ in range(MAX_TURNS):
        asked: dict[str, Any] = {
            "model": server.model,
            "max_tokens": 200,
            "system": INSTRUCTIONS,
            "messages": messages,
            "tools": [TOOL],
        }
        if server.stream:
            async with client.messages.stream(**asked) as events:
                reply = await events.get_final_message()
        else:
            reply = await client.messages.create(**asked)
        answer = "".join(block.text for block in reply.content if block.type == "text")
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            break
        results = [
            {"type": "tool_result", "tool_use_id": c.id, "content": run_tool(c.name, c.input)}
            for c in calls
        ]
        messages += [
            {"role": "assistant", "content": reply.content},
            {"role": "user", "content": results},
        ]
    return answer


@rollout
async def agent(task: dict[str, Any], llm: Any) -> str:
    """For `Trainer(reward="math")`: the answer, to be graded."""
    return await solve(task["question"], Server.of(llm))


if __name__ == "__main__":
    program(solve)
