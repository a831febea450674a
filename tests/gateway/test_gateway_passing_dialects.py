"""Behind another server, responses and messages go on as chat completions that ask for the same,
and what comes back is told in their words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message as AnthropicMessage
from openai.types.responses import Response

from tutelage.types import Sampling

from .test_gateway_messages import known
from .test_gateway_passing import LOGPROBS, REFUSAL, Upstream
from .test_openai_types import parsed

PNG = "data:image/png;base64,AAAA"
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
FUNCTION = {"name": "f", "description": "Do it.", "parameters": SCHEMA}
ANTHROPIC = {"name": "f", "description": "Do it.", "input_schema": SCHEMA}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
HI = [{"role": "user", "content": "hi"}]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
BASE64 = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "a+"}


def message(told: Any) -> Any:
    """A message as the package's own type, without fields that it does not know."""
    made = AnthropicMessage.model_validate(told)
    known(made)
    return made


def image(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def body(case: Upstream) -> dict[str, Any]:
    """What the server behind was asked last, without its name."""
    return {k: v for k, v in case.seen[-1].items() if k != "model"}


async def respond(case: Upstream, **given: Any) -> Any:
    return await case.ask("/responses", **({"messages": None, "input": "hi"} | given))


async def say(case: Upstream, **given: Any) -> Any:
    return await case.ask("/messages", **({"messages": HI, "max_tokens": 9} | given))


RESPONSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "little": ({}, {}),
    "effort": ({"reasoning": {"effort": "high", "summary": "auto"}}, {"reasoning_effort": "high"}),
    "no effort": ({"reasoning": {"effort": "none"}}, {"reasoning_effort": "none"}),
    "verbosity": ({"text": {"verbosity": "low"}}, {"verbosity": "low"}),
    "text": ({"text": {"format": {"type": "text"}}}, {}),
    "object": (
        {"text": {"format": {"type": "json_object"}}},
        {"response_format": {"type": "json_object"}},
    ),
    "schema": (
        {"text": {"format": {"type": "json_schema", "name": "n", "description": "d",
                             "strict": False, "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "json_schema": {
            "name": "n", "schema": SCHEMA, "description": "d", "strict": False}}},
    ),
    "limit": ({"max_output_tokens": 7}, {"max_tokens": 7}),
    "logprobs": (
        {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
        {"logprobs": True, "top_logprobs": 3},
    ),
    "sampling": (
        fields := {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "seed": 3, "min_p": 0.1,
                   "frequency_penalty": 1, "presence_penalty": -1, "logit_bias": {"1": 2},
                   "min_tokens": 2, "chat_template_kwargs": {"enable_thinking": True},
                   "nobody_knows": [1]},
        fields,
    ),
    "words": (
        words := {"user": "u", "metadata": {"a": "b"}, "service_tier": "flex",
                  "safety_identifier": "s", "prompt_cache_key": "k",
                  "prompt_cache_retention": "24h"},
        words,
    ),
    "what is kept here": ({"store": False, "truncation": "auto", "max_tool_calls": 3,
                           "background": False}, {}),
    "tools": (
        {"tools": [{"type": "function", "strict": True, **FUNCTION}], "tool_choice": "required",
         "parallel_tool_calls": False},
        {"tools": [{"type": "function", "function": FUNCTION | {"strict": True}}],
         "tool_choice": "required", "parallel_tool_calls": False},
    ),
    "a tool": (
        {"tools": [{"type": "function", **FUNCTION}],
         "tool_choice": {"type": "function", "name": "f"}},
        {"tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ),
    "allowed tools": (
        {"tools": [{"type": "function", **FUNCTION}],
         "tool_choice": {"type": "allowed_tools", "mode": "required",
                         "tools": [{"type": "function", "name": "f"}]}},
        {"tools": [CHAT_TOOL],
         "tool_choice": {"type": "allowed_tools", "allowed_tools": {
             "mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}}},
    ),
    "custom tools": (
        {"tools": [{"type": "custom", "name": "g", "description": "Free.", "format": GRAMMAR}],
         "tool_choice": {"type": "custom", "name": "g"}},
        {"tools": [{"type": "custom", "custom": {
            "name": "g", "description": "Free.",
            "format": {"type": "grammar",
                       "grammar": {"syntax": "regex", "definition": "a+"}}}}],
         "tool_choice": {"type": "custom", "custom": {"name": "g"}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RESPONSES)
async def test_a_response_is_asked_as_a_chat_completion(name: str):
    case = Upstream()
    asked, sent = RESPONSES[name]
    answer = await respond(case, **asked)
    assert answer.status_code == 200, answer.text
    parsed(Response, answer.json())
    assert body(case) == {"messages": HI, **sent}


INPUT: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": PNG, "detail": "low"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,A"},
        {"type": "input_file", "file_id": "file-1"},
        {"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}}]},
    {"type": "reasoning", "id": "rs_1", "summary": [],
     "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
     "content": [{"type": "output_text", "text": "Let me see.", "annotations": [{"a": 1}]}]},
    {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "c", "name": "f",
     "arguments": '{"x": 1}'},
    {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "aa"},
    {"type": "function_call_output", "call_id": "c",
     "output": [{"type": "input_text", "text": "Look: "},
                {"type": "input_image", "image_url": "http://x/y.png"}]},
    {"type": "custom_tool_call_output", "call_id": "d", "output": "ok"},
]  # fmt: skip
CUSTOM = {"id": "d", "type": "custom", "custom": {"name": "g", "input": "aa"}}


async def test_the_items_of_a_response_are_messages_there_and_whole_on_record():
    case = Upstream()
    answer = await respond(case, input=INPUT, instructions="Be kind.")
    assert answer.status_code == 200, answer.text
    text, photo, file, sound = (
        {"type": "text", "text": "What is it?"},
        image(PNG, detail="low"),
        {
            "type": "file",
            "file": {"filename": "a.pdf", "file_data": INPUT[1]["content"][2]["file_data"]},
        },
        INPUT[1]["content"][4],
    )
    by_id = {"type": "file", "file": {"file_id": "file-1"}}
    assert body(case)["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [text, photo, file, by_id, sound]},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [CALL, CUSTOM],
            "reasoning_content": "Hm.",
        },
        {
            "role": "tool",
            "content": [{"type": "text", "text": "Look: "}, image("http://x/y.png")],
            "tool_call_id": "c",
        },
        {"role": "tool", "content": "ok", "tool_call_id": "d"},
    ]
    await case.session.aclose()
    seen = case.spans[0].calls[0].messages
    assert [m.content for m in seen[2:5]] == ["What is it?", "Let me see.", "Look: "]
    turn = seen[3].extra
    assert (turn["id"], turn["status"]) == ("msg_1", "completed")
    assert turn["content_parts"][0]["annotations"] == [{"a": 1}]
    assert turn["tool_call_fields"] == {"c": {"id": "fc_1", "status": "completed"}}


async def test_a_stored_response_is_continued_there_with_its_thought():
    case = Upstream()
    given = [{"role": "user", "content": [{"type": "input_image", "image_url": PNG}]}]
    first = (await respond(case, input=given)).json()
    assert [item["type"] for item in first["output"]] == ["reasoning", "message"]
    await respond(case, previous_response_id=first["id"], input="And?")
    assert body(case)["messages"] == [
        {"role": "user", "content": [image(PNG)]},
        {"role": "assistant", "content": "a", "reasoning_content": "so"},
        {"role": "user", "content": "And?"},
    ]


MESSAGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "little": ({}, {}),
    "sampling": (
        fields | {"stop_sequences": ["END"], "stop": ["X"]},
        fields | {"stop": ["X", "END"]},
    ),
    "words": ({"metadata": {"user_id": "u"}, "service_tier": "standard_only", "betas": ["x"],
               "speed": "standard", "diagnostics": {"previous_message_id": None}, "fallbacks": []},
              {"user": "u", "service_tier": "default"}),
    "tools": (
        {"tools": [ANTHROPIC | {"strict": True, "cache_control": {"type": "ephemeral"}}],
         "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {"tools": [{"type": "function", "function": FUNCTION | {"strict": True}}],
         "tool_choice": "required", "parallel_tool_calls": False},
    ),
    "a tool": (
        {"tools": [ANTHROPIC], "tool_choice": {"type": "tool", "name": "f"}},
        {"tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ),
    "no tool": ({"tools": [ANTHROPIC], "tool_choice": {"type": "none"}},
                {"tools": [CHAT_TOOL], "tool_choice": "none"}),
    "some thoughts": ({"thinking": {"type": "enabled", "budget_tokens": 1024}},
                      {"reasoning_effort": "low"}),
    "more thoughts": ({"thinking": {"type": "enabled", "budget_tokens": 1025}},
                      {"reasoning_effort": "medium"}),
    "many thoughts": ({"thinking": {"type": "enabled", "budget_tokens": 8193}},
                      {"reasoning_effort": "high"}),
    "no thoughts": ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
    "own thoughts": ({"thinking": {"type": "adaptive"}}, {}),
    "effort": ({"output_config": {"effort": "max"}}, {"reasoning_effort": "max"}),
    "schema": (
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "json_schema": {
            "name": "reply", "schema": SCHEMA, "strict": True}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
async def test_a_message_is_asked_as_a_chat_completion(name: str):
    case = Upstream()
    asked, sent = MESSAGES[name]
    answer = await say(case, **asked)
    assert answer.status_code == 200, answer.text
    message(answer.json())
    assert body(case) == {"messages": HI, "max_tokens": 9, **sent}


TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": [BASE64, {"type": "text", "text": "What is it?"}]},
    {"role": "assistant", "name": "a", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "reasoning"},
        {"type": "thinking", "thinking": "Of another model.", "signature": "EuYBCkQYAiJA"},
        {"type": "text", "text": "Let me see.", "citations": [{"a": 1}]},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1},
         "caller": {"type": "direct"}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c", "is_error": False, "content": [
            {"type": "text", "text": "Look: "},
            {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}]},
        {"type": "document", "title": "a.pdf", "source": {
            "type": "base64", "media_type": "application/pdf", "data": "AAAA"}}]},
]  # fmt: skip


async def test_the_blocks_of_messages_are_parts_there_and_whole_on_record():
    case = Upstream()
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    answer = await say(case, messages=TURNS, system=system)
    assert answer.status_code == 200, answer.text
    file = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}
    assert body(case)["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [image(PNG), {"type": "text", "text": "What is it?"}]},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [CALL],
            "reasoning": "Hm.",
        },
        {
            "role": "tool",
            "content": [{"type": "text", "text": "Look: "}, image("http://x/y.png")],
            "tool_call_id": "c",
        },
        {"role": "user", "content": [{"type": "file", "file": file}]},
    ]
    await case.session.aclose()
    seen = case.spans[0].calls[0].messages
    assert seen[0].extra["content_parts"] == system
    assert seen[1].content == "What is it?"
    assert seen[2].extra["name"] == "a"
    assert seen[2].extra["content_parts"][0]["citations"] == [{"a": 1}]
    assert seen[2].extra["tool_call_fields"] == {"c": {"caller": {"type": "direct"}}}
    assert seen[3].extra["is_error"] is False


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("responses", {"background": True}, "background"),
    ("responses", {"conversation": "c"}, "conversation"),
    ("responses", {"prompt": {"id": "p"}}, "prompt"),
    ("responses", {"messages": HI}, "messages"),
    ("responses", {"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ("responses", {"tools": [{"type": "function", **FUNCTION, "format": {}}]}, "format"),
    ("responses", {"tool_choice": {"type": "file_search"}}, "tool_choice"),
    ("responses", {"reasoning": {"thing": 1}}, "reasoning.thing"),
    ("responses", {"text": {"thing": 1}}, "text.thing"),
    ("responses", {"input": [{"role": "user", "content": [
        {"type": "input_image", "file_id": "f"}]}]}, "input[0]"),
    ("responses", {"input": [{"role": "user", "content": [
        {"type": "input_file", "file_url": "u"}]}]}, "input[0]"),
    ("responses", {"n": 2}, "n"),
    ("messages", {"n": 2}, "n"),
    ("messages", {"stream_options": {"include_usage": True}}, "stream_options"),
    ("messages", {"container": "c"}, "container"),
    ("messages", {"mcp_servers": [{}]}, "mcp_servers"),
    ("messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
    ("messages", {"thinking": {"type": "enabled", "thing": 1}}, "thinking.thing"),
    ("messages", {"output_config": {"thing": 1}}, "output_config.thing"),
    ("messages", {"messages": [{"role": "user", "content": [
        {"type": "image", "source": {"type": "file", "file_id": "f"}}]}]}, "source"),
    ("messages", {"messages": [{"role": "user", "content": [
        {"type": "document", "source": {"type": "url", "url": "http://x"}}]}]},
     "`messages[0].content[0].source.type` = 'url': the upstream chat completions API does not "
     "support documents by URL"),
    ("messages", {"speed": "fast"}, "speed"),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "asked", "named"), REFUSED)
async def test_what_a_chat_completion_cannot_say_is_refused_by_name(
    dialect: str, asked: dict[str, Any], named: str
):
    case = Upstream()
    answer = await {"responses": respond, "messages": say}[dialect](case, **asked)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
    assert not case.seen


OURS_ALONE: list[tuple[str, dict[str, Any], str]] = [
    ("responses", {"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ("responses", {"frequency_penalty": 1}, "frequency_penalty"),
    ("responses", {"tools": RESPONSES["custom tools"][0]["tools"]}, "tools[0].type"),
    ("responses", RESPONSES["allowed tools"][0], "tool_choice"),
    ("responses", {"input": INPUT}, "input[1].content"),
    ("responses", {"input": [INPUT[0], INPUT[5]]}, "input[1]"),
    ("messages", {"output_config": {"effort": "high"}}, "output_config.effort"),
    ("messages", {"messages": TURNS}, "messages[0].content[0]"),
    ("messages", {"presence_penalty": 1}, "presence_penalty"),
]


@pytest.mark.parametrize(("dialect", "asked", "named"), OURS_ALONE)
async def test_without_leave_to_pass_it_on_it_is_refused_by_name(
    dialect: str, asked: dict[str, Any], named: str
):
    case = Upstream(passes=False)
    answer = await {"responses": respond, "messages": say}[dialect](case, **asked)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
    assert not case.seen


@pytest.mark.parametrize("ask", [respond, say])
async def test_an_attempts_own_sampling_holds_where_the_request_is_silent(ask: Any):
    wishes: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "top_k": 3}
    case = Upstream(sampling=Sampling(0.5, 0.9, 3, 20, ("S",)))
    await ask(case)
    assert wishes.items() <= body(case).items()
    assert (body(case)["stop"], body(case)["max_tokens"] <= 20) == (["S"], True)
    said = {"temperature": 0.1, "top_p": 1.0, "top_k": 9}
    await ask(case, **said)
    assert said.items() <= body(case).items()


@pytest.mark.parametrize(
    ("given", "sampling", "told"),
    [
        ({}, Sampling(), (None, None)),
        ({"temperature": 1, "top_p": 0.5}, Sampling(), (1.0, 0.5)),
        ({}, Sampling(temperature=0.3), (0.3, None)),
    ],
)
async def test_what_was_left_to_the_server_behind_is_not_told(
    given: dict[str, Any], sampling: Sampling, told: tuple[float | None, float | None]
):
    answer = (await respond(Upstream(sampling=sampling), **given)).json()
    assert (answer["temperature"], answer["top_p"]) == told


@pytest.mark.parametrize("ask", [respond, say])
async def test_the_record_keeps_what_changes_nothing_here(ask: Any):
    case = Upstream(passes=False)
    said = {"metadata": {"user_id": "u"}, "service_tier": "auto"}
    assert (await ask(case, **said)).status_code == 200
    await case.session.aclose()
    assert case.spans[0].unused == said
    assert not said.keys() & case.seen[0].keys()


@pytest.mark.parametrize("ask", [respond, say])
async def test_what_is_kept_with_a_message_is_not_sent(ask: Any):
    """To a server that is asked from what was read."""
    case = Upstream(passes=False)
    kind = {respond: "input_text", say: "text"}[ask]
    parts = [{"type": kind, "text": "hi", "cache_control": {"type": "ephemeral"}}]
    turns = [{"role": "user", "content": parts}]
    await ask(case, **{"input" if ask is respond else "messages": turns})
    assert case.seen[0]["messages"] == HI
    await case.session.aclose()
    (message,) = case.spans[0].calls[0].messages
    assert message.extra["content_parts"][0]["cache_control"] == {"type": "ephemeral"}


# ---------------------------------------------------------------- what comes back

TOLD: dict[str, Any] = {
    "service_tier": "flex",
    "choices": [
        {
            "message": {
                "role": "assistant",
                "content": "It is.",
                "reasoning": "Hm.",
                "tool_calls": [CALL, CUSTOM],
            },
            "finish_reason": "tool_calls",
            "logprobs": {"content": LOGPROBS},
        }
    ],
    "usage": REFUSAL["usage"],
}


async def test_a_reply_in_the_words_of_responses():
    case = Upstream(answer=TOLD)
    include = ["message.output_text.logprobs"]
    told = (await respond(case, include=include, reasoning={"effort": "low"})).json()
    made = parsed(Response, told)
    thought, message, call, custom = made.output
    assert thought.content[0].text == "Hm."
    assert message.content[0].text == "It is."
    assert [each.token for each in message.content[0].logprobs] == ["a"]
    assert (call.call_id, call.name, call.arguments) == ("c", "f", '{"x": 1}')
    assert (custom.type, custom.name, custom.input) == ("custom_tool_call", "g", "aa")
    assert made.usage.input_tokens_details.cached_tokens == 5
    assert made.usage.output_tokens_details.reasoning_tokens == 3
    assert (made.service_tier, made.reasoning.effort) == ("flex", "low")


async def test_a_reply_in_the_words_of_messages():
    told = (await say(Upstream(answer=TOLD))).json()
    made = message(told)
    thought, text, call, _ = made.content
    assert (thought.type, thought.thinking, thought.signature) == ("thinking", "Hm.", "reasoning")
    assert (text.text, call.input, made.stop_reason) == ("It is.", {"x": 1}, "tool_use")
    usage = made.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (2, 5)
    assert (usage.output_tokens, usage.output_tokens_details.thinking_tokens) == (4, 3)


def ending(content: str | None, finish: str = "stop", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **more}
    return {"choices": [{"message": message, "finish_reason": finish}]}


async def test_refusals_filters_and_limits_are_told():
    refused = ending(None, refusal="I cannot.")
    made = parsed(Response, (await respond(Upstream(answer=refused))).json())
    (item,) = made.output
    assert (item.content[0].type, item.content[0].refusal) == ("refusal", "I cannot.")
    made = message((await say(Upstream(answer=refused))).json())
    assert (made.content[0].text, made.stop_reason) == ("I cannot.", "refusal")
    filtered = ending("I", "content_filter")
    told = (await respond(Upstream(answer=filtered))).json()
    assert told["incomplete_details"] == {"reason": "content_filter"}
    assert told["output"][0]["status"] == "incomplete"
    assert (await say(Upstream(answer=filtered))).json()["stop_reason"] == "refusal"
    cut = ending(None, "length", reasoning_content="Hm")
    told = (await respond(Upstream(answer=cut))).json()
    assert [(item["type"], item["status"]) for item in told["output"]] == [
        ("reasoning", "incomplete")
    ]


async def test_the_stop_string_of_a_server_that_tells_it():
    answer = ending("It is")
    answer["choices"][0]["stop_reason"] = "END"
    told = (await say(Upstream(answer=answer), stop_sequences=["END"])).json()
    assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "END")


async def test_chat_completions_of_other_kinds_go_on_and_come_back():
    """Custom tools, sound, and functions as they were called before there were tools."""
    tool = {"type": "custom", "custom": {"name": "g"}}
    history = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [CUSTOM]},
        {"role": "tool", "tool_call_id": "d", "content": "ok"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "1"},
        {"role": "assistant", "content": None, "audio": {"id": "a"}},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "A"}}]},
    ]
    asked: dict[str, Any] = {
        "tools": [CHAT_TOOL, tool],
        "tool_choice": {"type": "custom", "custom": {"name": "g"}},
        "functions": [FUNCTION],
        "function_call": {"name": "f"},
        "modalities": ["text", "audio"],
        "audio": {"voice": "alloy", "format": "wav"},
    }
    sound = {"id": "b", "data": "AAAA", "transcript": "hi", "expires_at": 1}
    made = {"name": "f", "arguments": "{}"}
    for message, finish in (
        ({"content": None, "tool_calls": [CUSTOM]}, "tool_calls"),
        ({"content": None, "function_call": made}, "function_call"),
        ({"content": None, "audio": sound}, "stop"),
    ):
        case = Upstream(answer={"choices": [{"message": message, "finish_reason": finish}]})
        answer = await case.ask(messages=history, **asked)
        assert answer.status_code == 200, answer.text
        assert body(case) == {"messages": history, **asked}
        (choice,) = answer.json()["choices"]
        assert message.items() <= choice["message"].items() or message["content"] is None
        assert {k: v for k, v in message.items() if k != "content"}.items() <= choice[
            "message"
        ].items()
        assert choice["finish_reason"] == finish
        await case.session.aclose()
        (call,) = case.spans[0].calls
        assert call.messages[1].tool_calls[0].custom
        assert json.loads(json.dumps(call.messages[1].to_dict()))["tool_calls"] == [CUSTOM]
        assert case.spans[0].answered[0].sent["tools"] == [tool]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "g"}}]}, "tools[0].type"),
        ({"messages": [*HI, {"role": "function", "name": "f", "content": "1"}]},
         "messages[1].role"),
        ({"messages": [*HI, {"role": "assistant", "tool_calls": [CUSTOM]}]},
         "messages[1].tool_calls[0].type"),
        ({"messages": [*HI, {"role": "assistant", "audio": {"id": "a"}}]}, "messages[1].audio"),
    ],
)  # fmt: skip
async def test_of_our_own_policy_they_are_refused(asked: dict[str, Any], named: str):
    answer = await Upstream(passes=False).ask(**asked)
    assert answer.status_code == 400
    assert f"`{named}`" in answer.json()["error"]["message"]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("sends", ["items", "id"])
async def test_a_thought_goes_back_in_the_field_it_came_in(field: str, sends: str):
    case = Upstream(answer=ending("a", **{field: "so"}))
    first = (await respond(case, input="Hi.")).json()
    parsed(Response, first)
    asked: dict[str, Any] = {"previous_response_id": first["id"], "input": "And?"}
    if sends == "items":
        user = [{"role": "user", "content": text} for text in ("Hi.", "And?")]
        asked = {"input": [user[0], *first["output"], user[1]]}
    await respond(case, **asked)
    turn = {"role": "assistant", "content": "a", field: "so"}
    assert body(case)["messages"][1] == turn


async def test_the_details_of_a_thought_go_back():
    details = [{"type": "reasoning.encrypted", "data": "x"}]
    said: dict[str, Any] = {"role": "assistant", "content": "a"}
    case = Upstream(answer=ending("a", reasoning="so", reasoning_details=details))
    first = (await respond(case, input="Hi.")).json()
    await respond(case, previous_response_id=first["id"], input="And?")
    assert body(case)["messages"][1] == said | {"reasoning": "so", "reasoning_details": details}
    thought = {"type": "reasoning", "summary": [], "reasoning_details": details}
    for given in ([thought, said], [said | {"reasoning_details": details}]):
        await respond(case, input=[{"role": "user", "content": "Hi."}, *given])
        assert body(case)["messages"][1] == said | {"reasoning_details": details}
