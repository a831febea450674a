"""What an attempt keeps for repeats and for later requests is bounded in bytes too, and what nobody
reads again is given back."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from tutelage.engine.passing import PassingClient
from tutelage.errors import ConfigError
from tutelage.gateway import Gateway, ScriptedClient, session
from tutelage.gateway.dialects import stored

from .conftest import Open
from .test_gateway_passing import Upstream, event
from .test_gateway_passing_dialects import respond, say
from .test_gateway_passing_streams import END, part, served


async def test_long_requests_push_out_the_oldest_answers(
    attempt_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "KEPT_BYTES", 5000)
    case = attempt_session("It is 2.")
    long = [{"role": "user", "content": "a" * 2000}]
    for _ in range(4):
        await case.chat(messages=long)
    assert len(case.attempt_session.ledger) == 2
    await case.chat(messages=[{"role": "user", "content": "b" * 9000}])
    assert len(case.attempt_session.ledger) == 1, "one that runs is kept"


async def test_long_requests_push_out_stored_responses(
    attempt_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "KEPT_BYTES", 5000)
    case = attempt_session("It is 2.")
    ids = [(await case.respond(input="a" * 2000)).json()["id"] for _ in range(4)]
    assert [case.attempt_session.responses.find(each) is not None for each in ids] == [
        False, False, True, True
    ]  # fmt: skip
    last = (await case.respond(input="b" * 9000)).json()["id"]
    assert case.attempt_session.responses.find(last) is not None, "the latest is always kept"


async def test_a_response_that_is_told_twice_is_kept_once(attempt_session: Open) -> None:
    case = attempt_session("It is 2.")
    case.http.headers["idempotency-key"] = "k"
    one, two = [(await case.respond()).json() for _ in range(2)]
    assert one["id"] == two["id"]
    kept = case.attempt_session.responses
    kept.remove(one["id"])
    assert kept.item(one["output"][0]["id"]) is None


def test_a_repeat_of_a_delivered_stream_is_told_the_whole_reply() -> None:
    pieces = part(0, "c0", "f", '{"a"'), part(0, None, None, ": 1}")
    with served([*map(event, pieces), *END]) as (attempt, remote):
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        key = {"authorization": f"Bearer {attempt.api_key}", "idempotency-key": "k"}
        url = f"{attempt.base_url}/chat/completions"
        answers = [httpx2.post(url, json=body, headers=key).text for _ in range(2)]
    assert len(remote.calls) == 1
    for answer in answers:
        lines = [line[6:] for line in answer.splitlines() if line.startswith("data: {")]
        deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert "".join(call["function"].get("arguments", "") for call in calls) == '{"a": 1}'


async def test_log_probabilities_that_no_client_asked_for_are_with_the_call_alone() -> None:
    case = Upstream(keep=9)
    for ask, body in ((Upstream.ask, {}), (respond, {}), (say, {})):
        await ask(case, **body)
    told: Any = [case.client.answered(call) for call in case.client.calls]
    assert [each.logprobs for each in told] == [None] * 3
    await case.ask(logprobs=True)
    assert case.client.logprobs(case.client.calls[-1])


def test_names_that_cannot_work_are_refused() -> None:
    gateway, client, other = Gateway(), ScriptedClient(["a"]), PassingClient("http://up/v1")
    wrong: list[dict[str, Any]] = [
        {"names": "policy"},
        {"names": []},
        {"names": ["j"], "clients": {"j": other}},
        {"model": "j", "clients": {"j": other}},
    ]
    for given in wrong:
        with pytest.raises(ConfigError, match=r"name"):
            gateway.open("r", "a", client, **given)
    with pytest.raises(ConfigError, match="cannot be used in a URL"):
        gateway.open("r", "..", client)


def test_a_key_that_is_made_after_the_end_is_of_an_attempt_that_has_ended() -> None:
    with Gateway() as gateway:
        attempt = gateway.open("r", "a", ScriptedClient(["a"]))
        attempt.close()
        key = {"authorization": f"Bearer {attempt.key_for('user')}"}
        assert httpx2.get(f"{attempt.base_url}/models", headers=key).status_code == 410
