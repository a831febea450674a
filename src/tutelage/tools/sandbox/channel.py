"""Messages between client and sandbox: JSON with its length before it, over a stream socket.

The sandbox's end is blocking and read here; the client's end is asynchronous (`client.py`). Both
refuse a length that no honest message has: the sandbox runs code that may write to its end.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Protocol

HEADER = struct.Struct(">I")
LONGEST = 32 << 20
"""Bytes of a message."""


class _Socket(Protocol):
    def recv(self, size: int, /) -> bytes: ...
    def sendall(self, data: bytes, /) -> None: ...


def packed(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent. Raises `ValueError` when it is too long."""
    body = json.dumps(message).encode()
    if len(body) > LONGEST:
        raise ValueError(f"message too long for a sandbox: {len(body)} bytes")
    return HEADER.pack(len(body)) + body


def receive(socket: _Socket) -> dict[str, Any] | None:
    """The next message; None when the other end was closed."""
    header = _exactly(socket, HEADER.size)
    if header is None:
        return None
    size: int = HEADER.unpack(header)[0]
    body = _exactly(socket, size) if size <= LONGEST else None
    return None if body is None else json.loads(body)


def _exactly(socket: _Socket, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = socket.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
