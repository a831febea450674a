"""The Responses API: items, stored conversations, events."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai

from tutelage.engine.script import ScriptedReply
from tutelage.gateway import Gateway, ScriptedClient
from tutelage.types import Constraint, Message

from .conftest import FLAT_CALCULATOR, TOOL_TURN, Open, events

ASCENDING: dict[str, Any] = {"order": "asc", "limit": 2}


async def test_a_response_is_the_call_on_record(attempt_session: Open) -> None:
    case = attempt_session("It is 2.")
    answer = (await case.respond(instructions="Be brief.", metadata={"k": "v"})).json()
    (call,) = case.client.calls
    assert call.messages == (Message("system", "Be brief."), Message("user", "What is 1 + 1?"))
    assert answer["object"] == "response"
    assert answer["status"] == "completed"
    assert answer["instructions"] == "Be brief."
    assert answer["metadata"] == {"k": "v"}
    (item,) = answer["output"]
    assert item["type"] == "message"
    assert item["content"][0]["text"] == "It is 2."
    assert answer["usage"]["input_tokens"] == len(call.prompt_ids)
    assert answer["usage"]["output_tokens"] == len(call.sampled.token_ids)
    again = await case.http.get(f"{case.attempt_session.base_url}/responses/{answer['id']}")
    assert again.json() == answer


async def test_previous_response_id_brings_the_recorded_turn_back(attempt_session: Open) -> None:
    case = attempt_session(TOOL_TURN, "It is 2.", "Yes.")
    first = (await case.respond(instructions="Once.", tools=[FLAT_CALCULATOR])).json()
    message, call = first["output"]
    assert message["content"][0]["text"] == "Let me see."
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "2"}
    second = await case.respond(input=[output], previous_response_id=first["id"])
    assert second.status_code == 200, second.text
    one, two = case.client.calls
    # The very message that was sampled, not a copy that went through text.
    assert two.messages[1] is one.reply
    assert two.messages == (
        Message("user", "What is 1 + 1?"),
        one.reply,
        Message("tool", "2", tool_call_id=call["call_id"]),
    )
    third = await case.respond(input="Sure?", previous_response_id=second.json()["id"])
    assert third.json()["previous_response_id"] == second.json()["id"]
    assert [m.role for m in case.client.calls[2].messages] == [
        "user", "assistant", "tool", "assistant", "user"
    ]  # fmt: skip


async def test_items_that_come_back_are_put_together_to_turns(attempt_session: Open) -> None:
    case = attempt_session("ok")
    call = {"type": "function_call", "name": "f", "arguments": "{}", "id": "fc_1"}
    text = {"type": "output_text", "text": "Hm.", "annotations": [], "logprobs": []}
    items = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "id": "m", "status": "completed",
         "content": [text]},
        {**call, "call_id": "a"},
        {**call, "call_id": "b"},
        {"type": "function_call_output", "call_id": "a", "output": [text]},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        {**call, "call_id": "c"},
    ]  # fmt: skip
    assert (await case.respond(input=items)).status_code == 200
    got = case.client.calls[0].messages
    assert [m.role for m in got] == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert got[2].content == "Hm."
    assert [c.id for c in got[2].tool_calls] == ["a", "b"]
    assert got[3].content == "Hm."
    assert [c.id for c in got[5].tool_calls] == ["c"]


async def test_items_can_be_named_by_reference(attempt_session: Open) -> None:
    case = attempt_session("It is 2.", "ok")
    first = (await case.respond()).json()
    named = {"type": "item_reference", "id": first["output"][0]["id"]}
    assert (await case.respond(input=[named])).status_code == 200
    assert case.client.calls[1].messages == (Message("assistant", "It is 2."),)
    missing = await case.respond(input=[{**named, "id": "msg_none"}])
    assert missing.status_code == 404


async def test_what_is_not_stored_cannot_be_gone_on_with(attempt_session: Open) -> None:
    case, other = attempt_session("a", "b"), attempt_session("c")
    silent = (await case.respond(store=False)).json()["id"]
    stored = (await case.respond()).json()["id"]
    for where, wanted in ((case, silent), (case, "resp_none"), (other, stored)):
        answer = await where.respond(previous_response_id=wanted)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "previous_response_not_found"
        got = await where.http.get(f"{where.attempt_session.base_url}/responses/{wanted}")
        assert got.status_code == 404


async def test_a_stream_has_the_events_in_order(attempt_session: Open) -> None:
    case = attempt_session(ScriptedReply("I think so.", TOOL_TURN.tool_calls))
    answer = await case.respond(stream=True, tools=[FLAT_CALCULATOR])
    *data, done = events(answer.text)
    assert done == "[DONE]"
    found = [json.loads(e) for e in data]
    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    names = [line[7:] for line in answer.text.split("\n") if line.startswith("event: ")]
    assert names == [e["type"] for e in found]
    kinds = [e["type"].removeprefix("response.") for e in found]
    deltas = kinds.count("output_text.delta")
    assert deltas > 1
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added",
        *["output_text.delta"] * deltas,
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    said = "".join(e["delta"] for e in found if e["type"].endswith("output_text.delta"))
    assert said == "I think so."
    final = found[-1]["response"]
    assert final["output"] == [e["item"] for e in found if e["type"].endswith("item.done")]
    assert final["output"][1]["call_id"] == case.client.calls[0].reply.tool_calls[0].id
    assert final["output"][1]["arguments"] == '{"expression":"1+1"}'
    url = f"{case.base}/responses/{final['id']}"
    assert (await case.http.get(url)).json() == final


async def test_formats_choices_and_logprobs(attempt_session: Open) -> None:
    case = attempt_session("{}", TOOL_TURN)
    schema = {"type": "object"}
    text = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    named = {"type": "function", "name": "calculator"}
    answer = await case.respond(
        text=text, tools=[FLAT_CALCULATOR], tool_choice=named, parallel_tool_calls=False,
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    call = case.client.calls[0]
    assert call.constraint == Constraint("calculator", False, schema)
    entries = answer.json()["output"][0]["content"][0]["logprobs"]
    assert [e["logprob"] for e in entries] == list(call.sampled.raw_logprobs)[:-1]


async def test_tokens_of_an_input_are_counted(attempt_session: Open) -> None:
    case = attempt_session("Yes.")
    made = (await case.respond(instructions="Be brief.")).json()
    asked = {"input": "What is 1 + 1?", "instructions": "Be brief."}
    told = (await case.post("/responses/input_tokens", asked)).json()
    count = made["usage"]["input_tokens"]
    assert told == {"object": "response.input_tokens", "input_tokens": count}
    with_tool = {**asked, "previous_response_id": made["id"]}
    more = (await case.post("/responses/input_tokens", with_tool)).json()
    assert more["input_tokens"] > count
    refused = await case.post("/responses/input_tokens", {"input": "a", "model": "m", "n": 2})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")


async def test_a_stream_that_breaks(attempt_session: Open) -> None:
    """The failure comes after text has gone out."""

    class Breaking:
        def __init__(self, inner: Any) -> None:
            self.inner, self.codec = inner, inner.codec

        async def chat(self, *given: Any, on_token: Any = None, **more: Any) -> Any:
            await self.inner.chat(*given, on_token=on_token, **more)
            raise ValueError("a secret")

    inner = attempt_session("some words that go out before the end").client
    answer = await attempt_session(Breaking(inner)).respond(stream=True)
    found = [json.loads(each) for each in events(answer.text)]
    *_, error, failed = found
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    assert failed["response"]["error"]["message"] == error["message"]
    assert "secret" not in answer.text


def test_input_items_come_all_at_once(live: Callable[..., Gateway]) -> None:
    words = ["one", "two", "three", "four", "five"]
    session = live().open("r", "a", ScriptedClient(["ok"]))
    api = openai.OpenAI(base_url=session.base_url, api_key=session.api_key)
    kept = api.responses.create(model="m", input=[{"role": "user", "content": w} for w in words])
    listed = api.responses.input_items.list
    texts = [[item.content[0].text for item in listed(kept.id, **more)] for more in ({}, ASCENDING)]
    assert texts == [words[::-1], words], "the latest first, as at OpenAI"
