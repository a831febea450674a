"""Reading liberally changes nothing that is sampled: with each field that is accepted and not used,
at the top, inside objects and inside messages, a policy draws the same tokens after the same
prompt. `test_gateway_fields.py` compares the requests that are read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from tests.in_one_item import in_one_item

from tutelage.engine.driver import EngineDriver
from tutelage.gateway import Gateway
from tutelage.gateway.dialects import DIALECTS
from tutelage.gateway.serving import ServedPolicy
from tutelage.seeds import SeedTree
from tutelage.testing import tiny_engine

from .conftest import CALCULATOR, FLAT_CALCULATOR

CALL = {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "1 + 1?"}]},
    {"role": "assistant", "content": "Hm.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "2"},
    {"role": "user", "content": "So?"},
]
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "1 + 1?"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]},
    {"type": "function_call", "call_id": "c1", "name": "calculator", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "2"},
    {"role": "user", "content": "So?"},
]
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "1 + 1?"}]},
    {"role": "assistant", "content": [
        {"type": "text", "text": "Hm."},
        {"type": "tool_use", "id": "c1", "name": "calculator", "input": {}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "2"}]},
        {"type": "text", "text": "So?"}]},
]  # fmt: skip
FUNCTION: dict[str, Any] = dict(FLAT_CALCULATOR)
del FUNCTION["type"]
ANTHROPIC = {"name": "calculator", "description": "Compute.", "input_schema": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
FEW = {"model": "m", "seed": 5}
BODIES: dict[str, dict[str, Any]] = {
    "chat.completions": {**FEW, "max_tokens": 4, "messages": TURNS, "tools": [CALCULATOR]},
    "responses": {**FEW, "max_output_tokens": 4, "input": ITEMS, "tools": [FLAT_CALCULATOR]},
    "messages": {**FEW, "max_tokens": 4, "messages": BLOCKS, "tools": [ANTHROPIC]},
    "completions": {**FEW, "max_tokens": 4, "prompt": "1 + 1?"},
}
PATHS = {dialect.name: dialect.path for dialect in DIALECTS}
VALUES = ("words", 7, True, {"a": ["b"]})
UNUSED = ("user", "metadata", "client_metadata", "what_nobody_knows")
TOP = [
    *((d.name, name, value) for d in DIALECTS for name in UNUSED for value in VALUES),
    *((d.name, n, value) for d in DIALECTS for n in d.request.refused
      for value in (*d.request.refused[n], None)),
]  # fmt: skip
UNKNOWN: dict[str, Any] = {
    "provider_specific_fields": {"a": 1}, "parsed": None, "annotations": [], "audio": None,
    "is_error": False, "thinking_blocks": [{"type": "thinking", "thinking": "x"}], "phase": "final",
    "reasoning_content": "so", "cache_control": {"type": "ephemeral"}, "prefix": False,
    "status": "completed", "logprobs": [], "nobody_knows": {"role": "system", "content": "no"},
}  # fmt: skip
CHAT, RESPONSES, MESSAGES = "chat.completions", "responses", "messages"
INSIDE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (CHAT, {"stream": True}, {"stream_options": {"include_obfuscation": True}}),
    (CHAT, {"stream": True}, {"stream_options": {"include_usage": True}}),
    (RESPONSES, {"stream": True}, {"stream_options": {"include_obfuscation": False}}),
    (RESPONSES, {}, {"reasoning": {"summary": "auto", "generate_summary": "x", "effort": "high"}}),
    (CHAT, {}, {"reasoning_effort": "low"}),
    (RESPONSES, {}, {"tools": [FLAT_CALCULATOR, {"type": "web_search"}, {"type": "custom"},
                               {"type": "namespace", "name": "n", "tools": [FLAT_CALCULATOR]}]}),
    (MESSAGES, {}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
                    "context_management": {"edits": [{"type": "clear_thinking_20251015",
                                                      "keep": "all"}]}}),
    (MESSAGES, {}, {"tools": [ANTHROPIC, {"type": "web_search_20250305", "name": "web_search"}]}),
    (RESPONSES, {}, {"text": {"verbosity": "low", "format": {"type": "text"}}}),
    (RESPONSES, {}, {"include": ["reasoning.encrypted_content"]}),
    (RESPONSES, {}, {"truncation": "auto", "store": False}),
    (MESSAGES, {}, {"tools": [ANTHROPIC | {"cache_control": {"type": "ephemeral"},
                                           "defer_loading": False, "input_examples": [{}]}]}),
    (MESSAGES, {}, {"thinking": {"type": "disabled", "display": "omitted"}}),
    (CHAT, {}, {"tools": [{**CALCULATOR, "strict": True,
                           "function": {**FUNCTION, "strict": True}}]}),
    (RESPONSES, {}, {"tools": [{**FLAT_CALCULATOR, "strict": True}]}),
    (CHAT, {"guided_json": SCHEMA},
     {"guided_json": None, "structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True,
                                                  "disable_additional_properties": True}}),
    (CHAT, {"guided_json": SCHEMA},
     {"guided_json": None,
      "response_format": {"type": "json_schema", "json_schema": {
          "name": "n", "description": "d", "strict": True, "schema": SCHEMA}}}),
    (RESPONSES, {"guided_json": SCHEMA},
     {"guided_json": None,
      "text": {"format": {"type": "json_schema", "name": "n", "description": "d", "strict": False,
                          "schema": SCHEMA}}}),
]  # fmt: skip
"""A request, and the same with what changes nothing."""

Drawn = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]


@pytest.fixture(scope="module")
def drawn(tiny: Any) -> Iterator[Callable[[str, dict[str, Any]], Drawn]]:
    """What a policy is asked and what it draws, for the body of a request of a dialect."""
    policy = tiny("qwen2")
    records: list[Any] = []
    with Gateway() as gateway:
        driver = EngineDriver(tiny_engine(policy, slots=1), schedule="free")
        client = ServedPolicy(driver, policy.codec, SeedTree(1))
        session = gateway.open("r", "a", client, on_call=records.append)
        headers = {"authorization": f"Bearer {session.api_key}"}
        with httpx2.Client(base_url=gateway.url, headers=headers, timeout=60) as http:

            def ask(dialect: str, body: dict[str, Any]) -> Drawn:
                answer = http.post(PATHS[dialect], json=body)
                assert answer.status_code == 200, answer.text
                session.recorder.flush(30)
                (call,) = records[-1].calls
                return call.prompt_ids, call.sampled.token_ids, call.sampled.raw_logprobs

            yield ask
        session.close()


@pytest.fixture(scope="module")
def plain(drawn: Any) -> dict[str, Drawn]:
    """What is drawn without any of the fields."""
    return {dialect: drawn(dialect, body) for dialect, body in BODIES.items()}


@pytest.mark.parametrize("dialect", BODIES)
def test_the_tokens_tell_requests_apart(drawn: Any, plain: dict[str, Drawn], dialect: str) -> None:
    prompt, tokens, _ = plain[dialect]
    assert len(tokens) == 4
    assert drawn(dialect, BODIES[dialect]) == plain[dialect]
    assert drawn(dialect, BODIES[dialect] | {"seed": 6})[1] != tokens
    assert drawn(dialect, BODIES[dialect] | {"temperature": 0.0})[1] != tokens
    more = {"prompt": "2 + 2?"} if dialect == "completions" else {"tools": []}
    assert drawn(dialect, BODIES[dialect] | more)[0] != prompt


@in_one_item(("dialect", "name", "value"), TOP)
def test_a_field_of_a_request(
    drawn: Any, plain: dict[str, Drawn], dialect: str, name: str, value: Any
) -> None:
    assert drawn(dialect, BODIES[dialect] | {name: value}) == plain[dialect]


@in_one_item(("dialect", "asked", "more"), INSIDE)
def test_a_field_of_an_object(
    drawn: Any, dialect: str, asked: dict[str, Any], more: dict[str, Any]
) -> None:
    whole = BODIES[dialect] | asked
    assert drawn(dialect, whole | more) == drawn(dialect, whole)


def objects(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of messages, and of their parts and calls."""
    if isinstance(value, dict):
        if path:
            yield path
        for name in ("content", "tool_calls"):
            yield from objects(value.get(name), (*path, name))
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from objects(each, (*path, i))


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES])
def test_unknown_fields_of_messages(drawn: Any, plain: dict[str, Drawn], dialect: str) -> None:
    kept = "input" if dialect == RESPONSES else "messages"
    places = list(objects(BODIES[dialect][kept]))
    assert len(places) > 5
    for place in places:
        body = copy.deepcopy(BODIES[dialect])
        at = body[kept]
        for step in place:
            at = at[step]
        for name, value in UNKNOWN.items():
            at.setdefault(name, value)
        assert drawn(dialect, body) == plain[dialect], place
