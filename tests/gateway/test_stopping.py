"""What a stop of `serve` is to a client whose reply it cuts off, and on record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.testing.upstream import remote_over

from tutelage.gateway import Gateway
from tutelage.gateway.call_log import CallLog
from tutelage.gateway.session import AttemptSession

from .conftest import ASK

BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": ASK},
    "/responses": {"input": "hi"},
    "/messages": {"messages": ASK, "max_tokens": 9},
}


class Begun(httpx2.AsyncByteStream):
    """The beginning of a stream that goes on for ever."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        choice = {"index": 0, "delta": {"content": "It"}, "finish_reason": None}
        yield b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
        await asyncio.Event().wait()


async def cut_off(
    tmp_path: Path, path: str, end: Callable[[AttemptSession], None]
) -> tuple[bytes, dict[str, Any]]:
    """What a client is sent whose stream runs when its attempt is ended, and the line on record."""
    headers = {"content-type": "text/event-stream"}

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers=headers, stream=Begun())

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
