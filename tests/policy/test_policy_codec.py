"""The codec: what is appended is what the template says; thoughts; the embedded tokenizer."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest
from chat_templates import QWEN25, make_codec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tutelage.errors import ModelError
from tutelage.policy.codec import Codec
from tutelage.policy.template import SPECIAL_TOKENS
from tutelage.policy.tokenizer import train_tokenizer
from tutelage.testing.tiny import CORPUS
from tutelage.types import THOUGHTS, Message, ToolCall, ToolSpec

NAMES = ["embedded", "qwen2.5", "qwen3", "llama-3.2"]
CODECS: dict[str, Codec] = {name: make_codec(name) for name in NAMES}
TOOLS = (
    ToolSpec(
        "calculator",
        "Work out an expression.",
        {"type": "object", "properties": {"expression": {"type": "string"}}},
    ),
    ToolSpec("lookup", "Look up a price.", {"type": "object", "properties": {"item": {}}}),
)
SYSTEM, ASK = Message("system", "Be brief."), Message("user", "What is 12 + 34?")
THOUGHT = "<think>\nhm\n</think>\n\n"
CALL = ToolCall("call_1", "calculator", '{"expression": "12 + 34"}')

plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(
    lambda t: not any(s in t for s in SPECIAL_TOKENS) and "<|" not in t
)


def new_id(i: int) -> str:
    return f"call_{i}"


def result(content: str, number: int = 1) -> Message:
    return Message("tool", content, tool_call_id=f"call_{number}", name="calculator")


def appended(codec: Codec, history: list[Message], reply: Message, more: list[Message]) -> str:
    """What re-rendering a whole conversation says after the reply's end-of-turn token."""
    end = codec.tokenizer.eos_token
    before = codec.render_text([*history, reply], TOOLS, open_turn=False)
    after = codec.render_text([*history, reply, *more], TOOLS)
    known = before[: before.rindex(end) + len(end)]
    assert after.startswith(known)
    return after[len(known) :]


# ---------------------------------------------------------------- rendering


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_is_the_templates_own_text_and_opens_the_turn(name: str) -> None:
    codec = CODECS[name]
    ids = codec.render([SYSTEM, ASK], TOOLS)
    wanted = codec.tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASK.content}],
        tools=[t.to_dict() for t in TOOLS],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert codec.decode(ids) == wanted
    assert "calculator" in wanted
    assert codec.render([SYSTEM, ASK], TOOLS) == ids


TURNS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "known"),
    [
        (f"{TURNS}{{# tools are for a later version #}}", False),
        (f"{TURNS}{{% if tools %}}There are tools.{{% endif %}}", False),
        (f"{{% for tool in tools %}}{{{{ tool.function.name }}}}{{% endfor %}}{TURNS}", True),
    ],
)
def test_whether_a_template_shows_tools_is_tried(template: str, known: bool) -> None:
    tokenizer: Any = make_codec("embedded").tokenizer
    tokenizer.chat_template = template
    codec = Codec(tokenizer, source="'model-x'")
    assert codec.supports_tools is known
    if known:
        assert "calculator" in codec.render_text([ASK], TOOLS)
        return
    said = r"'model-x' ignores tools.*'calculator'.*agent\.template=qwen2\.5 or .*=smollm2"
    with pytest.raises(ModelError, match=said):
        codec.render([ASK], TOOLS)


def test_a_tokenizer_without_template_or_end_is_refused() -> None:
    tokenizer: Any = make_codec("embedded").tokenizer
    tokenizer.chat_template = None
    said = r"'model-x' has no chat template.*: agent\.template=qwen2\.5 or .*=smollm2$"
    with pytest.raises(ModelError, match=said):
        Codec(tokenizer, source="'model-x'")
    tokenizer = make_codec("embedded").tokenizer
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match="eos_token"):
        Codec(tokenizer)


def test_what_a_template_refuses_is_a_model_error() -> None:
    tokenizer: Any = make_codec("embedded").tokenizer
    limit = "{% if messages | length > 9 %}{{ raise_exception('too many turns') }}{% endif %}"
    tokenizer.chat_template += limit
    with pytest.raises(ModelError, match="too many turns"):
        Codec(tokenizer).render([ASK] * 10, TOOLS)


# ---------------------------------------------------------------- observations


@pytest.mark.parametrize("name", NAMES)
@given(contents=st.lists(plain, min_size=1, max_size=3), tail=st.none() | plain)
@example(contents=["46"], tail=None)
@example(contents=['he said "no"\\\n', " padded ", "\u00a70\u00a7"], tail="thanks & <bye>")
@settings(max_examples=25, deadline=None)
def test_an_observation_is_what_rendering_afresh_would_append(
    name: str, contents: list[str], tail: str | None
) -> None:
    codec = CODECS[name]
    calls = tuple(
        ToolCall(f"call_{i}", "calculator", json.dumps({"expression": str(i)}))
        for i in range(1 if name == "llama-3.2" else len(contents))
    )
    reply = Message("assistant", THOUGHT if name == "qwen3" else None, calls)
    more = [result(c, i) for i, c in enumerate(contents)]
    if tail is not None and name != "qwen3":  # which rewrites earlier turns then; see below
        more.append(Message("user", tail))
    ids = codec.encode_observation(reply, more)
    wanted = appended(codec, [SYSTEM, ASK], reply, more)
    assert ids is not None
    assert codec.decode(ids) == wanted
    assert list(ids) == codec.encode(wanted)


def test_a_template_that_rewrites_earlier_turns_has_no_observation() -> None:
    thinking = Message("assistant", THOUGHT + "46")
    assert CODECS["qwen3"].encode_observation(thinking, [Message("user", "sure?")]) is None


@pytest.mark.parametrize("name", NAMES)
def test_appending_a_turn_gives_the_ids_of_the_whole_conversation(name: str) -> None:
    codec = CODECS[name]
    thought = THOUGHT if name == "qwen3" else None
    demonstration = [SYSTEM, ASK, Message("assistant", thought, (CALL,))]
    ids, mask = codec.encode_demonstration(demonstration, TOOLS)
    prompt = codec.render(demonstration[:2], TOOLS)
    assert ids[: len(prompt)] == prompt
    sampled = ids[len(prompt) :]
    assert mask == (0,) * len(prompt) + (1,) * len(sampled)
    read = codec.parse(sampled, new_id).message
    more = codec.encode_observation(read, [result("46")])
    assert more is not None
    whole = codec.render([*demonstration, result("46")], TOOLS)
    assert prompt + sampled + more == whole


# ---------------------------------------------------------------- demonstrations


@pytest.mark.parametrize("name", NAMES)
def test_a_demonstration_trains_what_the_assistant_wrote_and_nothing_else(name: str) -> None:
    codec = CODECS[name]
    turns = [
        ASK,
        Message("assistant", None, (CALL,)),
        result("46"),
        Message("assistant", "It is 46"),
    ]
    if name == "qwen3":  # it keeps an empty thought only in the last turn
        turns = turns[:2]
    ids, mask = codec.encode_demonstration([SYSTEM, *turns], TOOLS)
    pieces = re.findall(r"1+", "".join(map(str, mask)))
    starts = [m.start() for m in re.finditer(r"(?<!1)1", "".join(map(str, mask)))]
    written = [
        codec.decode(ids[at : at + len(piece)]) for at, piece in zip(starts, pieces, strict=True)
    ]
    assert len(written) == sum(t.role == "assistant" for t in turns)
    assert all(ids[at + len(p) - 1] in codec.eos_ids for at, p in zip(starts, pieces, strict=True))
    assert "calculator" in written[0]
    assert "12 + 34" in written[0]
    if len(written) > 1:
        assert written[1] == "It is 46" + codec.tokenizer.eos_token
    untrained = codec.decode([t for t, m in zip(ids, mask, strict=True) if not m])
    assert "What is" in untrained
    assert "It is 46" not in untrained


def test_a_demonstration_that_cannot_be_masked_exactly_is_refused() -> None:
    thinking = Message("assistant", THOUGHT + "46")
    said = [ASK, thinking, Message("user", "sure?"), thinking]
    with pytest.raises(ModelError, match="rewrites earlier turns"):
        CODECS["qwen3"].encode_demonstration(said)


THINKS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.FIELD %}{{ '<think>' + m.FIELD + '</think>' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize("field", THOUGHTS)
def test_reasoning_is_trained_where_the_template_shows_it(field: str) -> None:
    tokenizer: Any = make_codec("embedded").tokenizer
    tokenizer.chat_template = THINKS.replace("FIELD", field)
    codec, extra = Codec(tokenizer), dict.fromkeys(THOUGHTS, "12 and <|im_end|> 34")
    ids, mask = codec.encode_demonstration([ASK, Message("assistant", "46", extra=extra)])
    trained = [i for i, m in zip(ids, mask, strict=True) if m]
    assert codec.decode(trained) == "<think>12 and <|im_end|> 34</think>46<|im_end|>"
    assert sum(i in codec.eos_ids for i in trained) == 1
    assert codec.renders_reasoning
    assert not CODECS["embedded"].renders_reasoning


@pytest.mark.parametrize("name", ["embedded", "qwen2.5", "llama-3.2"])
def test_a_turn_of_weight_0_is_shown_and_not_trained(name: str) -> None:
    codec, again = CODECS[name], Message("user", "again")
    turns = [ASK, Message("assistant", "bad"), again, Message("assistant", "good")]
    ids, mask = codec.encode_demonstration(turns)
    turns[1] = Message("assistant", "bad", extra={"weight": 0})
    same, weighed = codec.encode_demonstration(turns)
    assert same == ids
    assert sum(weighed) < sum(mask)
    end = codec.tokenizer.eos_token
    assert codec.decode([i for i, m in zip(ids, weighed, strict=True) if m]) == f"good{end}"


# ---------------------------------------------------------------- parsing


def sampled(codec: Codec, text: str) -> list[int]:
    return [*codec.encode(text), codec.tokenizer.eos_token_id]


def test_calls_are_read_with_their_arguments_as_written() -> None:
    codec = CODECS["embedded"]
    text = (
        'Let me see. <tool_call>{"name": "f", "arguments": {"a" : 1.50, "b":[ {} ]}}</tool_call>'
        '\n<tool_call>\n{"arguments": {"x": "}"}, "name": "g"}\n</tool_call> Done.'
    )
    parsed = codec.parse(sampled(codec, text), new_id)
    assert parsed.errors == ()
    assert parsed.message.tool_calls == (
        ToolCall("call_0", "f", '{"a" : 1.50, "b":[ {} ]}'),
        ToolCall("call_1", "g", '{"x": "}"}'),
    )
    assert parsed.message.content == "Let me see. \n Done."


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ('<tool_call>{"name": "f", "arguments": {}}', "not closed"),
        ('<tool_call>{"name": "f", "arguments": {}</tool_call>', "not valid JSON at position"),
        ('<tool_call>{"name": 3}</tool_call>', '"name"'),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "must be an object, not list"),
        ("46</tool_call>", "without <tool_call>"),
    ],
)
def test_a_broken_call_stays_in_the_content_with_its_reason(call: str, reason: str) -> None:
    codec = CODECS["embedded"]
    parsed = codec.parse(sampled(codec, f"So: {call}"), new_id)
    assert parsed.message.tool_calls == ()
    assert parsed.message.content == f"So: {call}"
    assert len(parsed.errors) == 1
    assert reason in parsed.errors[0]


@pytest.mark.parametrize("text", ["a </tool_call> b", "<tool_call>x</tool_call>"])
def test_a_call_ends_with_its_json_whatever_its_strings_spell(text: str) -> None:
    codec = CODECS["embedded"]
    arguments = json.dumps({"text": text})
    call = f'<tool_call>\n{{"name": "note", "arguments": {arguments}}}\n'
    parsed = codec.parse(sampled(codec, f"So {call}</tool_call>, {call}</tool_call>"), new_id)
    assert parsed.errors == ()
    assert [c.arguments for c in parsed.message.tool_calls] == [arguments] * 2
    assert parsed.message.content == "So ,"
    cut = codec.parse(sampled(codec, call), new_id)
    assert cut.message == Message("assistant", call.strip())
    assert cut.errors[0].startswith("the call is not closed by </tool_call>")
    broken = codec.parse(
        sampled(codec, f'<tool_call>{{"a": "</tool_call>{call}</tool_call>'), new_id
    )
    assert [c.arguments for c in broken.message.tool_calls] == [arguments]
    assert len(broken.errors) == 1


pieces = st.one_of(
    plain,
    st.sampled_from(
        ["<tool_call>", "</tool_call>", "<|im_end|>", "{", "}", '"', "\\", '{"name": "f"',
         ', "arguments": {"a": 1}}', ', "arguments": "{}"}', '{"name": "g", "arguments": {}}',
         '<tool_call>{"name": "f", "arguments": {"a": [1, {"b": null}]}}</tool_call>', "NaN",
         "1e999", '"name"', '"parameters"', "[" * 50]
    ),
)  # fmt: skip


def readable(inner: str) -> bool:
    """Whether the inside of a call's tags is a call, by the book."""
    try:
        data = json.loads(inner)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(data, dict)
        and isinstance(data.get("name"), str)
        and isinstance(data.get("arguments", {}), dict | str)
    )


@pytest.mark.full
@given(st.lists(pieces, max_size=8).map("".join))
@settings(max_examples=300, deadline=None)
def test_whatever_is_sampled_is_read_and_every_byte_is_accounted_for(text: str) -> None:
    codec = CODECS["embedded"]
    parsed = codec.parse(sampled(codec, text), new_id)
    spans = re.finditer(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)
    calls = [m for m in spans if readable(m.group(1))]
    rest, at = "", 0
    for match in calls:
        rest += text[at : match.start()]
        at = match.end()
    rest += text[at:]
    assert parsed.message.content == (rest.strip() or None)
    assert [c.name for c in parsed.message.tool_calls] == [
        json.loads(m.group(1))["name"] for m in calls
    ]
    for call, match in zip(parsed.message.tool_calls, calls, strict=True):
        given_ = json.loads(match.group(1)).get("arguments", {})
        read = call.arguments if isinstance(given_, str) else json.loads(call.arguments)
        # Compared as text: NaN, which json reads, is not equal to itself.
        assert repr(read) == repr(given_)
    assert bool(parsed.errors) == ("<tool_call>" in rest or "</tool_call>" in rest)
    assert [c.id for c in parsed.message.tool_calls] == [f"call_{i}" for i in range(len(calls))]


# ------------------------------------------------------------ the embedded tokenizer


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
sums = st.text("0123456789+-*/%() x=", max_size=30)


@functools.cache
def trained() -> Any:
    return train_tokenizer(CORPUS, vocab_size=400)


def test_equal_corpora_give_equal_tokenizers() -> None:
    again = train_tokenizer(list(CORPUS), vocab_size=400)
    assert again.backend_tokenizer.to_str() == trained().backend_tokenizer.to_str()
    other = train_tokenizer(["entirely different words, over and over: words"], vocab_size=400)
    assert other.backend_tokenizer.to_str() != trained().backend_tokenizer.to_str()


@given(texts | sums)
@example("e\u0301 \u00e9 \ufb01 \u0663 \U0001f600 \x00 \r\n\t ")
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back(text: str) -> None:
    ids = trained().encode(text, add_special_tokens=False)
    assert trained().decode(ids, skip_special_tokens=False) == text


@given(sums)
@settings(max_examples=100, deadline=None)
def test_digits_and_operators_are_tokens_of_their_own(text: str) -> None:
    tokens = trained().tokenize(text)
    for token in tokens:
        assert len(token) == 1 or not set(token) & set("0123456789+-*/%()")


def test_special_tokens_are_one_id_each_and_teach_no_merges() -> None:
    for special in SPECIAL_TOKENS:
        assert len(trained().encode(f"a{special}b", add_special_tokens=False)) == 3
    corpus = ["<|im_start|>user<|im_end|>"] * 50
    merges = json.loads(train_tokenizer(corpus).backend_tokenizer.to_str())["model"]["merges"]
    assert not any("|" in "".join(merge) or "im" in "".join(merge) for merge in merges)


# ------------------------------------------------------------ templates that rewrite earlier turns


SAID = "{% if m.role == 'assistant' %}{% set said = SPOKEN %}{% else %}{% set said = m.content %}"
TOLD_TURNS = (
    "{% for m in messages %}" + SAID + "{% endif %}"
    "{{ '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
)
DROPS = "m.content.split('</think>')[-1].lstrip('\\n')"
TEMPLATES = {
    "always drops": TOLD_TURNS.replace("SPOKEN", DROPS),
    "may keep": TOLD_TURNS.replace("SPOKEN", f"m.content if keep_all else {DROPS}"),
    "trims": TOLD_TURNS.replace("SPOKEN", "m.content | trim"),
}
ASKED, MORE = Message("user", "What is 12 + 34?"), Message("user", "sure?")
THOUGHT_TURN = Message("assistant", "<think>\n12 and 34 \n</think>\n\nIt is 46")
CALLED = ToolCall("call_1", "calculator", '{"expression": "12 + 34"}')
RESULT = Message("tool", "46", tool_call_id="call_1", name="calculator")


def codec_of(name: str) -> Codec:
    if name not in TEMPLATES:
        return make_codec(name)
    tokenizer: Any = make_codec("embedded").tokenizer
    tokenizer.chat_template = TEMPLATES[name]
    return Codec(tokenizer)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("embedded", None),
        ("qwen2.5", None),
        ("qwen3", "drops reasoning (to </think>) from a turn that a user message follows"),
        (
            "always drops",
            "drops reasoning (to </think>) from a turn that a user message or a tool result "
            "follows",
        ),
        *((name, "changes earlier turns") for name in ("trims", "llama-3.2")),
    ],
)
def test_what_a_template_does_to_earlier_turns_is_found_by_trying(
    name: str, said: str | None
) -> None:
    found = codec_of(name).thoughts.rewriting_notice
    assert str(found).startswith(str(said))


@pytest.mark.parametrize("name", ["qwen3", "always drops", "may keep"])
@pytest.mark.parametrize("follows", [MORE, RESULT], ids=["user", "tool"])
def test_a_thought_is_left_out_or_kept_as_chosen(name: str, follows: Message) -> None:
    reply = (
        THOUGHT_TURN if follows is MORE else Message("assistant", THOUGHT_TURN.content, (CALLED,))
    )
    codec = codec_of(name)
    drops = not (name == "qwen3" and follows is RESULT)
    for choice in (None, "drop"):
        codec.choose_thinking(choice, None)
        assert (codec.encode_observation(reply, [follows]) is None) is drops
        assert ("12 and 34" in codec.render_text([ASKED, reply, follows])) is not drops
    codec.choose_thinking("keep", None)
    ids = codec.encode_observation(reply, [follows])
    assert ids is not None
    whole = codec.render_text([ASKED, reply, follows])
    assert whole.endswith(codec.decode(ids))
    assert codec.decode(ids).count("<|im_end|>") == 1
    assert "drops" not in str(codec.thoughts.rewriting_notice)


@pytest.mark.parametrize(
    ("name", "choice", "limit", "reason"),
    [
        ("qwen2.5", "drop", None, "agent.thinking='drop': the chat template includes"),
        ("qwen2.5", None, 8, "agent.max_thinking_tokens=8 needs a chat template"),
    ],
)
def test_what_a_template_cannot_do_is_refused(
    name: str, choice: Any, limit: int | None, reason: str
) -> None:
    assert "think" not in QWEN25
    with pytest.raises(ModelError, match=reason):
        codec_of(name).choose_thinking(choice, limit)
