"""The gateway as a Starlette app: routes, admission, and the endpoints.

An endpoint is admitted by its key before its body is read; its dialect reads the body, the session
has it sampled, and the answer is written or streamed while a task watches whether the client is
still there. Whatever goes wrong leaves as an error object in the form that the client reads.
`server.py` runs the app.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from inspect import isawaitable
from typing import Any, TypeVar, cast

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Receive, Scope, Send

from tutelage.bounded import parse_json
from tutelage.errors import TutelageError
from tutelage.gateway.completions import PendingCompletion
from tutelage.gateway.dialects import DIALECTS, Dialect
from tutelage.gateway.dialects.dialect import Path
from tutelage.gateway.dialects.field_errors import shown
from tutelage.gateway.errors import NO_RETRY, ApiError, error_response, invalid, model_not_found
from tutelage.gateway.keys import AttemptClosedError, SentKey, SessionRegistry
from tutelage.gateway.limits import GatewayLimits
from tutelage.gateway.reply import ReplyStream
from tutelage.gateway.rewards import (
    Posted,
    ReadBody,
    late_span,
    read_event,
    read_rewards,
)
from tutelage.gateway.session import AttemptSession, session_closed
from tutelage.tracing import Identity
from tutelage.tracing.otlp import PROTOBUF, encode_protobuf
from tutelage.types import JSON

log = logging.getLogger(__name__)
T = TypeVar("T")
Handler = Callable[[Request, AttemptSession, str], Awaitable[Response]]
Late = Callable[[Request, AttemptClosedError], Awaitable[ApiError]]
"""Keeps what came for an attempt that has ended, and returns the error that answers it."""
OnTraces = Callable[..., bytes]
"""Reads a body of spans in a worker thread; `tracing.ingest_traces` for a run is one.

A ValueError is answered with its `status`, 400 where it has none.
"""
_ATTEMPT = "/rollout/{rollout}/attempt/{attempt}"
_MESSAGES = re.compile("(?<!/rollout)(?<!/attempt)(?<!/agent)/messages(?:/|$)")
"""In a path of Anthropic's API, whatever its attempt is called."""
_LONGEST_ID = 200
_PROCESS = os.urandom(6).hex()
_count = itertools.count()
_EVENTS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class _JSON(JSONResponse):
    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """One path and method: admits the request, runs the handler, and answers errors as JSON."""

    app: App
    handler: Handler
    dialect: Dialect | None = None
    """Without one an error has the form of the client that asks."""
    late: Late | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request, admitted = Request(scope, receive), None
        try:
            admitted, agent = self.app.admit(request)
            response = await self.handler(request, admitted, agent)
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception as error:
            told = error_response(error, self.dialect.prompt_field if self.dialect else None)
            if told.code == "internal_error":
                log.exception("a request failed")
            if isinstance(told, AttemptClosedError) and self.late is not None:
                told = await self.late(request, told)
            response = _failed(request, told)
        _name(request, response)
        try:
            await response(scope, receive, send)
        finally:
            if admitted is not None:
                self.app.in_flight -= 1
                admitted.in_flight -= 1


class App:
    """The endpoints over a registry of sessions."""

    def __init__(
        self, registry: SessionRegistry, limits: GatewayLimits, origins: Sequence[str] = ()
    ) -> None:
        """Web pages of `origins` may ask, "*" for any."""
        self.on_traces: OnTraces | None = None
        """Takes the spans that agents send to `POST /v1/traces`; None refuses them."""
        self.in_flight = 0
        self._registry, self._limits = registry, limits
        events = self._post_rewards("/events", read_event)
        routes: list[BaseRoute] = [
            *(self._route(each.path, partial(self._ask, each), "POST", each) for each in DIALECTS),
            *(
                self._route(path, partial(self._answer, find), method, each)
                for each in DIALECTS
                for path, found in each.paths.items()
                for method, find in found.items()
            ),
            self._route("/v1/models", _models, "GET"),
            self._route("/v1/models/{model:path}", _models, "GET"),
            self._route("/v1/traces", self._traces, "POST"),
            self._post_rewards("/v1/rewards", read_rewards),
            self._post_rewards("/v1/events", read_event),
        ]
        self._paths = list(dict.fromkeys(r.path_format for r in routes if isinstance(r, Route)))
        lightning = [f"/proxy{_ATTEMPT}/mode/{mode}/openai" for mode in ("train", "val")]
        cors = Middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
        of_agents = [Mount("/agent/{agent}", routes=routes), *routes]
        self._starlette = Starlette(
            routes=[
                *(Route(path, _health) for path in ("/", "/health")),
                Mount(_ATTEMPT, routes=of_agents),
                # The paths of agent-lightning 1.0, some of whose agents read the rollout in them.
                *(Mount(path, routes=routes) for path in lightning),
                Mount("/api/rollouts/{rollout}/attempt/{attempt}", routes=[events]),
                *of_agents,
            ],
            middleware=[cors] if origins else [],
            exception_handlers={HTTPException: self._no_route},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if not scope.get("path", "/").startswith("/"):  # a request line that names the whole URL
            scope["path"] = "/" + scope["path"].partition("://")[2].partition("/")[2]
        await self._starlette(scope, receive, send)

    def admit(self, request: Request) -> tuple[AttemptSession, str]:
        """Return the session of a request and the agent that calls, and count it as in flight.

        Raises `ApiError` where its key does not fit, or too many are in flight.
        """
        attempt_session, agent = self._registry.admit(
            SentKey.of(request.headers, _by_anthropic(request)),
            request.path_params,
            request.headers.get("x-tutelage-agent"),
        )
        later = {"retry-after": "1"}
        if self.in_flight >= self._limits.in_flight:
            raise ApiError(503, "too many concurrent requests", code="overloaded", headers=later)
        if attempt_session.in_flight >= self._limits.in_flight_per_attempt:
            words = f"more than {self._limits.in_flight_per_attempt} concurrent requests"
            raise ApiError(429, words, code="too_many_requests", headers=later)
        self.in_flight += 1
        attempt_session.in_flight += 1
        return attempt_session, agent

    def _route(
        self, path: str, handler: Handler, method: str, dialect: Dialect | None = None
    ) -> Route:
        return Route(path, _Endpoint(self, handler, dialect), methods=[method])

    def _post_rewards(self, path: str, read: ReadBody) -> Route:
        endpoint = _Endpoint(self, partial(self._reward, read), None, partial(self._late, read))
        return Route(path, endpoint, methods=["POST"])

    async def _no_route(self, request: Request, error: Exception) -> Response:
        """Answer a path or a method that is not there, with what to change."""
        failure, method, path = cast("HTTPException", error), request.method, request.url.path
        if failure.status_code == 405:
            allowed = ", ".join(sorted((failure.headers or {})["Allow"].split(", ")))
            words = f"method {method} is not allowed for {shown(path)}; use {allowed}"
            told = ApiError(405, words, code="method_not_allowed", headers={"allow": allowed})
        else:
            words = (
                f"no route for {method} {shown(path)}: OPENAI_BASE_URL must end in /v1, "
                "ANTHROPIC_BASE_URL must not end in /v1, which its client adds"
            )
            told = ApiError(404, f"{words}. Routes: {', '.join(self._paths)}", code="unknown_url")
        response = _failed(request, told)
        _name(request, response)
        return response

    # ------------------------------------------------------------ endpoints

    async def _ask(
        self, dialect: Dialect, request: Request, attempt_session: AttemptSession, agent: str
    ) -> Response:
        """A request in one of the dialects."""
        body = await self._body(request)
        values = _json_object(body)
        if (call := attempt_session.forward(dialect, values, agent)) is not None:
            return await _unless_left(request, call.respond())
        asked = attempt_session.read(dialect, values)
        key, repeat = _identity(request, dialect.name, agent, body)
        answer = attempt_session.answer(dialect, key, repeat, asked, agent, len(body))
        if asked.stream:
            events = self._events(answer, attempt_session, dialect)
            first = await _unless_left(request, anext(events))
            streamed = _after(first, events)
            return StreamingResponse(streamed, media_type="text/event-stream", headers=_EVENTS)
        answer.join()
        try:
            await asyncio.sleep(0)
            # An answer that needs no engine is there at once; then nobody has to watch.
            if not answer.task.done():
                await _unless_left(request, asyncio.wait((answer.task,)))
        finally:
            answer.leave()
        written = dialect.written(_ended(answer, attempt_session))
        answer.delivered = True
        return _JSON(written)

    async def _events(
        self, answer: PendingCompletion, attempt_session: AttemptSession, dialect: Dialect
    ) -> AsyncGenerator[bytes]:
        """Yield events as tokens come. Raises what fails before the first."""
        writer = dialect.writer(answer)
        stream, news, begun = ReplyStream(answer, writer), asyncio.Event(), False
        answer.join(news.set)
        try:
            while True:
                news.clear()
                done = answer.task.done()
                if data := stream.feed():
                    yield data
                    begun = True
                if done:
                    break
                await news.wait()
            try:
                _ended(answer, attempt_session)
                data = stream.finish()
            except Exception as error:
                if not begun:
                    raise
                yield writer.failed(error_response(error, dialect.prompt_field))
                return
            yield data
            answer.delivered = True
        except Exception as error:
            answer.failure = error
            raise
        finally:
            answer.leave(news.set)
            if answer.finishing:
                self._goes_on(answer, attempt_session)

    def _goes_on(self, answer: PendingCompletion, attempt_session: AttemptSession) -> None:
        """A reply whose client has left counts as a request until it has ended."""

        def ended(_: object) -> None:
            self.in_flight -= 1
            attempt_session.in_flight -= 1

        self.in_flight += 1
        attempt_session.in_flight += 1
        answer.task.add_done_callback(ended)

    async def _answer(
        self, find: Path, request: Request, attempt_session: AttemptSession, agent: str
    ) -> Response:
        """A further path of a dialect: what is found for its parameters and the body, or the
        query."""
        body = await self._body(request) if request.method == "POST" else b""
        values = _json_object(body) if body else dict(request.query_params)
        found = find(request.path_params, values, attempt_session)
        return _JSON(await found if isawaitable(found) else found)

    async def _traces(
        self, request: Request, attempt_session: AttemptSession, agent: str
    ) -> Response:
        hook = self.on_traces
        if hook is None:
            raise ApiError(404, "this gateway does not accept traces", headers=NO_RETRY)
        body = await self._body(request, packed=True)
        kind, encoding = (
            request.headers.get(name, "") for name in ("content-type", "content-encoding")
        )
        only = Identity("", attempt_session.rollout_id, attempt_session.attempt_id)
        try:
            answer = await asyncio.to_thread(hook, body, kind, encoding, only=only)
        except (TutelageError, ValueError) as error:
            status = int(getattr(error, "status", 400))
            raise ApiError(status, f"cannot parse the traces: {error}") from error
        return Response(answer, media_type=kind or PROTOBUF)

    async def _reward(
        self, read: ReadBody, request: Request, attempt_session: AttemptSession, agent: str
    ) -> Response:
        posted = read(_json_object(await self._body(request)), attempt_session)
        if attempt_session.closed:  # it ended while the body came
            raise await self._kept(posted, attempt_session)
        key = request.headers.get("idempotency-key")
        return _JSON(attempt_session.posted.add(posted.rewards, key, posted.answer))

    async def _late(self, read: ReadBody, request: Request, closed: AttemptClosedError) -> ApiError:
        """Keep rewards of an attempt that has ended; returns that they do not count."""
        if request.path_params.get("rollout", closed.rollout_id) != closed.rollout_id:
            return closed
        try:
            posted = read(_json_object(await self._body(request)), closed)
        except ApiError as error:
            return error
        except ClientDisconnect:
            return closed
        return await self._kept(posted, closed)

    async def _kept(self, posted: Posted, attempt: AttemptSession | AttemptClosedError) -> ApiError:
        sink, name = self.on_traces, attempt.attempt_id
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

    async def _body(self, request: Request, *, packed: bool = False) -> bytes:
        """Return the body. Raises `ApiError` 413 where it is too large, 415 where it is `packed`
        and may not be."""
        most = self._limits.body_bytes
        if not packed and request.headers.get("content-encoding") not in (None, "", "identity"):
            raise ApiError(415, "content-encoding is not supported; send the body uncompressed")
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > most:
                words, close = f"the request body exceeds {most} bytes", {"connection": "close"}
                raise ApiError(413, words, code="request_too_large", headers=close)
        return bytes(body)


async def _health(request: Request) -> Response:
    """Answer without a key that the server is there."""
    return _JSON({"status": "ok"})


async def _models(request: Request, attempt_session: AttemptSession, agent: str) -> Response:
    """List what is served, or describe one model, as the client's API does. Raises `ApiError`."""
    names, wanted = attempt_session.models(), request.path_params.get("model")
    if wanted is not None and wanted not in names:
        raise model_not_found(wanted, names)
    if not _by_anthropic(request):
        told = {"object": "model", "created": 0, "owned_by": "tutelage"}
        found = [{"id": name, **told} for name in names]
        listed: JSON = {"object": "list", "data": found}
    else:  # when a model was released is not known: the epoch stands there
        told = {"type": "model", "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active"}
        found = [{"id": name, "display_name": name, **told} for name in names]
        ends = {"first_id": names[0], "last_id": names[-1]}
        listed = {"data": found, "has_more": False, **ends}
    return _JSON(listed if wanted is None else found[names.index(wanted)])


# ---------------------------------------------------------------- requests and replies


def _by_anthropic(request: Request) -> bool:
    """Return whether a client of Anthropic asks, as a header or the path says."""
    path = request.scope["path"]
    # Few have the word, and looking for it costs less than the pattern.
    asked = "/messages" in path and _MESSAGES.search(path) is not None
    return asked or "anthropic-version" in request.headers


def _failed(request: Request, error: ApiError) -> Response:
    if not _by_anthropic(request):
        return _JSON(error.body(), error.status, error.headers)
    body = error.anthropics_body() | {"request_id": _id_of(request)}
    return _JSON(body, error.status, error.headers)


def _id_of(request: Request) -> str:
    """Return the id of a request: the client's own, or a new one."""
    named = request.headers.get("x-request-id")
    if named is not None and len(named) <= _LONGEST_ID:
        return named
    return request.scope.setdefault("tutelage.id", f"req_{_PROCESS}{next(_count):012x}")


def _name(request: Request, response: Response) -> None:
    """Write the id of a request into its response."""
    response.headers["x-request-id"] = _id_of(request)
    if _by_anthropic(request):
        response.headers["request-id"] = _id_of(request)


def _json_object(body: bytes) -> JSON:
    """Return the JSON object that a body is. Raises `ApiError` 400."""
    try:
        data = parse_json(body, longest=len(body), loads=orjson.loads)
    except ValueError as error:
        raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise invalid("the body must be a JSON object", code="invalid_json")
    return cast("JSON", data)


def _identity(request: Request, api: str, agent: str, body: bytes) -> tuple[bytes, bool]:
    """Return what a request asks for as a hash, and whether it says that it is a repeat."""
    key = request.headers.get("idempotency-key")
    said = blake2b(f"{api}\0{agent}\0".encode(), digest_size=16)
    said.update(body)
    if key is not None:
        said.update(b"\0" + key.encode())
    repeated = request.headers.get("x-stainless-retry-count") or "0"
    return said.digest(), key is not None or repeated != "0"


async def _unless_left(request: Request, work: Awaitable[T]) -> T:
    """Wait for something while the client is there. Raises `ClientDisconnect` once it is not."""
    waiting, leaving = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientDisconnect
        return waiting.result()
    finally:
        leaving.cancel()
        waiting.cancel()


async def _after(first: bytes, events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    yield first
    async for data in events:
        yield data


def _ended(answer: PendingCompletion, attempt_session: AttemptSession) -> PendingCompletion:
    """Return an answer that has ended. Raises what ended it badly."""
    if not answer.task.cancelled():
        answer.task.result()
        return answer
    if attempt_session.closed:
        raise attempt_session.over()
    raise ApiError(500, "the request was cancelled")
