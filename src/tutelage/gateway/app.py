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
from tutelage.gateway.keys import MAX_ID, SessionRegistry, sent_key
from tutelage.gateway.limits import GatewayLimits
from tutelage.gateway.reply import ReplyStream
from tutelage.gateway.rewards import ReadBody, late_span, read_event, read_rewards
from tutelage.gateway.session import AttemptClosedError, AttemptSession
from tutelage.tracing import Identity
from tutelage.tracing.otlp import PROTOBUF, encode_protobuf
from tutelage.types import JSON

log = logging.getLogger(__name__)
T = TypeVar("T")
Handler = Callable[[Request, AttemptSession, str], Awaitable[Response]]
OnTraces = Callable[..., bytes]
"""Reads a body of spans in a worker thread; `tracing.ingest_traces` for a run is one.

A ValueError is answered with its `status`, 400 where it has none.
"""
_ATTEMPT = "/rollout/{rollout}/attempt/{attempt}"
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
    late: ReadBody | None = None
    """Reads the rewards in a body, of which those of an attempt that has ended are kept."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request, admitted = Request(scope, receive), None
        try:
            named = request.headers.get("x-tutelage-agent")
            key = sent_key(request.headers)
            admitted, agent = self.app.registry.admit(key, request.path_params, named)
            admitted.in_flight += 1
            response = await self.handler(request, admitted, agent)
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception as error:
            told = error_response(error, self.dialect.prompt_field if self.dialect else None)
            if told.code == "internal_error":
                log.exception("a request failed")
            if self.late is not None and isinstance(told, AttemptClosedError):
                told = await self.app.keep_late(request, self.late, told)
            response = _failed(request, told)
        _name(request, response)
        try:
            await response(scope, receive, send)
        finally:
            if admitted is not None:
                admitted.request_ended()


class App:
    """The endpoints over a registry of sessions."""

    def __init__(
        self, registry: SessionRegistry, limits: GatewayLimits, origins: Sequence[str] = ()
    ) -> None:
        """Web pages of `origins` may ask, "*" for any."""
        self.on_traces: OnTraces | None = None
        """Takes the spans that agents send to `POST /v1/traces`; None refuses them."""
        self.registry, self._limits = registry, limits
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

    def _route(
        self, path: str, handler: Handler, method: str, dialect: Dialect | None = None
    ) -> Route:
        return Route(path, _Endpoint(self, handler, dialect), methods=[method])

    def _post_rewards(self, path: str, read: ReadBody) -> Route:
        endpoint = _Endpoint(self, partial(self._reward, read), None, read)
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
        # What a request asks for, and whether it says that it is a repeat.
        said = blake2b(f"{dialect.name}\0{agent}\0".encode(), digest_size=16)
        said.update(body)
        if (named := request.headers.get("idempotency-key")) is not None:
            said.update(b"\0" + named.encode())
        count = request.headers.get("x-stainless-retry-count")
        repeat = named is not None or count not in (None, "", "0")
        answer = attempt_session.answer(dialect, said.digest(), repeat, asked, agent, len(body))
        if asked.stream:
            events = self._events(answer, attempt_session, dialect)
            first = await _unless_left(request, anext(events))

            async def streamed() -> AsyncGenerator[bytes]:
                yield first
                async for data in events:
                    yield data

            return StreamingResponse(streamed(), media_type="text/event-stream", headers=_EVENTS)
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
            if answer.finishing:  # it counts as a request until it has ended
                attempt_session.in_flight += 1
                answer.task.add_done_callback(attempt_session.request_ended)

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
        kind = request.headers.get("content-type", "")
        encoding = request.headers.get("content-encoding", "")
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
        rewards, answer = read(_json_object(await self._body(request)), attempt_session)
        if attempt_session.closed:  # it ended while the body came
            raise attempt_session.over()
        key = request.headers.get("idempotency-key")
        return _JSON(attempt_session.posted.add(rewards, key, answer))

    async def keep_late(
        self, request: Request, read: ReadBody, closed: AttemptClosedError
    ) -> ApiError:
        """Keep rewards of an attempt that has ended as a span of it; return the answer to them."""
        attempt, sink = closed.attempt, self.on_traces
        if request.path_params.get("rollout", attempt.rollout_id) != attempt.rollout_id:
            return closed
        try:
            rewards, _ = read(_json_object(await self._body(request)), attempt)
            log.warning("ignoring late rewards of attempt %s: %s", attempt.attempt_id, rewards)
            if rewards and sink is not None:
                body = encode_protobuf([late_span(rewards, attempt)])
                await asyncio.to_thread(sink, body, PROTOBUF, "", only=attempt)
                closed.message += "; the reward was stored but does not count"
        except ApiError as error:
            return error
        except (ClientDisconnect, TutelageError, RuntimeError):  # the body may have been read
            log.exception("failed to store the late rewards of attempt %s", attempt.attempt_id)
        return closed

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
    asked = "/v1/messages" in path or path.endswith("/messages")
    return asked or "anthropic-version" in request.headers


def _failed(request: Request, error: ApiError) -> Response:
    if not _by_anthropic(request):
        return _JSON(error.body(), error.status, error.headers)
    body = error.anthropics_body() | {"request_id": _id_of(request)}
    return _JSON(body, error.status, error.headers)


def _id_of(request: Request) -> str:
    """Return the id of a request: the client's own, or a new one."""
    named = request.headers.get("x-request-id")
    if named is not None and len(named) <= MAX_ID:
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


def _ended(answer: PendingCompletion, attempt_session: AttemptSession) -> PendingCompletion:
    """Return an answer that has ended. Raises what ended it badly."""
    if not answer.task.cancelled():
        answer.task.result()
        return answer
    if attempt_session.closed:
        raise attempt_session.over()
    raise ApiError(500, "the request was cancelled")
