"""The address on which the gateway listens and the URL that its agents use.

Both depend on the machine rather than on the run, since a run may resume on another node. They are
therefore read from environment variables and are not stored in `config.json`. `server.py` opens the
socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from tutelage.errors import ConfigError

_LOCALHOST = "127.0.0.1"
BIND, URL = "TUTELAGE_GATEWAY", "TUTELAGE_GATEWAY_URL"


def read_address(env: Mapping[str, str]) -> tuple[str, int, str | None]:
    """Read `TUTELAGE_GATEWAY=HOST[:PORT]` and `TUTELAGE_GATEWAY_URL`.

    Returns the host and port to listen on, by default any free port (0) on the loopback interface,
    and the URL for agents, or None if it follows from the host and port. Raises `ConfigError`.
    """
    bind, url = env.get(BIND, "").strip(), env.get(URL, "").strip().rstrip("/")
    host, port = _LOCALHOST, 0
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
            link = urlsplit(url)
            ok = link.scheme in ("http", "https") and bool(link.hostname) and link.port != 0
            ok = ok and not (link.query or link.fragment or link.username or link.password)
        except ValueError:
            ok = False
        if not ok:
            raise ConfigError(
                f"{URL}={url!r} is not a valid HTTP URL: use http://HOST:PORT, without a "
                "query or a password"
            )
        if not port:
            raise ConfigError(
                f"{URL}={url!r} needs a fixed port for the gateway: also set "
                f"{BIND}=HOST:PORT, such as {BIND}=0.0.0.0:8200"
            )
    elif host in ("0.0.0.0", "::"):
        raise ConfigError(
            f"{BIND}={bind!r} listens on all interfaces, so agents need a URL: also set "
            f"{URL}=http://NAME:{port or 'PORT'}, the address at which they reach this machine"
        )
    return host, port, url or None
