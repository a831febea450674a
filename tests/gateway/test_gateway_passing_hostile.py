"""Whatever stands in a body that is passed on, it gets an answer: at each place of whole requests
of each dialect each kind of value."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from .test_gateway_passing import ALLOWED, WHOLE, Upstream
from .test_gateway_passing_dialects import BASE64, CUSTOM, INPUT, MESSAGES, RESPONSES, TURNS

VALUES: list[Any] = [None, 7, "x", True, [], {}, [7], {"type": "x"}]
RESERVED = {"content_parts": "x", "tool_call_fields": [7], "reasoning_content": 7, "reasoning": {}}
"""Names under which something is kept, by a client that has heard of them."""


def joined(cases: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for name in names for k, v in cases[name][0].items()}


BODIES: dict[str, list[dict[str, Any]]] = {
    "/chat/completions": [
        WHOLE | {"n": 1},
        {"messages": WHOLE["messages"], "tools": WHOLE["tools"], "tool_choice": ALLOWED},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [CUSTOM], **RESERVED}]},
    ],
    "/responses": [
        {"input": INPUT},
        {"input": "hi", **joined(RESPONSES, "tools", "schema", "effort", "logprobs", "words")},
        {"input": "hi", **joined(RESPONSES, "allowed tools")},
        {"input": "hi", **joined(RESPONSES, "custom tools")},
        {"input": [
            {"role": "assistant", "content": "a", **RESERVED},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **RESERVED},
        ], "max_tokens": "x", "max_completion_tokens": "y"},
    ],
    "/messages": [
        {"messages": TURNS, "max_tokens": 9},
        {"messages": [{"role": "user", "content": [BASE64]}],
         **joined(MESSAGES, "tools", "words", "schema", "many thoughts"), "max_tokens": 9},
        {"messages": [{"role": "assistant", "content": TURNS[1]["content"], **RESERVED}],
         "max_completion_tokens": [], "stop_sequences": ["x"], "service_tier": []},
    ],
}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places inside a value."""
    steps = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for step, inner in steps:
        yield (*path, step)
        yield from places(inner, (*path, step))


def changed(body: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    whole = copy.deepcopy(body)
    at: Any = whole
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    return whole


@pytest.mark.parametrize("path", BODIES)
async def test_each_place_with_each_kind_of_value(path: str):
    case = Upstream(answer={"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]})
    count = 0
    for body in BODIES[path]:
        good = {"messages": None} | body
        assert (await case.ask(path, **good)).status_code in (200, 400)
        for place in places(body):
            for value in VALUES:
                answer = await case.ask(path, **changed(good, place, value))
                assert answer.status_code in (200, 400, 404), (place, value, answer.text)
                count += 1
    assert count > 200


STRANGE: list[dict[str, Any]] = [
    {"content": "a", "refusal": 7},
    {"content": "a", "refusal": {}, "reasoning_content": 7, "reasoning": [1]},
    {"content": "a", "audio": 7, "function_call": 7, "annotations": {}},
    {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": None}}]},
    {"content": None, "tool_calls": [{"id": 7, "function": {"name": 7, "arguments": {"a": 1}}}]},
    {},
]
"""Messages of servers that have their own ideas."""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("message", STRANGE)
async def test_what_another_server_makes_up_gets_through(message: dict[str, Any], stream: bool):
    usage = {"prompt_tokens": None, "prompt_tokens_details": 7, "completion_tokens_details": None}
    answer = {"choices": [{"message": message, "finish_reason": 7}], "usage": usage}
    for path, body in (
        ("/chat/completions", {}),
        ("/responses", {"messages": None, "input": "hi"}),
        ("/messages", {"max_tokens": 9}),
    ):
        found = await Upstream(answer=answer).ask(path, **body, stream=stream)
        assert found.status_code == 200, found.text
        assert "server_error" not in found.text
