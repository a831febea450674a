"""Where the gateway of a run listens, and under which address its agents reach it.

Both are facts of the machine that a run is on, not of the run: a resume on another node has others.
So they stand in the environment, and no `config.json` has them. `server.py` listens there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from tutelage.errors import ConfigError

_HERE = "127.0.0.1"
BIND, URL = "TUTELAGE_GATEWAY", "TUTELAGE_GATEWAY_URL"


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """A host and port to listen on, and the URL that agents are given; None makes it of both."""

    host: str = _HERE
    port: int = 0
    """0 is any free one."""
    url: str | None = None

    @classmethod
    def of(cls, env: Mapping[str, str]) -> GatewayAddress:
        """What `TUTELAGE_GATEWAY=HOST[:PORT]` and `TUTELAGE_GATEWAY_URL` say; without them any
        free port of this machine alone. Raises `ConfigError`."""
        bind, url = env.get(BIND, "").strip(), env.get(URL, "").strip().rstrip("/")
        host, port = _HERE, 0
        if bind:
            try:
                parts = urlsplit(f"//{bind}")
                host, port = parts.hostname or "", parts.port or 0
            except ValueError:
                host = ""
            if not host or set(bind) & set("/?#@"):
                raise ConfigError(
                    f"{BIND}={bind!r} is not a valid listen address: use HOST or HOST:PORT, such "
                    "as 127.0.0.1, 10.0.0.5:8200 or [::1]:8200"
                )
        if url:
            try:
                at = urlsplit(url)
                fine = at.scheme in ("http", "https") and bool(at.hostname) and at.port != 0
                fine = fine and not (at.query or at.fragment or at.username or at.password)
            except ValueError:
                fine = False
            if not fine:
                raise ConfigError(
                    f"{URL}={url!r} is not a valid HTTP URL: use http://HOST:PORT, without a "
                    "query or a password"
                )
            if not port:
                raise ConfigError(
                    f"{URL}={url!r} needs a fixed port for the gateway: also set "
                    f"{BIND}=HOST:PORT, such as {BIND}=0.0.0.0:8200"
                )
        elif _has(host, "is_unspecified"):
            raise ConfigError(
                f"{BIND}={bind!r} listens on all interfaces, so agents need a URL: also set "
                f"{URL}=http://NAME:{port or 'PORT'}, the address at which they reach this machine"
            )
        return cls(host, port, url or None)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    return host == "localhost" or _has(host, "is_loopback")


def _has(host: str, kind: str) -> bool:
    """Whether a host is an address of this kind, and no name."""
    try:
        return bool(getattr(ipaddress.ip_address(host), kind))
    except ValueError:
        return False
