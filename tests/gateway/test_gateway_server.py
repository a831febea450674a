"""The gateway on a real socket: its own thread, slow and vanishing clients, closing."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tutelage.engine.script import ScriptedReply
from tutelage.errors import ConfigError
from tutelage.gateway import AttemptSession, Gateway, GatewayLimits, ScriptedClient

from .conftest import ASK, Puppet

Live = Callable[..., Gateway]
BODY = {"model": "m", "messages": ASK}


def ask(attempt_session: AttemptSession, http: Any = httpx2, **body: Any) -> httpx2.Response:
    """A chat completion, blocking."""
    headers = {"authorization": f"Bearer {attempt_session.api_key}"}
    url = attempt_session.base_url + "/chat/completions"
    return http.post(url, json={**BODY, **body}, headers=headers, timeout=30)


def head(attempt_session: AttemptSession, length: int) -> bytes:
    """A request's head as bytes."""
    path = attempt_session.base_url.partition("/rollout")[2]
    lines = [
        f"POST /rollout{path}/chat/completions HTTP/1.1",
        "host: x",
        f"authorization: Bearer {attempt_session.api_key}",
        f"content-length: {length}",
        "",
        "",
    ]
    return "\r\n".join(lines).encode()


def connect(gateway: Gateway) -> socket.socket:
    """A raw connection."""
    return socket.create_connection((gateway.host, gateway.port), timeout=30)


def wait(condition: Callable[[], Any]) -> None:
    """Wait for what another thread does."""
    for _ in range(10_000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("it never came about")


async def test_an_agent_that_blocks_its_loop_is_answered(live: Live) -> None:
    """A synchronous client inside a running loop: the model must not live on that loop."""
    attempt_session = live().open("r", "a", ScriptedClient(["ok"]))
    assert ask(attempt_session).json()["choices"][0]["message"]["content"] == "ok"


def test_many_attempts_at_once_get_their_own_replies(live: Live) -> None:
    gateway = live()
    clients = [ScriptedClient([ScriptedReply(f"reply {i}", delay=0.001)]) for i in range(50)]
    doors = [gateway.open(f"r{i}", f"a{i}", c) for i, c in enumerate(clients)]
    with httpx2.Client(timeout=60) as http, ThreadPoolExecutor(25) as pool:
        # One client: making one costs more than all its requests.
        answers = list(pool.map(lambda i: (i, ask(doors[i % 50], http).json()), range(150)))
    for i, answer in answers:
        assert answer["choices"][0]["message"]["content"] == f"reply {i % 50}"
    assert [len(c.calls) for c in clients] == [3] * 50
    list(ThreadPoolExecutor(25).map(AttemptSession.close, doors))
    assert {ask(attempt_session).status_code for attempt_session in doors[:3]} == {410}


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_cancels_the_sampling(live: Live, stream: bool) -> None:
    gateway = live()
    puppet = Puppet()
    attempt_session = gateway.open("r", "a", puppet)
    body = json.dumps({**BODY, "stream": stream}).encode()
    with connect(gateway) as sock:
        sock.sendall(head(attempt_session, len(body)) + body)
        wait(lambda: puppet.started)
    wait(lambda: puppet.cancelled)
    wait(lambda: attempt_session.in_flight == 0)
    assert not puppet.inner.calls


def test_tokens_arrive_while_others_are_still_sampled(live: Live) -> None:
    gateway = live()
    puppet = Puppet()
    attempt_session = gateway.open("r", "a", puppet)
    headers = {"authorization": f"Bearer {attempt_session.api_key}"}
    url = attempt_session.base_url + "/chat/completions"

    def sample() -> None:
        wait(lambda: puppet.on_token)
        assert puppet.on_token is not None
        gateway.loop.call_soon_threadsafe(puppet.on_token, b"do")

    sampling = threading.Thread(target=sample)
    sampling.start()
    with httpx2.stream("POST", url, json={**BODY, "stream": True}, headers=headers) as answer:
        lines = answer.iter_lines()
        said = ""
        while said != "do":
            line = next(lines)
            if line.startswith("data: "):
                said += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
        assert not puppet.go.is_set()
        gateway.loop.call_soon_threadsafe(puppet.go.set)
        rest = [line for line in lines if line.startswith("data: ")]
    sampling.join()
    assert rest[-1] == "data: [DONE]"


def test_bodies_that_are_too_large_are_refused(live: Live) -> None:
    gateway = live(limits=GatewayLimits(body_bytes=1000))
    attempt_session = gateway.open("r", "a", ScriptedClient(["ok"]))
    answer = ask(attempt_session, user="x" * 2000)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"
    assert ask(attempt_session).status_code == 200


def test_closing_the_gateway_closes_its_doors_and_its_port() -> None:
    gateway = Gateway().start()
    puppet = Puppet()
    attempt_session = gateway.open("r", "a", puppet)
    port = gateway.port
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, attempt_session)
        wait(lambda: puppet.started)
        gateway.close()
        assert waiting.result().status_code == 410
    assert puppet.cancelled == 1
    gateway.close()
    with pytest.raises(OSError, match=r"refused|reset"):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    with pytest.raises(ConfigError, match="not started"):
        _ = gateway.loop


def test_an_address_in_use_is_a_users_error(live: Live) -> None:
    gateway = live()
    for begin in (Gateway.start, Gateway.check_address):
        with pytest.raises(ConfigError, match=f"port {gateway.port}"):
            begin(Gateway(port=gateway.port))
    Gateway().check_address()
    with pytest.raises(ConfigError, match="already started"):
        gateway.start()


def test_health_and_head_need_no_key(live: Live) -> None:
    """Watchers ask so, and Claude Code before its first request."""
    gateway = live()
    for path in ("/health", "/"):
        answer = httpx2.get(gateway.url + path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        assert httpx2.head(gateway.url + path).status_code == 200
    attempt_session = gateway.open("r", "a", ScriptedClient(["ok"]))
    key = {"authorization": f"Bearer {attempt_session.api_key}"}
    answer = httpx2.head(f"{attempt_session.base_url}/models", headers=key)
    assert (answer.status_code, answer.content) == (200, b"")
    assert httpx2.head(f"{attempt_session.base_url}/models").status_code == 401


@pytest.mark.parametrize(("origins", "status"), [((), 405), (("http://page",), 200)])
def test_pages_of_allowed_origins_may_ask(live: Live, origins: tuple[str, ...], status: int):
    """A browser asks first, without a key."""
    gateway = live(allow_origins=origins)
    attempt_session = gateway.open("r", "a", ScriptedClient(["ok"]))
    asks = {
        "origin": "http://page",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    first = httpx2.options(f"{attempt_session.base_url}/chat/completions", headers=asks)
    assert first.status_code == status
    key = {"authorization": f"Bearer {attempt_session.api_key}", "origin": "http://page"}
    url = attempt_session.base_url + "/chat/completions"
    answer = httpx2.post(url, json=BODY, headers=key)
    assert answer.status_code == 200
    assert answer.headers.get("access-control-allow-origin") == (origins[0] if origins else None)
