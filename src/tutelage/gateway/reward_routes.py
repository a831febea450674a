"""The endpoints that rewards are posted to, of attempts that play and of those that have ended.

`rewards.py` reads what is posted and keeps it; `app.py` admits the request and says which path is
read how.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from tutelage.errors import TutelageError
from tutelage.gateway import http
from tutelage.gateway.errors import ApiError
from tutelage.gateway.keys import AttemptClosedError
from tutelage.gateway.rewards import OfAttempt, Posted, ReadBody, late_span
from tutelage.gateway.session import AttemptSession, session_closed
from tutelage.tracing import Identity
from tutelage.tracing.otlp import PROTOBUF, encode_protobuf

log = logging.getLogger(__name__)
OnTraces = Callable[..., bytes]
"""Reads a body of spans in a worker thread; `tracing.ingest_traces` for a run is one.

A ValueError is answered with its `status`, 400 where it has none.
"""


@dataclass(frozen=True, slots=True)
class RewardHandler:
    """A handler of `app.py` for bodies that `read` reads."""

    read: ReadBody
    body: Callable[[Scope, Receive], Awaitable[bytes]]
    sink: Callable[[], OnTraces | None]
    """What takes the spans of late rewards just now."""

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        attempt_session: AttemptSession,
        agent: str,
    ) -> None:
        """Take the rewards of an attempt."""
        posted = self.read(http.json_object(await self.body(scope, receive)), attempt_session)
        if attempt_session.closed:  # it ended while the body came
            raise await self._kept(posted, attempt_session)
        key = http.request_headers(scope).get(b"idempotency-key")
        named = None if key is None else key.decode("latin-1")
        answer = attempt_session.posted.add(posted.rewards, named, posted.answer)
        await http.send_json(send, 200, answer)

    async def late(self, scope: Scope, receive: Receive, closed: AttemptClosedError) -> ApiError:
        """Keep rewards of an attempt that has ended; returns that they do not count."""
        if scope["path_params"].get("rollout", closed.rollout_id) != closed.rollout_id:
            return closed
        try:
            posted = self.read(http.json_object(await self.body(scope, receive)), closed)
        except ApiError as error:
            return error
        except ClientDisconnect:
            return closed
        return await self._kept(posted, closed)

    async def _kept(self, posted: Posted, attempt: OfAttempt) -> ApiError:
        sink, name = self.sink(), attempt.attempt_id
        if not posted.rewards:
            return session_closed()
        log.warning("ignoring late rewards of attempt %s: %s", name, dict(posted.rewards))
        if sink is None:
            return session_closed()
        body = encode_protobuf([late_span(posted.rewards, attempt)])
        only = Identity("", attempt.rollout_id, name)
        try:
            await asyncio.to_thread(sink, body, PROTOBUF, "", only=only)
        except TutelageError:
            log.exception("failed to store the late rewards of attempt %s", name)
            return session_closed()
        return session_closed("; the reward was stored but does not count")
