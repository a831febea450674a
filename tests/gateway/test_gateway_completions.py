"""Completions: texts and ids in, exactly what was sampled out; prompts that go on are one row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion

from tutelage.policy.codec import Codec
from tutelage.rollouts.rows import build_rows

from .conftest import Open, events, scripted_chat


async def ask(case: Any, prompt: Any, **body: Any) -> Any:
    given = {"model": "m", "prompt": prompt, "max_tokens": 100, **body}
    return await case.post("/completions", given)


@pytest.mark.parametrize("said", ["  Paris,\n of course. ", "<tool_call>{}</tool_call> ", ""])
async def test_text_is_what_was_sampled(attempt_session: Open, said: str) -> None:
    whole = Completion.model_validate((await ask(attempt_session(said), "In")).json())
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (said, "stop")
    answer = await ask(
        attempt_session(said), "In", stream=True, stream_options={"include_usage": True}
    )
    *data, done = events(answer.text)
    chunks = [json.loads(each) for each in data]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert done == "[DONE]"
    assert "".join(choice["text"] for choice in choices) == said
    ends = [choice["finish_reason"] for choice in choices]
    assert ends == [None] * (len(ends) - 1) + ["stop"]
    assert chunks[-1]["usage"] == (await ask(attempt_session(said), "In")).json()["usage"]


async def test_several_prompts_each_with_choices(attempt_session: Open) -> None:
    case = attempt_session("a", "b", "c", "d")
    made = (await ask(case, ["one", "two"], n=2, seed=5, echo=True)).json()
    assert sorted(c["text"][3:] for c in made["choices"]) == ["a", "b", "c", "d"]
    assert [c["text"][:3] for c in made["choices"]] == ["one", "one", "two", "two"]
    assert made["usage"]["prompt_tokens"] == 6, "a prompt counts once"
    assert {c.messages for c in case.client.calls} == {()}


async def test_stops_and_length(attempt_session: Open) -> None:
    made = (await ask(attempt_session("one two. three"), "x", stop=". ")).json()
    assert made["choices"][0]["text"] == "one two"
    made = (await ask(attempt_session("one two"), "x", max_tokens=5)).json()
    assert (made["choices"][0]["text"], made["choices"][0]["finish_reason"]) == ("one t", "length")


async def test_token_ids_go_in_and_out_and_make_one_row(attempt_session: Open, tiny: Any) -> None:
    codec: Codec = tiny("qwen2").codec
    chat = scripted_chat(codec, "It is 2.", "Bye.")
    case = attempt_session(chat)
    prompt = codec.encode("1 + 1 is")
    first = (await ask(case, prompt, return_token_ids=True, logprobs=0)).json()["choices"][0]
    assert first["prompt_token_ids"] == prompt
    assert tuple(first["token_ids"]) == chat.calls[0].sampled.token_ids
    assert len(first["logprobs"]["token_logprobs"]) == len(first["token_ids"])
    more = [*prompt, *first["token_ids"], *codec.encode(" So?")]
    second = (await ask(case, more, return_token_ids=True)).json()["choices"][0]
    assert second["text"] == "Bye."
    (row,) = build_rows(chat.calls)
    assert row.n_trained == len(first["token_ids"]) + len(second["token_ids"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"echo": True, "logprobs": 1}, "log-probabilities of the prompt"),
        ({"echo": True, "stream": True}, "cannot be streamed"),
        ({"prompt_logprobs": 1, "stream": True}, "cannot be streamed"),
    ],
)
async def test_refusals(attempt_session: Open, tiny: Any, body: Any, words: str) -> None:
    answer = await ask(attempt_session(scripted_chat(tiny("qwen2").codec, "x")), [1], **body)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"], answer.text
