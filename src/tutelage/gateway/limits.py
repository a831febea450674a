"""Load limits of a gateway.

`app.py` enforces the request limits, uvicorn the connection limits.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Limits on requests and connections, in bytes, counts and seconds.

    A request that exceeds a count gets 503 or 429, and the client may send it again.
    """

    body_bytes: int = 16 << 20
    connections: int = 4096
    """Open connections; a request on one more gets 503."""
    idle_seconds: float = 75.0
    """Seconds that an idle connection is kept open for its next request."""
