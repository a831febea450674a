"""Every field of every dialect, from the code's own tables: what is accepted and not used, at the
top, inside of objects and inside of messages, changes nothing that is asked of a model, and what is
refused is named."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.in_one_item import in_one_item

from tutelage.gateway.completions import KeptAnswers
from tutelage.gateway.dialects import DIALECTS, Dialect
from tutelage.gateway.errors import ApiError
from tutelage.gateway.request import ChatRequest
from tutelage.policy.codec import Codec
from tutelage.types import Sampling

from .conftest import ASK, CALCULATOR, FLAT_CALCULATOR

BODIES: dict[str, dict[str, Any]] = {
    "chat.completions": {"model": "m", "messages": ASK},
    "responses": {"model": "m", "input": "hi"},
    "messages": {"model": "m", "messages": ASK, "max_tokens": 9},
    "completions": {"model": "m", "prompt": "hi"},
}
VALUES = ("words", 7, 0.5, True, ["a"], {"a": "b"}, None)
UNUSED = ("user", "metadata", "service_tier", "client_metadata", "betas", "what_nobody_knows")
REFUSED = [(d, name) for d in DIALECTS for name in sorted(d.request.refused)]
NONE_OF_OURS = {"a": ["value", "that", "no", "table", "has"]}


def asked(dialect: Dialect, **more: Any) -> ChatRequest:
    """What a request asks of a model; what an answer repeats of it is no part of that."""
    body = BODIES[dialect.name] | more
    request = dialect.read(body, Sampling(), KeptAnswers())
    return replace(request, echo={})


def named(case: Any) -> str:
    return case if isinstance(case, str) else case.name


def test_every_dialect_is_asked() -> None:
    assert {d.name for d in DIALECTS} == set(BODIES)


@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
@in_one_item("name", UNUSED)
def test_what_is_accepted_without_effect_asks_for_the_same(dialect: Dialect, name: str) -> None:
    for value in VALUES:
        assert asked(dialect, **{name: value}) == asked(dialect)
        unused = dialect.request.unused(BODIES[dialect.name] | {name: value})
        assert unused == ({} if value is None else {name: value}), "for the record"


@in_one_item(("dialect", "name"), REFUSED)
def test_values_that_ask_for_nothing_ask_for_the_same(dialect: Dialect, name: str) -> None:
    for value in (*dialect.request.refused[name], None):
        assert asked(dialect, **{name: value}) == asked(dialect)


@in_one_item(("dialect", "name"), REFUSED)
def test_other_values_are_refused_by_name(dialect: Dialect, name: str) -> None:
    with pytest.raises(ApiError, match=name) as caught:
        asked(dialect, **{name: NONE_OF_OURS})
    assert caught.value.status == 400
    assert caught.value.param == name


@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
def test_each_field_that_is_honoured_is_read_or_refused_by_name(dialect: Dialect) -> None:
    """No field is honoured in words alone: nonsense in it is noticed."""
    fields: dict[str, Any] = dict(dialect.request.model_fields)
    for name in sorted(field.alias or name for name, field in fields.items()):
        with pytest.raises(ApiError, match=name) as caught:
            asked(dialect, **{name: [[[7]]]})
        assert caught.value.status == 400


# ---------------------------------------------------------------- inside of objects and messages

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
WHOLE: dict[str, dict[str, Any]] = {
    "chat.completions": {"model": "m", "max_tokens": 4, "messages": TURNS, "tools": [CALCULATOR]},
    "responses": {"model": "m", "max_output_tokens": 4, "input": ITEMS, "tools": [FLAT_CALCULATOR]},
    "messages": {"model": "m", "max_tokens": 4, "messages": BLOCKS, "tools": [ANTHROPIC]},
    "completions": {"model": "m", "max_tokens": 4, "prompt": "1 + 1?"},
}
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
    (CHAT, {}, {"tools": [{**CALCULATOR, "strict": True,
                           "function": {**FUNCTION, "strict": True}}]}),
    (RESPONSES, {}, {"tools": [{**FLAT_CALCULATOR, "strict": True}]}),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
     {"response_format": {"type": "json_schema", "json_schema": {
         "name": "n", "description": "d", "strict": True, "schema": SCHEMA}}}),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": SCHEMA}}},
     {"text": {"format": {"type": "json_schema", "name": "n", "description": "d", "strict": False,
                          "schema": SCHEMA}}}),
]  # fmt: skip
"""A request, and the same with what changes nothing."""


def drawn_from(codec: Codec, name: str, body: dict[str, Any]) -> Any:
    """The prompt of a request and all else that its tokens depend on."""
    (dialect,) = (d for d in DIALECTS if d.name == name)
    request = dialect.read(body, Sampling(), KeptAnswers())
    prompt = request.prompts or codec.render(request.messages, request.tools, 1 << 16)
    return prompt, request.sampling, request.constraint, request.seed


@in_one_item(("dialect", "asked", "more"), INSIDE)
def test_a_field_of_an_object(
    tiny: Any, dialect: str, asked: dict[str, Any], more: dict[str, Any]
) -> None:
    codec, whole = tiny("qwen2").codec, WHOLE[dialect] | asked
    assert drawn_from(codec, dialect, whole | more) == drawn_from(codec, dialect, whole)


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
def test_unknown_fields_of_messages(tiny: Any, dialect: str) -> None:
    codec: Codec = tiny("qwen2").codec
    kept = "input" if dialect == RESPONSES else "messages"
    places = list(objects(WHOLE[dialect][kept]))
    assert len(places) > 5
    for place in places:
        body = copy.deepcopy(WHOLE[dialect])
        at = body[kept]
        for step in place:
            at = at[step]
        for name, value in UNKNOWN.items():
            at.setdefault(name, value)
        assert drawn_from(codec, dialect, body) == drawn_from(codec, dialect, WHOLE[dialect]), place
