"""Templates by name: byte for byte what the families' own templates render."""

from __future__ import annotations

import json

import pytest
from policy.chat_templates import LLAMA_TOKENS

from tutelage.errors import ModelError
from tutelage.policy.codec import Codec
from tutelage.policy.named_templates import TEMPLATES, set_template
from tutelage.policy.tokenizer import train_tokenizer
from tutelage.tools.builtin import calculator
from tutelage.types import Message, ToolCall

CALL = ToolCall("c1", "calculator", '{"expression": "6 * 7"}')
TALK = [
    Message("user", "What is 6 * 7?"),
    Message("assistant", None, (CALL,)),
    Message("tool", "42", tool_call_id="c1", name="calculator"),
    Message("assistant", "It is 42."),
    Message("user", "Sure?"),
]
TOOL = json.dumps(calculator.spec.to_dict(), ensure_ascii=False)


def codec(name: str) -> Codec:
    tokenizer = train_tokenizer(["text 42 calculator"], vocab_size=400)
    if name.startswith("llama"):
        tokenizer.add_special_tokens({"additional_special_tokens": list(LLAMA_TOKENS)})
        tokenizer.eos_token = "<|eot_id|>"
    set_template(tokenizer, name)
    return Codec(tokenizer)


def test_qwen25_without_tools() -> None:
    assert codec("qwen2.5").render_text([Message("user", "Hi")]) == (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_qwen25_vl_is_the_text_models_with_another_default() -> None:
    ours = codec("qwen2.5-vl")
    assert ours.render_text([Message("user", "Hi")]) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    talk = [Message("system", "Be brief."), *TALK]
    assert ours.render_text(talk, [calculator.spec]) == codec("qwen2.5").render_text(
        talk, [calculator.spec]
    )


HERMES = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    f"{TOOL}\n</tools>\n\nFor each function call, return a json object with function name and "
    "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
)
CALLED = (
    "<|im_start|>user\nWhat is 6 * 7?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n"
    '{"name": "calculator", "arguments": {"expression": "6 * 7"}}\n</tool_call><|im_end|>\n'
    "<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\nIt is 42.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def test_qwen25_with_tools() -> None:
    assert codec("qwen2.5").render_text(TALK, [calculator.spec]) == (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
        f"\n\n{HERMES}{CALLED}"
    )


def test_qwen3_with_tools_and_a_system_message() -> None:
    told = codec("qwen3").render_text([Message("system", "Be brief."), *TALK], [calculator.spec])
    assert told == f"<|im_start|>system\nBe brief.\n\n{HERMES}{CALLED}"


def test_qwen3_forgets_thoughts_of_earlier_questions() -> None:
    thought = Message("assistant", "<think>\nhm\n</think>\n\nYes.")
    first = [Message("user", "A?"), thought]
    made = codec("qwen3")
    assert "hm" in made.render_text(first, open_turn=False)
    assert "hm" not in made.render_text([*first, Message("user", "B?")])


def test_llama_with_tools() -> None:
    told = codec("llama-3.2").render_text(TALK[:3], [calculator.spec])
    listed = json.dumps(calculator.spec.to_dict(), indent=4, ensure_ascii=False)
    assert told == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n"
        "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nGiven the following functions, please respond "
        "with a JSON for a function call with its proper arguments that best answers the given "
        'prompt.\n\nRespond in the format {"name": function name, "parameters": dictionary of '
        f"argument name and its value}}.Do not use variables.\n\n{listed}\n\nWhat is 6 * 7?"
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "calculator", "parameters": {"expression": "6 * 7"}}<|eot_id|>'
        "<|start_header_id|>ipython<|end_header_id|>\n\n42<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_sampled_is_read_and_continued(name: str) -> None:
    """A turn in the template's form is parsed as a call, and its observation only appends."""
    made = codec(name)
    start = made.render([TALK[0]], [calculator.spec])
    later = made.render(TALK[:3], [calculator.spec])
    text = made.decode(later[len(start) :])
    assert made.decode(later).startswith(made.decode(start))
    end = "<|eot_id|>" if name.startswith("llama") else "<|im_end|>"
    sampled = made.encode(text[: text.index(end) + len(end)])
    parsed = made.parse(sampled, str)
    assert not parsed.errors
    (call,) = parsed.message.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("calculator", {"expression": "6 * 7"})
    observed = made.encode_observation(parsed.message, [TALK[2]])
    assert observed is not None
    assert made.decode(observed).endswith(text[-20:])


@pytest.mark.parametrize(("name", "token"), [("llama-3.2", "start_header_id")])
def test_a_tokenizer_that_cannot_speak_it_is_refused(name: str, token: str) -> None:
    tokenizer = train_tokenizer(["text"], vocab_size=400)
    with pytest.raises(ModelError, match=token):
        set_template(tokenizer, name)
