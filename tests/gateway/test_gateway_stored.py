"""What a client asks of a stored response: its input items page by page, and its events again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tutelage.engine.script import ScriptedReply
from tutelage.gateway import Gateway, ScriptedClient

from .conftest import FLAT_CALCULATOR, TOOL_TURN, Case, Open, events

openai = pytest.importorskip("openai")
WORDS = ("one", "two", "three", "four", "five")
CUT = ScriptedReply("Much too long a reply.")


def client(live: Callable[..., Gateway], *script: Any) -> Any:
    found = live().open("r", "a", ScriptedClient(script))
    return openai.OpenAI(base_url=found.base_url, api_key=found.api_key)


def said(items: Any) -> list[str]:
    return [item.content[0].text for item in items]


def test_input_items_come_in_pages(live: Callable[..., Gateway]) -> None:
    api = client(live, "ok")
    kept = api.responses.create(model="m", input=[{"role": "user", "content": w} for w in WORDS])
    listed = api.responses.input_items.list
    assert said(listed(kept.id).data) == [*reversed(WORDS)], "the latest first, as at OpenAI"
    first = listed(kept.id, order="asc", limit=2)
    assert said(first.data) == ["one", "two"]
    assert (first.first_id, first.last_id) == (first.data[0].id, first.data[1].id)
    assert first.has_more
    last = listed(kept.id, order="asc", limit=2, after=listed(kept.id, limit=2).data[-1].id)
    assert (said(last.data), last.has_more) == (["five"], False)
    assert said(listed(kept.id, order="asc", limit=2)) == [*WORDS], "the SDK follows the pages"
    assert said(listed(kept.id, limit=1, after=first.data[0].id).data) == []


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "msg_of_another"}, "after"),
    ],
)
async def test_a_page_that_cannot_be_is_refused_by_name(
    attempt_session: Open, query: dict[str, str], param: str
) -> None:
    case = attempt_session("ok")
    kept = (await case.respond()).json()["id"]
    answer = await case.http.get(f"{case.base}/responses/{kept}/input_items", params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert query[param] in answer.json()["error"]["message"]


async def get(case: Case, response: str, **query: str) -> httpx2.Response:
    return await case.http.get(f"{case.base}/responses/{response}", params=query)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("reply", "body"),
    [
        ("It is 2.", {}),
        (TOOL_TURN, {"tools": [FLAT_CALCULATOR]}),
        (ScriptedReply(None, TOOL_TURN.tool_calls), {"tools": [FLAT_CALCULATOR]}),
        (CUT, {"max_output_tokens": 5}),
        ("It is 2.", {"include": ["message.output_text.logprobs"], "top_logprobs": 1}),
    ],
)
async def test_a_stored_response_is_streamed_again(
    attempt_session: Open, reply: Any, body: Any, streamed: bool
) -> None:
    case = attempt_session(reply)
    answer = await case.respond(stream=streamed, **body)
    if streamed:
        at_first = [json.loads(e) for e in events(answer.text)[:-1]]
        kept = at_first[-1]["response"]
    else:
        at_first, kept = None, answer.json()
    again = await get(case, kept["id"], stream="true")
    assert again.headers["content-type"].startswith("text/event-stream")
    *found, done = events(again.text)
    told = [json.loads(each) for each in found]
    assert done == "[DONE]"
    assert told[0]["type"] == "response.created"
    assert told[-1]["response"] == kept
    assert [each["sequence_number"] for each in told] == [*range(len(told))]
    if at_first is not None:
        kinds = [list(dict.fromkeys(each["type"] for each in some)) for some in (at_first, told)]
        assert kinds[0] == kinds[1], "the same events, whose text is cut in another way"
    deltas = [e["delta"] for e in told if e["type"] == "response.output_text.delta"]
    texts = [i["content"][0]["text"] for i in kept["output"] if i["type"] == "message"]
    assert "".join(deltas) == "".join(texts)


def test_the_sdk_reads_the_stream_of_a_stored_response(live: Callable[..., Gateway]) -> None:
    api = client(live, "It is 2.")
    kept = api.responses.create(model="m", input="1 + 1?")
    with api.responses.retrieve(kept.id, stream=True) as stream:
        whole = list(stream)
    assert whole[-1].response.output_text == "It is 2."
    with api.responses.retrieve(kept.id, stream=True, starting_after=3) as stream:
        rest = list(stream)
    assert [e.sequence_number for e in rest] == [e.sequence_number for e in whole][4:]
    assert rest[-1].response == whole[-1].response


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"starting_after": "1"}, "starting_after"),
        ({"stream": "true", "starting_after": "-1"}, "starting_after"),
        ({"stream": "true", "starting_after": "x"}, "starting_after"),
        ({"stream": "often"}, "stream"),
    ],
)
async def test_a_stream_that_cannot_be_is_refused_by_name(
    attempt_session: Open, query: dict[str, str], param: str
) -> None:
    case = attempt_session("ok")
    answer = await get(case, (await case.respond()).json()["id"], **query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_stream_that_was_cut_off_is_not_gone_on_with(attempt_session: Open) -> None:
    """Its texts were cut as they came, and nobody has kept where."""
    case = attempt_session("It is two, I think.")
    streamed = await case.respond(stream=True)
    kept = json.loads(events(streamed.text)[-2])["response"]["id"]
    answer = await get(case, kept, stream="true", starting_after="4")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "starting_after")
    assert "leave out `starting_after`" in answer.json()["error"]["message"]


async def test_events_that_are_no_longer_kept_are_refused(
    attempt_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tutelage.gateway.session.KEPT_ANSWERS", 1)
    case = attempt_session("one", "two")
    kept = (await case.respond()).json()
    await case.respond()
    answer = await get(case, kept["id"], stream="true")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")
    assert (await get(case, kept["id"])).json() == kept
