"""Who may enter: keys, paths, agents, closed attempts, addresses, and what never shows."""

from __future__ import annotations

import logging

import pytest

from tutelage.errors import ConfigError
from tutelage.gateway import Gateway, ScriptedClient

from .conftest import ASK, Open

BODY = {"model": "m", "messages": ASK}


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer ", 401),
        ("Bearer sk-tutelage-guess", 401),
        ("bearer {key}", 200),
    ],
)
async def test_only_the_key_opens(attempt_session: Open, header: str | None, status: int) -> None:
    case = attempt_session()
    del case.http.headers["authorization"]
    headers = {}
    if header is not None:
        headers["authorization"] = header.format(key=case.attempt_session.api_key)
    answer = await case.http.post(
        case.attempt_session.base_url + "/chat/completions", json=BODY, headers=headers
    )
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"]["type"] == "authentication_error"
        assert not case.client.calls


async def test_the_key_of_another_attempt_gets_403(attempt_session: Open) -> None:
    gateway = Gateway()
    mine, other = attempt_session("a", gateway=gateway), attempt_session("b", gateway=gateway)
    for path in ("/chat/completions", "/responses", "/traces", "/rewards"):
        answer = await mine.http.post(other.attempt_session.base_url + path, json=BODY)
        assert answer.status_code == 403
        assert answer.json()["error"]["type"] == "permission_error"
    for path in ("/models", "/responses/resp_x"):
        assert (await mine.http.get(other.attempt_session.base_url + path)).status_code == 403
    assert not other.client.calls
    half = other.attempt_session.base_url.replace(
        other.attempt_session.rollout_id, mine.attempt_session.rollout_id
    )
    assert (await mine.http.post(half + "/chat/completions", json=BODY)).status_code == 403


async def test_a_key_works_without_a_path_and_says_whose_call_it_is(attempt_session: Open) -> None:
    gateway = Gateway()
    mine, other = attempt_session("a", gateway=gateway), attempt_session("b", gateway=gateway)
    url = f"{gateway.url}/v1/chat/completions"
    assert (await mine.http.post(url, json=BODY)).json()["choices"][0]["message"]["content"] == "a"
    assert (await other.http.post(url, json=BODY)).json()["choices"][0]["message"]["content"] == "b"


async def test_the_agent_comes_from_path_header_or_key(attempt_session: Open) -> None:
    case = attempt_session("ok", agent="solver")
    base = case.attempt_session.base_url
    user = {"authorization": f"Bearer {case.attempt_session.key_for('user')}"}
    for url, headers in (
        (base, {}),
        (base, {"x-tutelage-agent": "judge"}),
        (base.replace("/v1", "/agent/Math%20Tutor/v1"), {"x-tutelage-agent": "judge"}),
        (base, user),
        (f"{case.gateway.url}/agent/x/v1", user),
    ):
        answer = await case.http.post(url + "/chat/completions", json=BODY, headers=headers)
        assert answer.status_code == 200, answer.text
    agents = [call.agent for call in case.client.calls]
    assert agents == ["solver", "judge", "Math Tutor", "user", "x"]
    wrong = await case.chat()
    assert wrong.status_code == 200
    long = await case.http.post(
        base + "/chat/completions", json=BODY, headers={"x-tutelage-agent": "a" * 500}
    )
    assert long.status_code == 400


async def test_a_closed_attempt_is_gone_for_every_key(attempt_session: Open) -> None:
    case = attempt_session("ok")
    keys = [case.attempt_session.api_key, case.attempt_session.key_for("user")]
    await case.attempt_session.aclose()
    await case.attempt_session.aclose()
    for key in keys:
        answer = await case.http.post(
            case.attempt_session.base_url + "/chat/completions",
            json=BODY,
            headers={"authorization": f"Bearer {key}"},
        )
        assert answer.status_code == 410
        assert answer.headers["x-should-retry"] == "false"
    # The same attempt may be opened again, with the same key.
    again = case.gateway.open(
        case.attempt_session.rollout_id, case.attempt_session.attempt_id, ScriptedClient(["new"])
    )
    assert again.api_key == keys[0]
    assert (await case.chat()).json()["choices"][0]["message"]["content"] == "new"


def test_an_attempt_has_one_door_and_ids_fit_a_path() -> None:
    gateway = Gateway()
    client = ScriptedClient(["x"])
    gateway.open("r", "a", client, api_key="k" * 20)
    with pytest.raises(ConfigError, match="already open"):
        gateway.open("r", "a", client)
    with pytest.raises(ConfigError, match="another attempt uses this key"):
        gateway.open("r", "b", client, api_key="k" * 20)
    for bad in ("", "a/b", "a b", "x" * 300):
        with pytest.raises(ConfigError, match="cannot be used in a URL"):
            gateway.open(bad, "a", client)


def test_keys_derive_from_the_secret_and_differ() -> None:
    client = ScriptedClient(["x"])
    first, same, other = (Gateway(secret=s) for s in ("s" * 16, "s" * 16, "another secret of us"))
    doors = [g.open("r", "a", client) for g in (first, same, other)]
    assert doors[0].api_key == doors[1].api_key != doors[2].api_key
    keys = {first.open("r", x, client).api_key for x in ("b", "c")} | {doors[0].key_for("x")}
    assert len(keys | {doors[0].api_key}) == 4
    assert "s" * 16 not in doors[0].api_key


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_an_address_that_others_reach_needs_a_secret(host: str) -> None:
    with pytest.raises(ConfigError, match="secret"):
        Gateway(host=host)
    with pytest.raises(ConfigError, match="the secret has 1 character; it needs at least 16"):
        Gateway(host=host, secret="k")
    assert Gateway(host=host, secret="x" * 16).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_loopback_needs_none(host: str) -> None:
    assert Gateway(host=host).host == host


async def test_keys_and_secrets_are_never_logged(
    attempt_session: Open, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        async def chat(self, *_: object, **__: object) -> None:
            raise ZeroDivisionError

    secret = "a secret that is long"
    caplog.set_level(logging.DEBUG)
    case = attempt_session(Broken(), gateway=Gateway(secret=secret))
    assert (await case.chat()).status_code == 500
    assert "a request failed" in caplog.text
    ours = "".join(r.getMessage() for r in caplog.records if r.name.startswith("tutelage"))
    assert case.attempt_session.api_key not in ours + caplog.text
    assert secret not in caplog.text
    assert secret not in repr(vars(case.attempt_session))


async def test_the_environment_of_an_agent(
    attempt_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    case = attempt_session()
    env = case.attempt_session.env()
    assert env["OPENAI_BASE_URL"] == case.attempt_session.base_url
    assert env["OPENAI_API_KEY"] == case.attempt_session.api_key
    assert case.attempt_session.env("user")["OPENAI_API_KEY"] == case.attempt_session.key_for(
        "user"
    )
    assert not [name for name in env if name.startswith("OTEL")]
    gateway = Gateway()
    gateway.app.on_traces = lambda body, content_type, encoding="", *, owner=None: b""
    env = gateway.open("r", "a", ScriptedClient(["x"])).env()
    assert env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == env["OPENAI_BASE_URL"] + "/traces"
    assert env["OPENAI_API_KEY"] in env["OTEL_EXPORTER_OTLP_TRACES_HEADERS"]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector")
    assert (
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
        not in gateway.open("r", "b", ScriptedClient(["x"])).env()
    )
