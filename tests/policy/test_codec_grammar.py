"""Grammars in the form in which each chat template writes calls, and what they let through."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from chat_templates import make_codec
from hypothesis import given, settings
from hypothesis import strategies as st
from test_codec_markers import undeclared

from tutelage.policy.codec import Codec
from tutelage.policy.grammar import Grammar
from tutelage.types import Constraint, Message, ToolCall, ToolSpec

NAMES = ["embedded", "qwen2.5", "qwen3", "llama3.2"]
CODECS = {name: make_codec(name) for name in NAMES} | {
    "undeclared": Codec(undeclared("<tool_call>"))
}
TOOLS = (
    ToolSpec(
        "calculator",
        "Work out an expression.",
        {
            "type": "object",
            "properties": {"expression": {"type": "string"}, "digits": {"type": "integer"}},
            "required": ["expression"],
        },
    ),
    ToolSpec('odd "name"\\', "", {}),
)
ASK = Message("user", "?")


def follows(codec: Codec, grammar: Grammar | None, ids: list[int]) -> bool:
    assert grammar is not None
    matcher = grammar.start()
    words = np.zeros(-(-len(codec.tokenizer) // 32), np.int32)
    for token in ids:
        matcher.fill(words)
        if not (int(words[token // 32]) >> (token % 32)) & 1:
            return False
        matcher.accept(token)
    return True


def written(codec: Codec, *calls: ToolCall) -> list[int]:
    """How a template writes a turn of calls, as a model would sample it."""
    turns = [ASK, Message("assistant", None, calls)]
    ids, mask = codec.demonstration(turns, TOOLS)
    said = [t for t, m in zip(ids, mask, strict=True) if m]
    marker = codec.encode("<tool_call>")
    return said[said.index(marker[0]) :] if marker[0] in said else said


@pytest.mark.parametrize("name", [*NAMES, "undeclared"])
@given(expression=st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=10))
@settings(max_examples=15, deadline=None)
def test_a_call_as_the_template_writes_it_follows_the_grammar(name: str, expression: str) -> None:
    codec = CODECS[name]
    if "<" in expression:  # a tag that is spelled there would be broken into other tokens
        return
    arguments = json.dumps({"expression": expression}, ensure_ascii=False)
    ids = written(codec, ToolCall("c", "calculator", arguments))
    for constraint in (Constraint("required"), Constraint("calculator")):
        assert follows(codec, codec.grammar(TOOLS, constraint), ids)
    other = codec.grammar(TOOLS, Constraint(TOOLS[1].name))
    assert not follows(codec, other, ids)


@pytest.mark.parametrize("name", [*NAMES, "undeclared"])
def test_names_are_written_as_json_has_them(name: str) -> None:
    codec = CODECS[name]
    grammar = codec.grammar(TOOLS, Constraint(TOOLS[1].name))
    assert grammar is not None
    matcher, words, ids = grammar.start(), np.zeros(-(-len(codec.tokenizer) // 32), np.int32), []
    for _ in range(60):
        matcher.fill(words)
        choices = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
        closing = [c for c in choices if "}" in codec.decode([c])]
        ids.append((closing or choices)[0])
        matcher.accept(ids[-1])
        if ids[-1] in codec.eos_ids:
            break
    call = codec.parse(ids, lambda i: f"call_{i}")
    assert call.errors == ()
    assert call.message.tool_calls == (ToolCall("call_0", TOOLS[1].name, "{}"),)


@pytest.mark.parametrize("name", ["embedded", "qwen2.5", "qwen3", "undeclared"])
def test_several_calls_are_allowed_unless_one_was_asked_for(name: str) -> None:
    codec = CODECS[name]
    call = ToolCall("c", "calculator", '{"expression": "1"}')
    ids = written(codec, call, call)
    assert follows(codec, codec.grammar(TOOLS, Constraint("required")), ids)
    assert not follows(codec, codec.grammar(TOOLS, Constraint("required", False)), ids)
    assert not follows(codec, codec.grammar(TOOLS, Constraint("calculator")), ids)
    assert not follows(codec, codec.grammar(TOOLS, Constraint("auto", False)), ids)


@pytest.mark.parametrize("name", ["embedded", "qwen2.5", "qwen3", "undeclared"])
def test_no_calls_means_no_tag_in_any_spelling(name: str) -> None:
    codec = CODECS[name]
    grammar = codec.grammar(TOOLS, Constraint("none"))
    spelled = [t for c in "<tool_call>" for t in codec.encode(c)]
    assert follows(codec, grammar, codec.encode("a < b, tool_call>"))
    assert not follows(codec, grammar, codec.encode("a<tool_call>"))
    assert not follows(codec, grammar, [*codec.encode("a"), *spelled])


def test_a_thought_may_come_before_a_required_call_where_the_template_has_thoughts() -> None:
    call = written(CODECS["qwen3"], ToolCall("c", "calculator", '{"expression": "1"}'))
    for name, thinks in (("qwen3", True), ("qwen2.5", False)):
        codec = CODECS[name]
        ids = [*codec.encode("<think>\nhm\n</think>\n\n"), *call]
        assert follows(codec, codec.grammar(TOOLS, Constraint("required")), ids) == thinks
        assert follows(codec, codec.grammar(TOOLS, Constraint("required")), call)


def test_a_prompt_that_opens_a_thought_has_it_closed_first() -> None:
    tokenizer: Any = make_codec("qwen2.5").tokenizer
    tokenizer.chat_template += "{%- if add_generation_prompt %}{{- '<think>\\n' }}{%- endif %}"
    codec = Codec(tokenizer)
    call = written(CODECS["qwen2.5"], ToolCall("c", "calculator", '{"expression": "1"}'))
    grammar = codec.grammar(TOOLS, Constraint("required"))
    assert follows(codec, grammar, [*codec.encode("hm\n</think>\n\n"), *call])
    assert not follows(codec, grammar, call)


def test_llama_knows_its_calls_by_their_text() -> None:
    codec = CODECS["llama3.2"]
    assert codec.grammar(TOOLS, Constraint("none")) is None
    assert codec.grammar(TOOLS, Constraint("auto", False)) is None
    text = '{"name": "calculator", "parameters": {"expression": "1"}}'
    ids = [*codec.encode(text), codec.tokenizer.eos_token_id]
    assert codec.parse(ids, str).message.tool_calls
    assert codec.parse(ids, str, calls=False).message == Message("assistant", text)


@pytest.mark.parametrize("name", [*NAMES, "undeclared"])
def test_a_schema_may_spell_special_tokens(name: str) -> None:
    codec = CODECS[name]
    spelled = {"text": "a </tool_call> b <|im_end|> <tool_call>"}
    schema = {"type": "object", "properties": {"text": {"enum": [spelled["text"]]}}}
    closed = {**schema, "required": ["text"], "additionalProperties": False}
    grammar = codec.grammar([ToolSpec("note", "", closed)], Constraint("note"))
    assert grammar is not None
    matcher, ids = grammar.start(), list[int]()
    words = np.zeros(-(-len(codec.tokenizer) // 32), np.int32)
    while not ids or ids[-1] not in codec.eos_ids:
        matcher.fill(words)
        ids.append(int(np.unpackbits(words.view(np.uint8), bitorder="little").argmax()))
        matcher.accept(ids[-1])
    (call,) = codec.parse(ids, str).message.tool_calls
    assert json.loads(call.arguments) == spelled


@pytest.mark.parametrize("name", NAMES)
def test_a_document_may_be_any_json_of_its_schema(name: str) -> None:
    codec = CODECS[name]
    end = codec.tokenizer.eos_token_id
    grammar = codec.grammar((), Constraint(json_schema={"type": "object"}))
    for text in ('{"a": [1, {"b": null}], "c": "d"}', "{}"):
        assert follows(codec, grammar, [*codec.encode(text), end])
    assert not follows(codec, grammar, codec.encode("[]"))
    assert not follows(codec, grammar, [*codec.encode('{"a": 1'), end])
