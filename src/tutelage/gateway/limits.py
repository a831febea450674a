"""How much of it a gateway serves at once; everything has a bound.

`http.py` and `app.py` keep those of requests, `connections.py` those of connections.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Bytes, counts and seconds. A request beyond a count is told to come back (503 or 429)."""

    body_bytes: int = 16 << 20
    head_bytes: int = 64 << 10
    """Of a request line and its headers together."""
    in_flight: int = 2048
    """Requests at once, all attempts together."""
    in_flight_per_attempt: int = 256
    connections: int = 4096
    """Open connections, where the limit of open files allows it; more are closed as they come."""
    header_seconds: float = 20.0
    """For a connection to send a whole request head."""
    body_seconds: float = 30.0
    write_seconds: float = 60.0
    """For a client to go on reading a reply, streamed or not."""
    idle_seconds: float = 75.0
    """For a kept connection to send its next request."""
