"""API keys: the session that a request belongs to, and its permission.

A key grants access to one attempt and identifies the calling agent. A path such as
`/rollout/R/attempt/A/v1/...` must match the key: a key of another attempt gets 403. Keys are never
logged. `server.py` fills the registry from any thread, `app.py` queries it.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from starlette.datastructures import Headers

from tutelage.errors import ConfigError
from tutelage.gateway.dialects.field_errors import format_value
from tutelage.gateway.errors import ApiError, attempt_closed
from tutelage.gateway.session import AttemptSession

CLOSED_KEYS = 10_000
"""Keys of closed attempts that are remembered and get 410; older ones are unknown (401)."""
MAX_ID = 200


def _check_agent_name(value: str, param: str) -> str:
    """Validate and return an agent id from a path or header. Raises `ApiError` 400."""
    if not value or len(value) > MAX_ID or not value.isprintable():
        message = f"{param} = {format_value(value)} is not a valid agent name: use 1 to {MAX_ID}"
        raise ApiError(400, f"{message} printable characters, or leave it out", param=param)
    return value


def read_key(headers: Headers) -> bytes:
    """Return a request's API key, from a bearer token or Anthropic's `x-api-key`, or an empty
    string."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    bearer = bearer.strip() if scheme.lower() == "bearer" else ""
    return (bearer or headers.get("x-api-key", "").strip()).encode("latin-1")


class SessionRegistry:
    """Registry of open sessions, by API key and by attempt. Keys are derived from a secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._lock = threading.Lock()
        self._by_key: dict[bytes, tuple[AttemptSession, bytes, str]] = {}
        self._by_attempt: dict[tuple[str, str], AttemptSession] = {}
        self._closed: OrderedDict[bytes, None] = OrderedDict()

    def open_sessions(self) -> list[AttemptSession]:
        """Return all open sessions."""
        with self._lock:
            return list(self._by_attempt.values())

    def add(self, attempt_session: AttemptSession) -> None:
        """Register an open session. Raises `ConfigError` if its attempt is already open or its key
        is in use."""
        with self._lock:
            if attempt_session.ids in self._by_attempt:
                raise ConfigError(
                    f"attempt {attempt_session.attempt_id!r} of rollout "
                    f"{attempt_session.rollout_id!r} is already open; "
                    "close its session first"
                )
            if _digest(attempt_session.api_key.encode()) in self._by_key:
                raise ConfigError("another attempt uses this key; use one key per attempt")
            self._by_attempt[attempt_session.ids] = attempt_session
        self._add_key(attempt_session, attempt_session.api_key, attempt_session.agent)

    def key(self, rollout_id: str, attempt_id: str, agent: str | None = None) -> str:
        """Return the API key of an attempt, or of one of its agents."""
        text = "\0".join((rollout_id, attempt_id, "" if agent is None else f"/{agent}"))
        return f"sk-tutelage-{hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()}"

    def key_for(self, attempt_session: AttemptSession, agent: str) -> str:
        """Return an API key for another agent of a session's attempt. Calls with this key are
        recorded under that agent."""
        key = self.key(*attempt_session.ids, agent)
        if not attempt_session.closed:
            self._add_key(attempt_session, key, agent)
        elif not attempt_session.server_stops:
            self._remember_closed((_digest(key.encode()),))
        return key

    def _add_key(self, attempt_session: AttemptSession, key: str, agent: str) -> None:
        raw = key.encode()
        with self._lock:
            self._by_key[_digest(raw)] = (attempt_session, raw, agent)
            self._closed.pop(_digest(raw), None)

    def remove(self, attempt_session: AttemptSession) -> None:
        """Remove a session and its API keys. Unknown sessions are ignored."""
        with self._lock:
            if self._by_attempt.get(attempt_session.ids) is attempt_session:
                del self._by_attempt[attempt_session.ids]
            keys = [d for d, (owner, _, _) in self._by_key.items() if owner is attempt_session]
            for digest in keys:
                del self._by_key[digest]
        self._remember_closed(keys)

    def _remember_closed(self, digests: Iterable[bytes]) -> None:
        """Store the key digests of an attempt that has ended."""
        with self._lock:
            self._closed.update(dict.fromkeys(digests))
            while len(self._closed) > CLOSED_KEYS:
                self._closed.popitem(last=False)

    def authenticate(
        self, key: bytes, path: Mapping[str, str], header_agent: str | None
    ) -> tuple[AttemptSession, str]:
        """Authenticate a request; return its session and the calling agent.

        Raises `ApiError` 401, 403, 410, or 500 while the server stops.
        """
        digest = _digest(key)
        entry = self._by_key.get(digest)
        if entry is None or not hmac.compare_digest(entry[1], key):
            if digest in self._closed:
                raise attempt_closed()
            message = (
                f"{'unknown' if key else 'missing'} API key: send `Authorization: Bearer KEY` or "
                "`x-api-key: KEY`; clients read it from OPENAI_API_KEY or ANTHROPIC_API_KEY"
            )
            raise ApiError(401, message, code="invalid_api_key" if key else "missing_key")
        attempt_session, _, agent = entry
        if attempt_session.closed:
            raise attempt_session.closed_error()
        if "rollout" in path and (path["rollout"], path["attempt"]) != attempt_session.ids:
            message = "the key and the path belong to different attempts"
            raise ApiError(403, message, code="wrong_attempt")
        if "agent" in path:
            return attempt_session, _check_agent_name(path["agent"], "the agent in the path")
        if header_agent is not None:
            return attempt_session, _check_agent_name(header_agent, "x-tutelage-agent")
        return attempt_session, agent


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
