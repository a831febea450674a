"""What an attempt keeps for repeats and for later requests is bounded in bytes too, and what nobody
reads again is given back."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from tutelage.engine.remote import RemoteChatClient
from tutelage.errors import ConfigError
from tutelage.gateway import Gateway, ScriptedClient, completions

from .conftest import ASK, CALCULATOR, FLAT_CALCULATOR, TOOL_TURN, Open


async def test_long_requests_push_out_the_oldest_answers(
    attempt_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completions, "KEPT_BYTES", 5000)
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
    monkeypatch.setattr(completions, "KEPT_BYTES", 5000)
    case = attempt_session("It is 2.")
    ids = [(await case.respond(input="a" * 2000)).json()["id"] for _ in range(4)]
    kept = case.attempt_session.ledger
    assert [kept.answer(each) is not None for each in ids] == [False, False, True, True]
    last = (await case.respond(input="b" * 9000)).json()["id"]
    assert kept.answer(last) is not None, "the latest is always kept"


async def test_a_repeat_of_a_delivered_stream_is_told_the_whole_reply(
    attempt_session: Open,
) -> None:
    case = attempt_session(TOOL_TURN)
    case.http.headers["idempotency-key"] = "k"
    for path, body in (("/chat/completions", {"messages": ASK}), ("/responses", {"input": "hi"})):
        tools = [CALCULATOR] if path == "/chat/completions" else [FLAT_CALCULATOR]
        asked = {"model": "m", "stream": True, "tools": tools, **body}
        one, two = [(await case.post(path, asked)).text for _ in range(2)]
        for text in (one, two):
            assert "see." in text
            assert "1+1" in text
    assert len(case.client.calls) == 2


def test_names_that_cannot_work_are_refused() -> None:
    gateway, client, other = Gateway(), ScriptedClient(["a"]), RemoteChatClient("http://up/v1")
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
