"""How much a gateway serves at once; everything has a bound.

`app.py` keeps those of requests, uvicorn those of connections.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Bytes, counts and seconds. A request beyond a count is told to come back (503 or 429)."""

    body_bytes: int = 16 << 20
    connections: int = 4096
    """Open connections; a request on one more is answered with 503."""
    idle_seconds: float = 75.0
    """For a kept connection to send its next request."""
