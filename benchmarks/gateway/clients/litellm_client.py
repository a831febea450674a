"""LiteLLM as its users drive it, in an environment of its own: completion, responses, messages.

The provider is the prefix of the model's name, the server is `api_base`. What it was answered goes
back as it is: the object in one turn, what `model_dump` makes of it in the next. `cells.py` has the
conversation.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterable
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import litellm
from cells import (
    CHAT_TOOLS,
    FLAT_TOOLS,
    INSTRUCTIONS,
    LIMIT,
    MESSAGES_TOOLS,
    Cell,
    Turn,
    answer_cells,
    arguments_of,
    asked_of,
    run_tool,
)

litellm.telemetry = False
litellm.suppress_debug_info = True

BRIDGED = {"anthropic/", "lm_studio/"}
"""Prefixes for which it makes another API's request of responses. It reads items as dictionaries
there, and fails on the objects that it answered with."""


def common(cell: Cell) -> dict[str, Any]:
    """Whom to ask. Anthropic's own prefix takes the base URL without `/v1`."""
    base = cell.root if cell.prefix == "anthropic/" else cell.base_url
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 64}}
    return {
        **(thinking if cell.api.endswith("thinking") else {}),
        "model": cell.model,
        "api_base": base,
        "api_key": cell.api_key,
        "max_retries": 0,
        "stream": cell.stream,
    }


def completion(cell: Cell) -> list[Turn]:
    """`litellm.completion`."""
    turns = list[Turn]()
    messages: list[Any] = [{"role": "system", "content": INSTRUCTIONS}]
    tools: dict[str, Any] = {"tools": CHAT_TOOLS} if cell.tools else {}
    for turn in range(4):
        if (said := asked_of(cell, turn)) is not None:
            messages.append({"role": "user", "content": said})
        answer: Any = litellm.completion(messages=messages, **tools, **common(cell))
        if cell.stream:
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        reply = answer.choices[0].message
        messages.append(reply if turn % 2 else reply.model_dump())
        calls = reply.tool_calls or []
        messages += [
            {
                "role": "tool",
                "tool_call_id": call.id,
                "name": call.function.name,
                "content": run_tool(call.function.name, call.function.arguments),
            }
            for call in calls
        ]
        called = [(c.function.name, arguments_of(c.function.arguments)) for c in calls]
        turns.append(Turn(reply.content or "", tuple(called)))
    return turns


def responses(cell: Cell) -> list[Turn]:
    """`litellm.responses`."""
    turns, items = list[Turn](), list[Any]()
    tools: dict[str, Any] = {"tools": FLAT_TOOLS} if cell.tools else {}
    for turn in range(4):
        if (said := asked_of(cell, turn)) is not None:
            items.append({"role": "user", "content": said})
        reply: Any = litellm.responses(
            input=items, instructions=INSTRUCTIONS, **tools, **common(cell)
        )
        if cell.stream:
            events = list(reply)
            reply = events[-1].response
        output = [item if isinstance(item, dict) else item.model_dump() for item in reply.output]
        items += reply.output if turn % 2 and cell.prefix not in BRIDGED else output
        calls = [item for item in output if item["type"] == "function_call"]
        items += [
            {
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": run_tool(call["name"], call["arguments"]),
            }
            for call in calls
        ]
        parts = [p for item in output if item["type"] == "message" for p in item["content"]]
        text = "".join(part["text"] for part in parts)
        turns.append(Turn(text, tuple((c["name"], arguments_of(c["arguments"])) for c in calls)))
    return turns


async def messages(cell: Cell) -> list[Turn]:
    """`litellm.anthropic.messages`; only its async form knows Anthropic's own prefix."""
    turns, history = list[Turn](), list[Any]()
    tools: dict[str, Any] = {"tools": MESSAGES_TOOLS} if cell.tools else {}
    for turn in range(4):
        if (said := asked_of(cell, turn)) is not None:
            history.append({"role": "user", "content": said})
        reply: Any = await litellm.anthropic.messages.acreate(
            messages=history, max_tokens=LIMIT, system=INSTRUCTIONS, **tools, **common(cell)
        )
        blocks = await blocks_of(reply) if cell.stream else reply["content"]
        history.append({"role": "assistant", "content": blocks})
        calls = [block for block in blocks if block["type"] == "tool_use"]
        results = [
            {
                "type": "tool_result",
                "tool_use_id": call["id"],
                "content": run_tool(call["name"], call["input"]),
            }
            for call in calls
        ]
        if results:
            history.append({"role": "user", "content": results})
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        turns.append(Turn(text, tuple((c["name"], c["input"]) for c in calls)))
    return turns


async def blocks_of(stream: AsyncIterable[bytes | str | dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a stream of events, which this function hands out as bytes."""
    raw: list[dict[str, Any]] = []
    text = ""
    async for piece in stream:
        if isinstance(piece, dict):
            raw.append(piece)
        else:
            text += piece.decode() if isinstance(piece, bytes) else piece
    raw += [json.loads(x[6:]) for x in text.splitlines() if x.startswith("data: {")]
    blocks: list[dict[str, Any]] = []
    for event in raw:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "said": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            block = blocks[event["index"]]
            block["said"] += delta.get("text") or delta.get("partial_json") or ""
            for name in {"thinking", "signature"} & delta.keys():
                block[name] += delta[name]
    for block in blocks:
        said = block.pop("said")
        if block["type"] == "tool_use":
            block["input"] = arguments_of(said)
        elif block["type"] == "text":
            block["text"] = said
    return blocks


if __name__ == "__main__":
    apis = {"completion": completion, "responses": responses, "messages": messages}
    apis["messages, thinking"] = messages
    answer_cells(apis, "litellm")
