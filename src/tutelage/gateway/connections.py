"""HTTP connections with a deadline for the head of a request and for reading the reply, and a bound
on their number.

uvicorn times only the pause between two requests; a client that connects and says nothing, or one
byte a minute, would keep its connection for ever, and one that never reads its reply would keep the
reply in memory. How many connections there may be is also a question of how many files this process
may open (`_affordable`). `server.py` gives the class to uvicorn.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import logging
import os
import socket
import struct
import sys
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from tutelage.gateway.limits import GatewayLimits

log = logging.getLogger(__name__)
READ_AT_LEAST = 16 << 10
"""Bytes that a client must take of a waiting reply in `GatewayLimits.write_seconds`."""
FILES_EACH = 2
"""A connection and what it leads to: the engine's server, or the client's end of it in here."""
RESERVED = 256
"""Files that are left to everything else: stores, sandboxes, logs; at most a quarter of all."""
FEWEST = 8
"""Connections, however few files there may be."""
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_HEAD = tuple(b"HTTP/1.1 %d" % digit for digit in range(2, 6))
"""How the head of a reply begins; one that begins with 1 has nothing after it."""

_Base: Any = AutoHTTPProtocol


class _Refusals:
    """Says once that connections were refused; thousands of refusals are no news."""

    def __init__(self) -> None:
        self.told = False

    def tell(self, why: str) -> None:
        """Warn, the first time."""
        if not self.told:
            self.told = True
            log.warning("refusing connections: %s", why)

    def handler(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's handler of what goes wrong in it: a connection that cannot be accepted for
        lack of files is tried again by the loop, and needs no traceback."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            self.tell(f"{error.strerror}; raise the limit on open files (ulimit -n)")
            return
        loop.default_exception_handler(context)


class Joined:
    """A transport that sends the head of a reply together with what follows it. uvicorn writes them
    one by one, and each write is a call of the system."""

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: Any) -> None:
        self._transport, self._head = transport, b""

    def write(self, data: bytes) -> None:
        """Keep a head; send anything else, after the head that is kept."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(_HEAD):
            self._head = data
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Send a head that nothing follows."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        """Send what is kept, and close."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        """Everything else is the transport's own."""
        return getattr(self._transport, name)


class _Connection(_Base):
    """httptools' protocol where that is installed, else h11's, with what `protocol` binds to it."""

    _limits: GatewayLimits
    _most: int
    _refusals: _Refusals
    _head: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _reading: asyncio.TimerHandle | None = None
    _unread = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the clock, or refuse."""
        super().connection_made(Joined(transport))
        if len(self.connections) > self._most:
            self._refusals.tell(f"{self._most} are open; raise the limit on open files (ulimit -n)")
            self.transport.abort()
            return
        # Whatever the system's own buffers do not take is a reply that waits to be read.
        self.transport.set_write_buffer_limits(high=0)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Stop the clock when a request has begun; start it for a part of the next."""
        super().data_received(data)
        if not self._idle():
            self._stop()
            return
        self._wait_for_head()
        # The rest of a body that was refused unread is no head.
        rest = self.cycle is not None and self.cycle.more_body
        self._head_bytes = 0 if rest else self._head_bytes + len(data)
        if self._head_bytes > self._limits.head_bytes:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        self._stop()
        self._stop_reading()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """A reply to HEAD is a head alone."""
        self.transport.flush()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """A reply waits: the client has to read."""
        super().pause_writing()
        if self._reading is None:
            self._wait_for_reader()

    def resume_writing(self) -> None:
        """It has read all of it."""
        self._stop_reading()
        super().resume_writing()

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(self._limits.header_seconds, self._give_up)

    def _stop(self) -> None:
        self._head_bytes = 0
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _give_up(self) -> None:
        self._head = None
        if self._idle() and not self.transport.is_closing():
            self.transport.abort()

    def _wait_for_reader(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(self._limits.write_seconds, self._check_reader)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _check_reader(self) -> None:
        if self.transport.get_write_buffer_size() > self._unread - READ_AT_LEAST:
            self._reading = None
            self._drop()
        else:
            self._wait_for_reader()

    def _drop(self) -> None:
        """End the connection with what waits in the system's buffers, too."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


def protocol(limits: GatewayLimits, loop: asyncio.AbstractEventLoop) -> type[asyncio.Protocol]:
    """The protocol class for connections of a loop, which is notified of those it cannot accept."""
    refusals = _Refusals()
    loop.set_exception_handler(refusals.handler)
    most = _affordable(limits.connections)
    bound = {"_limits": limits, "_most": most, "_refusals": refusals}
    return type("Connection", (_Connection,), bound)


def _affordable(connections: int) -> int:
    """At most this number of connections, or as many as the limit of open files allows.

    The limit is raised as far as they need it and the system lets it be (`ulimit -Hn`).
    """
    try:
        resource: Any = importlib.import_module("resource")
    except ImportError:
        return connections  # a system without such limits
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (sys.maxsize if n == resource.RLIM_INFINITY else n for n in limits)
    used = _open_files()
    needed = used + RESERVED + FILES_EACH * connections
    if soft < needed:
        allowed = min(needed, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, limits[1]))
            soft = allowed
    if soft >= needed:
        return connections
    room = soft - used - min(RESERVED, soft // 4)
    return min(connections, max(FEWEST, room // FILES_EACH))


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 64
