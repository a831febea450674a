"""Templates that rewrite earlier turns: what they do is found by trying, and kept or dropped."""

from __future__ import annotations

from typing import Any

import pytest
from chat_templates import QWEN25, make_codec

from tutelage.errors import ModelError
from tutelage.policy.codec import Codec
from tutelage.types import Message, ToolCall

SAID = "{% if m.role == 'assistant' %}{% set said = SPOKEN %}{% else %}{% set said = m.content %}"
TURNS = (
    "{% for m in messages %}" + SAID + "{% endif %}"
    "{{ '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
)
DROPS = "m.content.split('</think>')[-1].lstrip('\\n')"
TEMPLATES = {
    "always drops": TURNS.replace("SPOKEN", DROPS),
    "may keep": TURNS.replace("SPOKEN", f"m.content if keep_all else {DROPS}"),
    "trims": TURNS.replace("SPOKEN", "m.content | trim"),
}
ASK, MORE = Message("user", "What is 12 + 34?"), Message("user", "sure?")
THOUGHT = Message("assistant", "<think>\n12 and 34 \n</think>\n\nIt is 46")
CALL = ToolCall("call_1", "calculator", '{"expression": "12 + 34"}')
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
    found = codec_of(name).thoughts.rewriting
    assert str(found).startswith(str(said))


@pytest.mark.parametrize("name", ["qwen3", "always drops", "may keep"])
@pytest.mark.parametrize("follows", [MORE, RESULT], ids=["user", "tool"])
def test_a_thought_is_left_out_or_kept_as_chosen(name: str, follows: Message) -> None:
    reply = THOUGHT if follows is MORE else Message("assistant", THOUGHT.content, (CALL,))
    codec = codec_of(name)
    drops = not (name == "qwen3" and follows is RESULT)
    for choice in (None, "drop"):
        codec.choose_thinking(choice, None)
        assert (codec.observation(reply, [follows]) is None) is drops
        assert ("12 and 34" in codec.render_text([ASK, reply, follows])) is not drops
    codec.choose_thinking("keep", None)
    ids = codec.observation(reply, [follows])
    assert ids is not None
    whole = codec.render_text([ASK, reply, follows])
    assert whole.endswith(codec.decode(ids))
    assert codec.decode(ids).count("<|im_end|>") == 1
    assert "drops" not in str(codec.thoughts.rewriting)


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


def test_a_thought_is_closed_as_the_template_writes_it() -> None:
    assert codec_of("qwen3").thoughts.close == "\n</think>\n\n"
    tokenizer: Any = make_codec("embedded").tokenizer
    spoken = TURNS.replace("SPOKEN", "m.content").replace("<think>", "[THINK]")
    tokenizer.chat_template = spoken + "{# [/THINK] #}"
    thoughts = Codec(tokenizer).thoughts
    assert (thoughts.opening, thoughts.closing) == ("[THINK]", "[/THINK]")
    assert thoughts.unclosed("...<|im_start|>assistant\n[THINK]\n", "hm")
    assert not thoughts.unclosed("...<|im_start|>assistant\n[THINK]\n", "hm[/THINK]")
    assert not thoughts.unclosed("...<|im_start|>assistant\n", "hm")
