"""What a stop of `serve` is to a client whose reply it cuts off, and on record; and what a
request line may be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.testing.upstream import remote_over

from tutelage.gateway import Gateway, ScriptedClient
from tutelage.gateway.call_log import CallLog
from tutelage.gateway.session import AttemptSession

from .test_call_log import Chunks, event
from .test_reply_forms import BODIES


async def cut_off(
    tmp_path: Path, path: str, end: Callable[[AttemptSession], None]
) -> tuple[bytes, dict[str, Any]]:
    """What a client is sent whose stream runs when its attempt is ended, and the line on record."""
    headers = {"content-type": "text/event-stream"}

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200, headers=headers, stream=Chunks([event({"content": "It"})], True)
        )

    transport = httpx2.MockTransport(answer)
    remote = remote_over(transport, "http://up/v1", "k", "far")
    log, gateway = CallLog(tmp_path / "calls.jsonl"), Gateway().start()
    session = gateway.open("r", "a", remote, on_call=log)
    http = httpx2.AsyncClient(headers={"authorization": f"Bearer {session.api_key}"})
    body = {"model": "m", "stream": True} | BODIES[path]
    seen, ending = b"", None
    async with http, http.stream("POST", session.base_url + path, json=body) as response:
        async for part in response.aiter_bytes():
            seen += part
            if b'"It"' in seen and ending is None:
                ending = asyncio.create_task(asyncio.to_thread(end, session))
    assert ending is not None
    await ending
    await asyncio.to_thread(gateway.close)
    log.close()
    (line,) = map(json.loads, (tmp_path / "calls.jsonl").read_text().splitlines())
    return seen, line


@pytest.mark.parametrize("path", BODIES)
async def test_a_stop_is_told_as_the_servers_and_recorded_as_a_stop(
    tmp_path: Path, path: str
) -> None:
    seen, line = await cut_off(tmp_path, path, AttemptSession.stop)
    assert b"the server has stopped" in seen
    kind = b"api_error" if path == "/messages" else b"server_error"
    assert kind in seen
    assert (line["finish_reason"], line["error"]) == ("error", "the server has stopped")
    assert line["reply"]["content"] == "It"


async def test_a_call_that_runs_when_its_attempt_ends_is_told_so(tmp_path: Path) -> None:
    seen, line = await cut_off(tmp_path, "/chat/completions", AttemptSession.close)
    assert b"this attempt has ended" in seen
    assert (line["finish_reason"], line["error"]) == ("error", "the attempt has ended")


@pytest.mark.parametrize("path", [*BODIES, "/messages/count_tokens", "/rewards"])
def test_a_request_that_comes_while_it_stops_is_told_of_the_stop(
    live: Callable[..., Gateway], path: str
) -> None:
    session = live().open("r", "a", ScriptedClient(["yes"]))
    with httpx2.Client(headers={"authorization": f"Bearer {session.api_key}"}) as http:
        assert http.get(session.base_url + "/models").status_code == 200
        session.stop()
        answer = http.post(session.base_url + path, json={"reward": 1.0})
    assert answer.status_code == 500
    assert "the server has stopped" in answer.text
