"""Behind another server, what is easily lost: ids of calls, citations, counts, values that are
beyond ours, the words of refusals."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx2
import pytest

from tutelage.engine.script import ScriptedReply
from tutelage.errors import RemoteError
from tutelage.gateway.errors import error_response

from .conftest import Open
from .test_gateway_passing import SILENT, Upstream, event
from .test_gateway_passing_dialects import body, ending, respond, say
from .test_gateway_passing_streams import END, messages, part, raw, responses, served

CITED = {"type": "url_citation", "url_citation": {"url": "http://x", "title": "t"}}


async def test_a_chat_stream_gives_a_call_without_an_id_the_one_on_record() -> None:
    chunks = [event(part(0, None, "f", "{}")), event(part(1, "c1", "f", "{}")), *END]
    with served(chunks) as (session, remote):
        ask = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"authorization": f"Bearer {session.api_key}"}
        async with httpx2.AsyncClient(headers=headers) as http:
            answer = await http.post(f"{session.base_url}/chat/completions", json=ask)
    lines = [each[6:] for each in answer.text.splitlines() if each.startswith("data: {")]
    deltas = [each["delta"] for line in lines for each in json.loads(line)["choices"]]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    ids = [(piece["index"], piece["id"]) for piece in pieces if piece.get("id")]
    first, second = remote.calls[0].reply.tool_calls
    assert ids == [(0, first.id), (1, second.id)]
    assert all(piece["function"]["name"] == "f" for piece in pieces), "with the first piece"


@pytest.mark.parametrize("later", [None, "c9"])
@pytest.mark.parametrize("ask", [responses, messages])
def test_a_call_without_an_id_begins_with_its_first_piece(ask: Any, later: str | None) -> None:
    """And keeps the id that it was told with, though one comes later."""
    chunks = [event(part(0, None, "f", '{"a"')), event(part(0, later, None, ": 1}")), *END]
    leave, begun = threading.Event(), ""
    with served(chunks, leave, b": 1}") as (session, remote), ask(session) as stream:
        for each in stream._raw_stream:
            new = getattr(each, "item", None) or getattr(each, "content_block", None)
            if not begun and new is not None:
                assert not remote.calls, "the server has not ended"
                begun = getattr(new, "call_id", None) or new.id
                leave.set()
    (call,) = remote.calls[0].reply.tool_calls
    assert (call.id, call.arguments) == (begun, '{"a": 1}')


async def test_the_context_of_a_file_goes_on_as_text() -> None:
    case = Upstream()
    source = {"type": "base64", "media_type": "application/pdf", "data": "AA"}
    document = {"type": "document", "title": "T", "context": "Of May.", "source": source}
    await say(case, messages=[{"role": "user", "content": [document]}])
    text, file = body(case)["messages"][0]["content"]
    assert text == {"type": "text", "text": "Of May."}
    assert file["file"]["filename"] == "T"


COUNTS: list[tuple[dict[str, Any], tuple[int, int]]] = [
    ({"prompt_tokens": 7.0, "completion_tokens": 3}, (7, 3)),
    ({"prompt_tokens": None, "completion_tokens": 3.0}, (0, 3)),
    ({"prompt_tokens": 7, "completion_tokens": "3"}, (7, 0)),
    ({"prompt_tokens": -5, "completion_tokens": 3}, (0, 3)),
]


@pytest.mark.parametrize(("usage", "counts"), COUNTS)
async def test_each_count_of_another_server_is_read_by_itself(
    usage: dict[str, Any], counts: tuple[int, int]
) -> None:
    case = Upstream(answer=ending("Hi") | {"usage": usage})
    told = (await case.ask()).json()["usage"]
    assert (told["prompt_tokens"], told["completion_tokens"]) == counts


async def test_a_client_tells_counts_as_the_gateway_does() -> None:
    counts = {"prompt_tokens": 7.0, "completion_tokens": 3.0}
    for usage, told in ((counts, (7, 3)), (counts | {"completion_tokens": "3"}, None)):
        case = Upstream(answer=ending("Hi") | {"usage": usage}, keep=9)
        call = await case.client.chat([], sampling=SILENT)
        assert case.client.usage(call) == told
        assert all(type(count) is int for count in told or ())


async def test_what_nobody_counted_is_not_told() -> None:
    answer = ending("Hi")
    answer.pop("usage", None)
    case = Upstream(answer=answer)
    assert "usage" not in (await case.ask()).json()
    assert (await respond(case)).json()["usage"] is None
    assert (await say(case)).json()["usage"]["output_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_choice_says_the_stop_string_that_matched(
    attempt_session: Open, stream: bool
) -> None:
    case = attempt_session("It is. No", "It is.")
    stopped = await case.chat(stop=["."], stream=stream)
    assert '"stop_reason":"."' in stopped.text.replace(" ", "")
    assert "stop_reason" not in (await case.chat(stream=stream)).text


async def test_log_probabilities_of_a_raw_prompt_are_refused_for_the_prompt() -> None:
    answer = await Upstream().ask("/completions", messages=None, prompt="hi", logprobs=1)
    assert answer.status_code == 400
    assert "raw prompt" in answer.json()["error"]["message"]


@pytest.mark.parametrize("tool", [{"type": "mcp", "server_label": "x"}, {"type": "web_search"}])
async def test_other_tools_are_refused_by_their_type(
    attempt_session: Open, tool: dict[str, Any]
) -> None:
    behind = (await respond(Upstream(), tools=[tool])).json()["error"]
    ours = (await attempt_session("x").respond(tools=[tool])).json()["error"]
    assert behind["param"] == ours["param"] == "tools[0].type"
    assert behind["message"].endswith(": must be 'function' or 'custom'")
    assert ours["message"].endswith(": must be 'function'")


def test_an_overloaded_server_is_told_as_such() -> None:
    told = error_response(RemoteError("busy", 529)).anthropics_body()
    assert told["error"]["type"] == "overloaded_error"


BEYOND: list[tuple[str, str, Any, dict[str, Any] | None]] = [
    *(
        (path, name, value, None)
        for path in ("/chat/completions", "/responses", "/messages")
        for name, value in (
            ("temperature", 2.5), ("temperature", -1), ("top_p", 0), ("top_k", -2),
            ("seed", 1 << 63), ("stop", ["x"] * 17),
        )
    ),
    ("/chat/completions", "max_tokens", 0, None),
    ("/chat/completions", "max_completion_tokens", -1, None),
    ("/chat/completions", "top_logprobs", 50, None),
    ("/responses", "max_output_tokens", 0, {"max_tokens": 0}),
    ("/messages", "max_tokens", 0, None),
    ("/messages", "stop_sequences", ["x"] * 17, {"stop": ["x"] * 17}),
]  # fmt: skip
"""Path, field, a value that cannot be honoured here, and what goes on where it is another field."""


@pytest.mark.parametrize(("path", "name", "value", "sent"), BEYOND)
async def test_a_value_beyond_ours_goes_on(
    attempt_session: Open, path: str, name: str, value: Any, sent: dict[str, Any] | None
) -> None:
    case, asked = Upstream(), {name: value}
    ask = {"/responses": respond, "/messages": say}.get(path, Upstream.ask)
    answer = await ask(case, **asked)
    assert answer.status_code == 200, answer.text
    assert body(case) == body(case) | (sent or asked)
    if path == "/responses" and name in ("temperature", "max_output_tokens"):
        assert answer.json()[name] == value
    ours = attempt_session("x")
    chat = {"/responses": ours.respond, "/chat/completions": ours.chat}.get(path)
    assert chat is None or (await chat(**asked)).status_code == 400


@pytest.mark.parametrize("fields", [{"temperature": "hot"}, {"max_tokens": 0, "stream": 7}])
async def test_what_is_of_no_kind_is_refused_here(fields: dict[str, Any]) -> None:
    case = Upstream()
    answer = await case.ask(**fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == [*fields][-1]
    assert not case.seen


async def test_a_script_shows_its_lines(attempt_session: Open) -> None:
    case = attempt_session(ScriptedReply("a" * 50, match="never said"))
    words = (await case.chat()).json()["error"]["message"]
    assert f'"content":"{"a" * 50}","match":"never said"' in words


async def test_citations_stand_in_the_text_of_a_response() -> None:
    answer = ending("Hi", "stop", annotations=[CITED])
    part_of = (await respond(Upstream(answer=answer))).json()["output"][0]["content"][0]
    assert part_of["annotations"] == [{"type": "url_citation", "url": "http://x", "title": "t"}]


URL_ONLY = {"type": "url_citation", "url": "http://x", "title": "t"}
LATE = {"type": "url_citation", "url_citation": {"url": "http://y", "title": "u"}}


def calls_after_a_citation(*, with_text: bool) -> list[bytes]:
    text = (
        [event({"content": "Hi", "annotations": [CITED]})]
        if with_text
        else [event({"content": "Hi"}), event({"annotations": [CITED]})]
    )
    call, text_after = (
        event(part(0, "c", "f", "{}")),
        event({"content": "Yo", "annotations": [LATE]}),
    )
    return [*text, call, text_after, *END]


@pytest.mark.parametrize("with_text", [False, True])
def test_citations_stay_with_their_text_where_a_call_follows(with_text: bool) -> None:
    chunks = calls_after_a_citation(with_text=with_text)
    with served(chunks) as (session, remote), responses(session) as stream:
        events = raw(stream)
    done = [e.item for e in events if e.type == "response.output_item.done"]
    for items in (done, events[-1].response.output):
        texts = [item.content[0] for item in items if item.type == "message"]
        assert [[a.url for a in text.annotations] for text in texts] == [["http://x"], ["http://y"]]
    added = [e for e in events if e.type == "response.output_text.annotation.added"]
    assert [(e.output_index, e.annotation.url) for e in added] == [(0, "http://x"), (2, "http://y")]
    assert remote.calls[0].reply.extra["annotations"] == [CITED, LATE]


async def test_and_where_a_reply_with_a_call_comes_at_once() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = ending("Hi", "tool_calls", annotations=[CITED], tool_calls=[call])
    text, called = (await respond(Upstream(answer=answer))).json()["output"]
    assert (text["content"][0]["annotations"], called["type"]) == ([URL_ONLY], "function_call")


def test_and_in_its_stream() -> None:
    end = event({}, finish_reason="stop")
    chunks = [event({"content": "Hi"}), event({"annotations": [CITED]}), end, *END[1:]]
    with served(chunks) as (session, _), responses(session) as stream:
        events = raw(stream)
    added = [each for each in events if each.type == "response.output_text.annotation.added"]
    assert [each.annotation.url for each in added] == ["http://x"]
    assert events[-1].response.output[0].content[0].annotations[0].url == "http://x"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ask", [Upstream.ask, respond, say])
async def test_text_is_cut_at_a_stop_string_by_the_other_server_alone(
    ask: Any, stream: bool
) -> None:
    """Which leaves it in where `include_stop_str_in_output` asks for that."""
    case = Upstream(answer=ending("It is."))
    answer = await ask(case, stream=stream, stop=["is", "t"])
    assert "It is." in answer.text


FORCED: list[tuple[Any, dict[str, Any], Any]] = [
    (respond, {"tool_choice": "required"}, "required"),
    (say, {"tool_choice": {"type": "any"}}, "required"),
    (respond, {"tool_choice": "auto"}, None),
    (say, {"tool_choice": {"type": "none"}}, None),
]


@pytest.mark.parametrize(("ask", "asked", "sent"), FORCED)
async def test_a_call_that_is_demanded_without_tools_is_the_other_servers_to_refuse(
    ask: Any, asked: dict[str, Any], sent: Any
) -> None:
    case = Upstream()
    await ask(case, **asked)
    assert body(case).get("tool_choice") == sent


async def test_whose_tokens_are_not_counted_here_is_told_before_what_is_not_read_here() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A"}}
    asked = [{"role": "user", "content": [image]}]
    answer = await Upstream().ask("/messages/count_tokens", messages=asked)
    assert answer.status_code == 400
    assert "token counts of remote model" in answer.text
