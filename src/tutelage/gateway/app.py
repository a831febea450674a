"""The gateway as an ASGI app: routes, admission, and the endpoints.

The endpoints are plain ASGI (`http.py`). `routes.py` finds the one of a request, which is admitted
by its key before its body is read; its dialect reads the body, the session has it sampled, and the
answer is written or streamed while a task watches whether the client is still there. Whatever goes
wrong leaves as an error object in the form that the client reads. `server.py` runs the app.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from hashlib import blake2b
from inspect import isawaitable

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from tutelage.errors import TutelageError
from tutelage.gateway import http, models
from tutelage.gateway.clients import OPENAI, Clients, request_ids, sent_key
from tutelage.gateway.completions import PendingCompletion
from tutelage.gateway.dialects import DIALECTS, Dialect
from tutelage.gateway.dialects.dialect import OwnClients, Path
from tutelage.gateway.dialects.field_errors import shown
from tutelage.gateway.errors import NO_RETRY, ApiError, error_response
from tutelage.gateway.keys import AttemptClosedError, SessionRegistry
from tutelage.gateway.limits import GatewayLimits
from tutelage.gateway.reply import ChatReply, ReplyStream
from tutelage.gateway.reward_routes import OnTraces, RewardHandler
from tutelage.gateway.rewards import read_event, read_rewards
from tutelage.gateway.routes import Routes, origin_form
from tutelage.gateway.session import AttemptSession
from tutelage.tracing import Identity
from tutelage.types import JSON

log = logging.getLogger(__name__)
Handler = Callable[[Scope, Receive, Send, AttemptSession, str], Awaitable[None]]
Late = Callable[[Scope, Receive, AttemptClosedError], Awaitable[ApiError]]
"""Keeps what came for an attempt that has ended, and says what it is answered with."""


class _Endpoint:
    """One path: its methods, and errors as JSON; without methods any path that leads nowhere."""

    def __init__(
        self,
        app: App,
        dialect: Dialect | None = None,
        late: Late | None = None,
        /,
        **handlers: Handler,
    ) -> None:
        """Without a dialect an error has the form of the client that asks."""
        self._app, self._dialect, self._handlers = app, dialect, handlers
        self._late = late

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        started = False
        clients, own_error = self._app.clients(scope)
        ids = request_ids(scope, clients)

        def sending(message: Message) -> Awaitable[None]:
            nonlocal started
            if not started:
                started = True
                message["headers"] = [*message["headers"], *ids]
            return send(message)

        try:
            handler = self._handlers.get(scope["method"])
            if handler is None:
                known = () if self._is_word(scope) else self._handlers
                raise self._app.refused(scope, known, clients)
            await self._app.admitted(handler, clients, scope, receive, sending)
        except ClientDisconnect:
            return
        except Exception as error:
            dialect = self._dialect
            told = error_response(error, None if dialect is None else dialect.prompt_field)
            if told.code == "internal_error":
                log.exception("a request failed")
            if isinstance(told, AttemptClosedError) and self._late is not None:
                told = await self._late(scope, receive, told)
            if not started:
                written = own_error if dialect is None else dialect.error
                body = written(told)
                if body.get("type") == "error":  # Anthropic's, which names the request too
                    body["request_id"] = ids[0][1].decode("latin-1")
                await http.send_json(sending, told.status, body, told.headers)

    def _is_word(self, scope: Scope) -> bool:
        """Whether a path has a word in place of a reply's id, as paths have that are asked by POST
        and are not there."""
        id, dialect = scope["path_params"].get("response"), self._dialect
        return (
            scope["method"] == "POST"
            and id is not None
            and dialect is not None
            and not id.startswith(dialect.prefix)
        )


class App:
    """The endpoints over a registry of sessions."""

    def __init__(self, registry: SessionRegistry, limits: GatewayLimits) -> None:
        self.on_traces: OnTraces | None = None
        """Takes the spans that agents send to `POST /v1/traces`; None refuses them."""
        self.in_flight = 0
        self._registry, self._limits = registry, limits
        self._own = [each for each in DIALECTS if isinstance(each, OwnClients)]
        self._known = [OPENAI, *(each.clients for each in self._own)]
        endpoints = {
            **{
                each.path: _Endpoint(self, each, POST=partial(self._ask, each)) for each in DIALECTS
            },
            **{
                path: _Endpoint(self, each, **{m: self._answer(f) for m, f in found.items()})
                for each in DIALECTS
                for path, found in each.paths.items()
            },
            "/v1/models": _Endpoint(
                self, GET=self._answer(models.openai_list, models.anthropic_list)
            ),
            "/v1/models/{model:path}": _Endpoint(
                self, GET=self._answer(models.openai_model, models.anthropic_model)
            ),
            "/v1/traces": _Endpoint(self, POST=self._traces),
            **{
                path: _Endpoint(self, None, handler.late, POST=handler)
                for path, handler in self._reward_handlers().items()
            },
        }
        self._routes = Routes(endpoints)
        self._nowhere = _Endpoint(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        path = scope["path"]
        endpoint, scope["path_params"] = self._routes.find(path)
        if endpoint is None and not path.startswith("/"):
            scope["path"] = origin_form(path)
            return await self(scope, receive, send)
        await (endpoint or self._nowhere)(scope, receive, send)

    def clients(self, scope: Scope) -> tuple[Clients, Callable[[ApiError], JSON]]:
        """Whose client asks, and how that reads an error of no dialect's path."""
        for each in self._own:
            if each.asked_by(scope):
                return each.clients, each.error
        return OPENAI, ApiError.body

    def refused(self, scope: Scope, methods: Collection[str], clients: Clients) -> ApiError:
        """The answer to a method that a path does not have, or to a path that leads nowhere."""
        method, path = scope["method"], scope["path"]
        if not methods:
            return self._routes.missing(method, path, clients, self._known)
        allowed = ", ".join(methods)
        words = f"method {method} is not allowed for {shown(path)}; use {allowed}"
        return ApiError(405, words, code="method_not_allowed", headers={"allow": allowed})

    async def admitted(
        self, handler: Handler, clients: Clients, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run a handler for a request whose key fits, within the limits."""
        named = http.request_headers(scope).get(b"x-tutelage-agent")
        attempt_session, agent = self._registry.admit(
            sent_key(scope, clients, self._known),
            scope["path_params"],
            None if named is None else named.decode("latin-1"),
        )
        if self.in_flight >= self._limits.in_flight:
            raise ApiError(
                503, "too many concurrent requests", code="overloaded", headers={"retry-after": "1"}
            )
        if attempt_session.in_flight >= self._limits.in_flight_per_attempt:
            raise ApiError(
                429,
                f"more than {self._limits.in_flight_per_attempt} concurrent requests",
                code="too_many_requests",
                headers={"retry-after": "1"},
            )
        self.in_flight += 1
        attempt_session.in_flight += 1
        try:
            await handler(scope, receive, send, attempt_session, agent)
        finally:
            self.in_flight -= 1
            attempt_session.in_flight -= 1

    # ------------------------------------------------------------ endpoints

    async def _ask(
        self,
        dialect: Dialect,
        scope: Scope,
        receive: Receive,
        send: Send,
        attempt_session: AttemptSession,
        agent: str,
    ) -> None:
        """A request in one of the dialects."""
        body = await self._body(scope, receive)
        request = attempt_session.read(dialect, http.json_object(body))
        key, repeat = _identity(scope, dialect.name, agent, body)
        answer = attempt_session.answer(dialect, key, repeat, request, agent, len(body))
        if request.stream:
            await self._stream(answer, attempt_session, dialect, receive, send)
            return
        await self._finished(answer, attempt_session, receive)
        await http.send_json(send, 200, dialect.written(_reply(answer, attempt_session, dialect)))
        answer.delivered = True

    def _answer(self, find: Path, anthropics: Path | None = None) -> Handler:
        """A handler that sends what is found for the parameters of a path and the body, or the
        query. `anthropics` answers Anthropic's clients, where they have the path too."""

        async def handler(
            scope: Scope, receive: Receive, send: Send, attempt_session: AttemptSession, agent: str
        ) -> None:
            body = await self._body(scope, receive) if scope["method"] == "POST" else b""
            given = http.json_object(body) if body else http.query(scope)
            other = anthropics if http.names_anthropic(scope) else None
            found = (other or find)(scope["path_params"], given, attempt_session)
            if isawaitable(found):
                found = await found
            if isinstance(found, bytes):
                await http.EventStream(send, self._limits.write_seconds).write(found, last=True)
            else:
                await http.send_json(send, 200, found)

        return handler

    async def _traces(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        attempt_session: AttemptSession,
        agent: str,
    ) -> None:
        hook = self.on_traces
        if hook is None:
            raise ApiError(404, "this gateway does not accept traces", headers=NO_RETRY)
        body = await http.read_body(scope, receive, self._limits)
        kind = http.request_headers(scope).get(b"content-type", b"").decode("latin-1")
        encoding = http.request_headers(scope).get(b"content-encoding", b"").decode("latin-1")
        only = Identity("", attempt_session.rollout_id, attempt_session.attempt_id)
        try:
            answer = await asyncio.to_thread(hook, body, kind, encoding, only=only)
        except (TutelageError, ValueError) as error:
            status = int(getattr(error, "status", 400))
            raise ApiError(status, f"cannot parse the traces: {error}") from error
        await http.send_bytes(send, 200, answer, kind or "application/x-protobuf")

    # ------------------------------------------------------------ waiting

    def _reward_handlers(self) -> dict[str, RewardHandler]:
        reads = {"/v1/rewards": read_rewards, "/v1/events": read_event}
        return {
            path: RewardHandler(read, self._body, lambda: self.on_traces)
            for path, read in reads.items()
        }

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        encoding = http.request_headers(scope).get(b"content-encoding")
        if encoding not in (None, b"", b"identity"):
            raise ApiError(415, "content-encoding is not supported; send the body uncompressed")
        return await http.read_body(scope, receive, self._limits)

    async def _finished(
        self, answer: PendingCompletion, attempt_session: AttemptSession, receive: Receive
    ) -> None:
        """Wait for an answer and raise what it raised. A client that goes away ends the wait."""
        answer.join()
        try:
            # An answer that needs no engine is there at once; then nobody has to watch.
            await asyncio.sleep(0)
            if not answer.task.done():
                leaving = asyncio.ensure_future(receive())
                try:
                    await asyncio.wait((answer.task, leaving), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    leaving.cancel()
        finally:
            answer.leave()
        if not answer.task.done():
            raise ClientDisconnect

    async def _stream(
        self,
        answer: PendingCompletion,
        attempt_session: AttemptSession,
        dialect: Dialect,
        receive: Receive,
        send: Send,
    ) -> None:
        """Send events as tokens come. What fails before the first is an error response."""
        writer = dialect.writer(ChatReply(answer))
        stream = ReplyStream(answer, writer)
        out = http.EventStream(send, self._limits.write_seconds)
        news = asyncio.Event()
        leaving = asyncio.ensure_future(receive())
        leaving.add_done_callback(lambda _: news.set())
        answer.join(news.set)
        try:
            while True:
                news.clear()
                done = answer.task.done()
                if not done and leaving.done():
                    raise ClientDisconnect
                data = stream.feed()
                if data:
                    await out.write(data)
                if done:
                    break
                await news.wait()
            try:
                data = stream.finish(_reply(answer, attempt_session, dialect))
            except Exception as error:
                if not out.begun:
                    raise
                told = error_response(error, dialect.prompt_field)
                await out.write(writer.failed(told), last=True)
                return
            await out.write(data, last=True)
            answer.delivered = True
        except ClientDisconnect:
            raise
        except Exception as error:
            answer.failure = error
            raise
        finally:
            answer.leave(news.set)
            leaving.cancel()
            if answer.finishing:
                self._goes_on(answer, attempt_session, dialect)

    def _goes_on(
        self, answer: PendingCompletion, attempt_session: AttemptSession, dialect: Dialect
    ) -> None:
        """A reply whose client has left counts as a request until it has ended, and is kept then: a
        later request may name it."""

        def ended(_: object) -> None:
            self.in_flight -= 1
            attempt_session.in_flight -= 1
            if answer.usable:
                _reply(answer, attempt_session, dialect)

        self.in_flight += 1
        attempt_session.in_flight += 1
        answer.task.add_done_callback(ended)


def _reply(
    answer: PendingCompletion, attempt_session: AttemptSession, dialect: Dialect
) -> ChatReply:
    """The reply of an answer that has ended; raises what ended it badly.

    It is kept for later requests before the client receives it: its next may name it.
    """
    if answer.task.cancelled():
        if attempt_session.closed:
            raise attempt_session.over()
        raise ApiError(500, "the request was cancelled")
    reply = ChatReply(answer, answer.calls)
    conversation = reply.request.conversation
    if conversation is not None:
        kept = (*conversation, reply.choices[0].reply), reply.request.items, answer.size
        attempt_session.responses.add(dialect.written(reply), *kept)
    return reply


def _identity(scope: Scope, api: str, agent: str, body: bytes) -> tuple[bytes, bool]:
    """What a request asks for as a hash, and whether it says that it is a repeat."""
    sent = http.request_headers(scope)
    named = sent.get(b"idempotency-key")
    said = blake2b(b"%b\0%b\0" % (api.encode(), agent.encode()), digest_size=16)
    said.update(body)
    if named is not None:
        said.update(b"\0" + named)
        return said.digest(), True
    return said.digest(), (sent.get(b"x-stainless-retry-count") or b"0") != b"0"
