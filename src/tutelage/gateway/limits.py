"""How much of it a gateway serves at once; everything has a bound.

`http.py` and `app.py` keep those of requests, `connections.py` those of connections. How many
connections there may be is also a question of how many files this process may open (`affordable`).
"""

from __future__ import annotations

import contextlib
import importlib
import os
from dataclasses import dataclass
from typing import Any

FILES_EACH = 2
"""A connection and what it leads to: the engine's server, or the client's end of it in here."""
RESERVED = 256
"""Files that are left to everything else: stores, sandboxes, logs; at most a quarter of all."""
FEWEST = 8
"""Connections, however few files there may be."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes, counts and seconds. A request beyond a count is told to come back (503 or 429)."""

    body_bytes: int = 16 << 20
    head_bytes: int = 64 << 10
    """Of a request line and its headers together."""
    in_flight: int = 2048
    """Requests at once, all attempts together."""
    in_flight_per_attempt: int = 256
    connections: int = 4096
    """Open connections, where so many files may be open; more are closed as they come."""
    header_seconds: float = 20.0
    """For a connection to send a whole request head."""
    body_seconds: float = 30.0
    write_seconds: float = 60.0
    """For a client to go on reading a reply, streamed or not."""
    idle_seconds: float = 75.0
    """For a kept connection to send its next request."""


def affordable(connections: int) -> int:
    """So many connections, or as many as the limit of open files allows.

    The limit is raised as far as they need it and the system lets it be (`ulimit -Hn`).
    """
    try:
        resource: Any = importlib.import_module("resource")
    except ImportError:
        return connections  # a system without such limits
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = _open_files()
    needed = used + RESERVED + FILES_EACH * connections
    if _less(soft, needed, resource.RLIM_INFINITY):
        allowed = needed if not _less(hard, needed, resource.RLIM_INFINITY) else hard
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            soft = allowed
    if not _less(soft, needed, resource.RLIM_INFINITY):
        return connections
    room = soft - used - min(RESERVED, soft // 4)
    return min(connections, max(FEWEST, room // FILES_EACH))


def _less(limit: int, than: int, unlimited: int) -> bool:
    return limit != unlimited and limit < than


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 64
