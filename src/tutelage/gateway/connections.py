"""HTTP connections with a deadline for the head of a request, and a bound on their number.

uvicorn times only the pause between two requests; a client that connects and says nothing, or one
byte a minute, would keep its connection for ever. `server.py` gives the class to uvicorn.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from tutelage.gateway.limits import Limits

_Base: Any = AutoHTTPProtocol


def protocol(limits: Limits) -> type[asyncio.Protocol]:
    """The protocol class for some limits."""

    class Connection(_Base):
        """httptools' protocol where that is installed, else h11's."""

        _head: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            """Start the clock, or refuse."""
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                self.transport.abort()
                return
            self._wait_for_head()

        def data_received(self, data: bytes) -> None:
            """Stop the clock when a request has begun; start it for a part of the next."""
            super().data_received(data)
            if self._idle():
                self._wait_for_head()
            else:
                self._stop()

        def connection_lost(self, exc: Exception | None) -> None:
            """Stop the clock."""
            self._stop()
            super().connection_lost(exc)

        def _idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _wait_for_head(self) -> None:
            if self._head is None:
                self._head = self.loop.call_later(limits.header_seconds, self._give_up)

        def _stop(self) -> None:
            if self._head is not None:
                self._head.cancel()
                self._head = None

        def _give_up(self) -> None:
            self._head = None
            if self._idle() and not self.transport.is_closing():
                self.transport.abort()

    return Connection
