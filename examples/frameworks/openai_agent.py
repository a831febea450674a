"""The openai SDK, with a loop of our own around it: Chat Completions or Responses, streamed or not.

OPENAI_BASE_URL=... OPENAI_API_KEY=... python openai_agent.py "What is 12 + 34?"
"""

from __future__ import annotations

import json
from typing import Any

from calculator import INSTRUCTIONS, MAX_TURNS, Server, calculator, http_client, program
from openai import AsyncOpenAI

from tutelage import rollout

FUNCTION: dict[str, Any] = {
    "name": "calculator",
    "description": "Evaluate an arithmetic expression.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
}


def run_tool(name: str, arguments: str) -> str:
    """What the tool says to a call; a call that does not fit gets a text that says so."""
    try:
        if name == "calculator":
            return calculator(str(json.loads(arguments)["expression"]))
    except (ValueError, KeyError, TypeError) as error:
        return f"error: {error!r}"
    return f"error: there is no tool {name!r}"


async def solve(question: str, server: Server) -> str:
    """The agent's answer to a question."""
    client = AsyncOpenAI(
        base_url=server.base_url, api_key=server.api_key, http_client=http_client()
    )
    if server.api == "responses":
        return await _responses(client, question, server)
    return await _chat(client, question, server)


async def _chat(client: AsyncOpenAI, question: str, server: Server) -> str:
    messages: list[Any] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": question},
    ]
    tools: Any = [{"type": "function", "function": FUNCTION}]
    reply = None
    for _ in range(MAX_TURNS):
        asked: dict[str, Any] = {"model": server.model, "messages": messages, "tools": tools}
        if server.stream:
            async with client.chat.completions.stream(**asked) as events:
                async for _event in events:
                    pass
                reply = (await events.get_final_completion()).choices[0].message
        else:
            reply = (await client.chat.completions.create(**asked)).choices[0].message
        messages.append(reply.to_dict())
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            said = run_tool(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
    return (reply and reply.content) or ""


async def _responses(client: AsyncOpenAI, question: str, server: Server) -> str:
    items: Any = question
    previous, answer = None, ""
    for _ in range(MAX_TURNS):
        asked: dict[str, Any] = {
            "model": server.model,
            "instructions": INSTRUCTIONS,
            "input": items,
            "tools": [{"type": "function", **FUNCTION}],
            "previous_response_id": previous,
        }
        if server.stream:
            async with client.responses.stream(**asked) as events:
                async for _event in events:
                    pass
                response = await events.get_final_response()
        else:
            response = await client.responses.create(**asked)
        previous, answer = response.id, response.output_text
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            break
        items = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": run_tool(call.name, call.arguments),
            }
            for call in calls
        ]
    return answer


@rollout
async def agent(task: dict[str, Any], llm: Any) -> str:
    """For `Trainer(reward="math")`: the answer, to be graded."""
    return await solve(task["question"], Server.of(llm))


if __name__ == "__main__":
    program(solve)
