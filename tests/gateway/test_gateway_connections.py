"""What goes out on a connection: the head of a reply with what follows it, in one write."""

from __future__ import annotations

import socket
from typing import Any

import httpx2
import pytest

from tutelage.engine.script import ScriptedReply
from tutelage.gateway import Gateway, ScriptedClient, connections
from tutelage.gateway.connections import Joined

from .conftest import ASK

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Wire:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        """Keep it."""
        self.writes.append(bytes(data))

    def close(self) -> None:
        """Note that it ends."""
        self.closed = True

    def get_write_buffer_size(self) -> int:
        """Something of its own."""
        return 7


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ([HEAD, b"ok"], [HEAD + b"ok"]),
        ([HEAD, b"", b"ok"], [HEAD, b"ok"]),
        ([HEAD, b"2\r\nok\r\n", b"0\r\n\r\n"], [HEAD + b"2\r\nok\r\n", b"0\r\n\r\n"]),
        ([HEAD, HEAD], [HEAD + HEAD]),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"], [b"HTTP/1.1 100 Continue\r\n\r\n"]),
        ([HEAD, b"ok", HEAD, b"no"], [HEAD + b"ok", HEAD + b"no"]),
    ],
)
def test_a_head_goes_out_with_what_follows(written: list[bytes], sent: list[bytes]) -> None:
    """Also where a reply has no body, or comes in pieces; what asks for a body waits for none."""
    wire = Wire()
    joined = Joined(wire)
    for data in written:
        joined.write(data)
    assert wire.writes == sent


def test_a_head_that_nothing_follows_goes_out_when_the_connection_closes() -> None:
    """uvicorn closes when an app breaks off."""
    wire = Wire()
    joined = Joined(wire)
    joined.write(HEAD)
    assert (wire.writes, joined.get_write_buffer_size()) == ([], 7)
    joined.close()
    joined.flush()
    assert (wire.writes, wire.closed) == ([HEAD], True)


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_begins_with_one_write(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """On a real connection, whole or streamed; a stream goes on piece by piece."""
    writes: list[bytes] = []

    class Watched(Joined):
        def __init__(self, transport: Any) -> None:
            super().__init__(transport)
            self._transport = _Watching(transport, writes)

    monkeypatch.setattr(connections, "Joined", Watched)
    with Gateway() as gateway:
        session = gateway.open("r", "a", ScriptedClient([ScriptedReply("one two three")]))
        answer = httpx2.post(
            f"{session.base_url}/chat/completions",
            json={"model": "m", "messages": ASK, "stream": stream},
            headers={"authorization": f"Bearer {session.api_key}"},
        )
    assert answer.status_code == 200
    head, _, rest = writes[0].partition(b"\r\n\r\n")
    assert (head.startswith(b"HTTP/1.1 200"), bool(rest)) == (True, True)


class _Watching:
    """A transport that notes what is written to it."""

    def __init__(self, transport: Any, writes: list[bytes]) -> None:
        self._transport, self._sizes = transport, writes

    def write(self, data: bytes) -> None:
        """Note it, and write."""
        if data:
            self._sizes.append(bytes(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def test_a_reply_to_head_goes_out_at_once() -> None:
    """Which is a head alone."""
    with Gateway() as gateway, socket.create_connection((gateway.host, gateway.port)) as client:
        client.settimeout(30)
        for _ in range(2):
            client.sendall(b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            told = b""
            while b"\r\n\r\n" not in told:
                told += client.recv(1 << 16)
            assert told.startswith(b"HTTP/1.1 405")
