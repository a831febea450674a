"""The openai SDK as its users drive it: chat completions, responses and legacy completions.

What it was answered goes back as it is: the object itself in one turn, what `model_dump` makes of
it in the next. `cells.py` has the conversation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cells import (
    CHAT_TOOLS,
    FLAT_TOOLS,
    INSTRUCTIONS,
    LIMIT,
    QUESTIONS,
    Cell,
    Turn,
    answer_cells,
    arguments_of,
    asked_of,
    run_tool,
)
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessage


def client(cell: Cell) -> OpenAI:
    """Its client, which repeats nothing."""
    return OpenAI(base_url=cell.base_url, api_key=cell.api_key, max_retries=0)


def chat(cell: Cell) -> list[Turn]:
    """Chat completions; streams are read by the SDK's own helper and by hand, in turn."""
    api, turns = client(cell), list[Turn]()
    messages: list[Any] = [{"role": "system", "content": INSTRUCTIONS}]
    tools: dict[str, Any] = {"tools": CHAT_TOOLS} if cell.tools else {}
    for turn in range(4):
        if (said := asked_of(cell, turn)) is not None:
            messages.append({"role": "user", "content": said})
        asked: dict[str, Any] = {"model": cell.model, "messages": messages, **tools}
        if cell.stream and (turn % 2 or cell.by_hand):
            chunks = api.chat.completions.create(**asked, stream=True)
            reply = collected(chunks)
        elif cell.stream:
            with api.chat.completions.stream(**asked) as events:
                for _event in events:
                    pass
                reply = events.get_final_completion().choices[0].message
        else:
            reply = api.chat.completions.create(**asked).choices[0].message
        messages.append(reply if turn % 2 else reply.model_dump())
        calls = reply.tool_calls or []
        messages += [
            {
                "role": "tool",
                "tool_call_id": call.id,
                "content": run_tool(call.function.name, call.function.arguments),
            }
            for call in calls
        ]
        called = [(c.function.name, arguments_of(c.function.arguments)) for c in calls]
        turns.append(Turn(reply.content or "", tuple(called)))
    return turns


def collected(chunks: Iterable[ChatCompletionChunk]) -> ChatCompletionMessage:
    """The message of a stream, put together by hand as most users do."""
    content, calls = "", list[dict[str, Any]]()
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            for piece in choice.delta.tool_calls or []:
                assert piece.function is not None
                if piece.id is not None:
                    head = {"name": piece.function.name, "arguments": ""}
                    calls.append({"id": piece.id, "type": "function", "function": head})
                calls[piece.index]["function"]["arguments"] += piece.function.arguments or ""
    said = {"role": "assistant", "content": content or None, "tool_calls": calls or None}
    return ChatCompletionMessage.model_validate(said)


def respond(cell: Cell, by_id: bool = False) -> list[Turn]:
    """Responses, with the whole conversation in each request, or with the id of the last one."""
    api, turns = client(cell), list[Turn]()
    items: list[Any] = []
    previous: Any = None
    tools: dict[str, Any] = {"tools": FLAT_TOOLS} if cell.tools else {}
    for turn in range(4):
        if (said := asked_of(cell, turn)) is not None:
            items.append({"role": "user", "content": said})
        asked: dict[str, Any] = {"model": cell.model, "instructions": INSTRUCTIONS, **tools}
        asked |= {"input": items} | ({"previous_response_id": previous} if by_id else {})
        if cell.stream and (turn % 2 or cell.by_hand):
            *_, last = api.responses.create(**asked, stream=True)
            reply: Any = last.response
        elif cell.stream:
            with api.responses.stream(**asked) as events:
                for _event in events:
                    pass
                reply = events.get_final_response()
        else:
            reply = api.responses.create(**asked)
        previous = reply.id
        output = [item if turn % 2 else item.model_dump() for item in reply.output]
        items = [] if by_id else [*items, *output]
        calls = [item for item in reply.output if item.type == "function_call"]
        items += [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": run_tool(call.name, call.arguments),
            }
            for call in calls
        ]
        called = [(c.name, arguments_of(c.arguments)) for c in calls]
        turns.append(Turn(reply.output_text, tuple(called)))
    return turns


def respond_by_id(cell: Cell) -> list[Turn]:
    """Responses with `previous_response_id`."""
    return respond(cell, by_id=True)


def complete(cell: Cell) -> list[Turn]:
    """Legacy completions: one text that grows."""
    api, turns, prompt = client(cell), list[Turn](), INSTRUCTIONS
    for question in QUESTIONS:
        prompt += f"\nUser: {question}\nAssistant: "
        asked: dict[str, Any] = {"model": cell.model, "prompt": prompt, "max_tokens": LIMIT}
        reply: Any = api.completions.create(**asked, stream=cell.stream)
        if cell.stream:
            text = "".join(chunk.choices[0].text for chunk in reply if chunk.choices)
        else:
            text = reply.choices[0].text
        prompt += text
        turns.append(Turn(text))
    return turns


if __name__ == "__main__":
    answer_cells(
        {
            "chat": chat,
            "responses": respond,
            "responses by id": respond_by_id,
            "completions": complete,
        },
        "openai",
    )
