"""Messages between client and sandbox: length-prefixed JSON over a stream socket.

The sandbox's end is blocking and is read here; the client's end is asynchronous (`client.py`). Both
reject messages above a maximum length, since the code in the sandbox can write to its end.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from socket import socket as Socket
from typing import Any

HEADER = struct.Struct(">I")
LONGEST = 32 << 20
"""Maximum bytes of a message."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Encode a message for sending. Raises `ValueError` if it is too long."""
    body = json.dumps(message).encode()
    if len(body) > LONGEST:
        raise ValueError(f"message too long for a sandbox: {len(body)} bytes")
    return HEADER.pack(len(body)) + body


def receive(socket: Socket) -> dict[str, Any] | None:
    """Return the next message, or None if the other end is closed or the message is too long."""
    header = _receive_exactly(socket, HEADER.size)
    if header is None:
        return None
    size: int = HEADER.unpack(header)[0]
    body = _receive_exactly(socket, size) if size <= LONGEST else None
    return None if body is None else json.loads(body)


def _receive_exactly(socket: Socket, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = socket.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
