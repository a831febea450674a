"""The anthropic SDK as its users drive it: messages, with what it was answered sent back as it is.

The blocks of a reply go back as objects in one turn, as what `model_dump` makes of them in the
next. `cells.py` has the conversation.
"""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic, beta_tool
from cells import (
    INSTRUCTIONS,
    LIMIT,
    MESSAGES_TOOLS,
    QUESTIONS,
    TOOLS,
    Cell,
    Turn,
    answer_cells,
    asked_of,
    run_tool,
)


def messages(cell: Cell, **more: Any) -> list[Turn]:
    """Messages; streamed by the SDK's own helper."""
    api = Anthropic(base_url=cell.root, api_key=cell.api_key, max_retries=0)
    turns, history = list[Turn](), list[Any]()
    asked: dict[str, Any] = {
        "model": cell.model,
        "max_tokens": LIMIT,
        "system": [{"type": "text", "text": INSTRUCTIONS, "cache_control": {"type": "ephemeral"}}],
        **({"tools": MESSAGES_TOOLS} if cell.tools else {}),
        **more,
    }
    for turn in range(4):
        if (said := asked_of(cell, turn)) is not None:
            history.append({"role": "user", "content": said})
        if cell.stream:
            with api.messages.stream(**asked, messages=history) as events:
                for _event in events:
                    pass
                reply: Any = events.get_final_message()
        else:
            reply = api.messages.create(**asked, messages=history)
        blocks = [block if turn % 2 else block.model_dump() for block in reply.content]
        history.append({"role": "assistant", "content": blocks})
        calls = [block for block in reply.content if block.type == "tool_use"]
        results = [
            {
                "type": "tool_result",
                "tool_use_id": call.id,
                "content": run_tool(call.name, call.input),
                "is_error": False,
            }
            for call in calls
        ]
        if results:
            history.append({"role": "user", "content": results})
        text = "".join(block.text for block in reply.content if block.type == "text")
        turns.append(Turn(text, tuple((c.name, c.input) for c in calls)))
    return turns


def thinking(cell: Cell) -> list[Turn]:
    """Messages of a model that thinks aloud."""
    return messages(cell, thinking={"type": "enabled", "budget_tokens": 64})


def run_tools(cell: Cell) -> list[Turn]:
    """The SDK's own loop around the tools."""
    api = Anthropic(base_url=cell.root, api_key=cell.api_key, max_retries=0)
    runner: Any = api.beta.messages.tool_runner(
        model=cell.model,
        max_tokens=LIMIT,
        system=INSTRUCTIONS,
        messages=[{"role": "user", "content": QUESTIONS[0]}],
        tools=[beta_tool(tool) for tool in TOOLS],
        stream=cell.stream,
    )
    turns = list[Turn]()
    for answer in runner:
        reply = answer.get_final_message() if cell.stream else answer
        text = "".join(block.text for block in reply.content if block.type == "text")
        calls = [block for block in reply.content if block.type == "tool_use"]
        turns.append(Turn(text, tuple((c.name, c.input) for c in calls)))
    return turns


if __name__ == "__main__":
    answer_cells(
        {"messages": messages, "messages, thinking": thinking, "tool runner": run_tools},
        "anthropic",
    )
