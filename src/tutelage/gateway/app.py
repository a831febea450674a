"""The gateway as a Starlette app: routes, admission and endpoints.

A request is admitted by its key before its body is read. Its dialect parses the body, the session
samples the reply, and the reply is returned or streamed while a task watches for a disconnect.
Every failure is returned as an error object in the format of the client's API. `server.py` runs the
app.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar, cast

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Receive, Scope, Send

from tutelage.bounded import parse_json
from tutelage.errors import TutelageError
from tutelage.gateway.completions import PendingCompletion
from tutelage.gateway.dialects import DIALECTS, Dialect
from tutelage.gateway.dialects.dialect import Path
from tutelage.gateway.dialects.field_errors import format_value
from tutelage.gateway.errors import NO_RETRY, ApiError, bad_request, error_response, model_not_found
from tutelage.gateway.keys import MAX_ID, SessionRegistry, read_key
from tutelage.gateway.limits import GatewayLimits
from tutelage.gateway.rewards import ReadBody, read_event, read_rewards
from tutelage.gateway.session import AttemptSession
from tutelage.tracing import Identity
from tutelage.tracing.otlp import PROTOBUF
from tutelage.types import JSON

log = logging.getLogger(__name__)
T = TypeVar("T")
Handler = Callable[[Request, AttemptSession, str], Awaitable[Response]]
OnTraces = Callable[..., bytes]
"""Parses a request body of spans in a worker thread, as `tracing.ingest_traces` does for a run.

A ValueError is returned to the client with its `status` attribute, or 400 if it has none.
"""
_ATTEMPT = "/rollout/{rollout}/attempt/{attempt}"
_PROCESS = os.urandom(6).hex()
_request_numbers = itertools.count()
_SSE_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """ASGI endpoint of one path and method, which authenticates requests and returns errors as
    JSON."""

    app: App
    handler: Handler
    dialect: Dialect | None = None
    """None for paths without a dialect; the error format then follows the client."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        request, admitted = Request(scope, receive), None
        try:
            header_agent = request.headers.get("x-tutelage-agent")
            key = read_key(request.headers)
            admitted, agent = self.app.registry.authenticate(key, request.path_params, header_agent)
            admitted.in_flight += 1
            response = await self.handler(request, admitted, agent)
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception as error:
            failure = error_response(error, self.dialect.prompt_field if self.dialect else None)
            if failure.code == "internal_error":
                log.exception("a request failed")
            response = _render_error(request, failure)
        _set_request_id(request, response)
        try:
            await response(scope, receive, send)
        finally:
            if admitted is not None:
                admitted.end_request()


class App:
    """ASGI app that serves the sessions of a registry."""

    def __init__(
        self, registry: SessionRegistry, limits: GatewayLimits, origins: Sequence[str] = ()
    ) -> None:
        """Create the app and its routes. `origins` are the web origins that may send requests; "*"
        allows all."""
        self.on_traces: OnTraces | None = None
        """Receives the spans that agents send to `POST /v1/traces`; None rejects them."""
        self.registry, self._limits = registry, limits
        read_event_body = partial(self._serve_rewards, read_event)
        routes: list[BaseRoute] = [
            *(self._route(d.path, partial(self._complete, d), "POST", d) for d in DIALECTS),
            *(
                self._route(path, partial(self._serve_route, handler), method, d)
                for d in DIALECTS
                for path, methods in d.paths.items()
                for method, handler in methods.items()
            ),
            self._route("/v1/models", _list_models, "GET"),
            self._route("/v1/models/{model:path}", _list_models, "GET"),
            self._route("/v1/traces", self._serve_traces, "POST"),
            self._route("/v1/rewards", partial(self._serve_rewards, read_rewards), "POST"),
            self._route("/v1/events", read_event_body, "POST"),
        ]
        self._paths = list(dict.fromkeys(r.path_format for r in routes if isinstance(r, Route)))
        lightning = [f"/proxy{_ATTEMPT}/mode/{mode}/openai" for mode in ("train", "val")]
        cors = Middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
        agent_routes = [Mount("/agent/{agent}", routes=routes), *routes]
        self._starlette = Starlette(
            routes=[
                *(Route(path, _health) for path in ("/", "/health")),
                Mount(_ATTEMPT, routes=agent_routes),
                # The paths of agent-lightning 1.0; some of its agents parse the rollout id in them.
                *(Mount(path, routes=routes) for path in lightning),
                Mount(
                    "/api/rollouts/{rollout}/attempt/{attempt}",
                    routes=[self._route("/events", read_event_body, "POST")],
                ),
                *agent_routes,
            ],
            middleware=[cors] if origins else [],
            exception_handlers={HTTPException: self._route_error},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request."""
        if not scope.get("path", "/").startswith("/"):  # the request line has the full URL
            scope["path"] = "/" + scope["path"].partition("://")[2].partition("/")[2]
        await self._starlette(scope, receive, send)

    def _route(
        self, path: str, handler: Handler, method: str, dialect: Dialect | None = None
    ) -> Route:
        return Route(path, _Endpoint(self, handler, dialect), methods=[method])

    async def _route_error(self, request: Request, error: Exception) -> Response:
        """Return the error response, with advice, for an unknown path or method."""
        failure, method, path = cast("HTTPException", error), request.method, request.url.path
        if failure.status_code == 405:
            allowed = ", ".join(sorted((failure.headers or {})["Allow"].split(", ")))
            text = f"method {method} is not allowed for {format_value(path)}; use {allowed}"
            refusal = ApiError(405, text, code="method_not_allowed", headers={"allow": allowed})
        else:
            text = (
                f"no route for {method} {format_value(path)}: OPENAI_BASE_URL must end in /v1, "
                "ANTHROPIC_BASE_URL must not end in /v1, which its client adds"
            )
            refusal = ApiError(404, f"{text}. Routes: {', '.join(self._paths)}", code="unknown_url")
        response = _render_error(request, refusal)
        _set_request_id(request, response)
        return response

    # ------------------------------------------------------------ endpoints

    async def _complete(
        self, dialect: Dialect, request: Request, attempt_session: AttemptSession, agent: str
    ) -> Response:
        """Sample a reply to a request and return or stream it in the format of the dialect."""
        body = await self._read_body(request)
        values = _parse_object(body)
        if (call := attempt_session.forward(dialect, values, agent)) is not None:
            return await _run_while_connected(request, call.respond())
        parsed = attempt_session.parse(dialect, values)
        # Identifies equal requests; the two headers mark a request as a repeat.
        digest = blake2b(f"{dialect.name}\0{agent}\0".encode(), digest_size=16)
        digest.update(body)
        if (repeat_key := request.headers.get("idempotency-key")) is not None:
            digest.update(b"\0" + repeat_key.encode())
        count = request.headers.get("x-stainless-retry-count")
        repeat = repeat_key is not None or count not in (None, "", "0")
        answer = attempt_session.answer(dialect, digest.digest(), repeat, parsed, agent, len(body))
        if parsed.stream:
            events = self._stream_events(answer, attempt_session, dialect)
            first = await _run_while_connected(request, anext(events))

            async def stream() -> AsyncGenerator[bytes]:
                yield first
                async for data in events:
                    yield data

            return StreamingResponse(stream(), media_type="text/event-stream", headers=_SSE_HEADERS)
        answer.add_waiter()
        try:
            await asyncio.sleep(0)
            # An answer without an engine is done at once and needs no disconnect watch.
            if not answer.task.done():
                await _run_while_connected(request, asyncio.wait((answer.task,)))
        finally:
            answer.remove_waiter()
        reply = dialect.write_reply(_check_answer(answer, attempt_session))
        answer.delivered = True
        return _json_response(reply)

    async def _stream_events(
        self, answer: PendingCompletion, attempt_session: AttemptSession, dialect: Dialect
    ) -> AsyncGenerator[bytes]:
        """Yield stream events during sampling. Errors before the first event are raised."""
        writer, updated, started = dialect.writer(answer), asyncio.Event(), False
        answer.add_waiter(updated.set)
        try:
            while True:
                updated.clear()
                done = answer.task.done()
                if data := writer.drain():
                    yield data
                    started = True
                if done:
                    break
                await updated.wait()
            try:
                _check_answer(answer, attempt_session)
                data = writer.finish()
            except Exception as error:
                if not started:
                    raise
                yield writer.write_error(error_response(error, dialect.prompt_field))
                return
            yield data
            answer.delivered = True
        except Exception as error:
            answer.failure = error
            raise
        finally:
            answer.remove_waiter(updated.set)
            if answer.must_finish:  # it stays in flight until it has ended
                attempt_session.in_flight += 1
                answer.task.add_done_callback(attempt_session.end_request)

    async def _serve_route(
        self, handler: Path, request: Request, attempt_session: AttemptSession, agent: str
    ) -> Response:
        """Handle a request to an additional route of a dialect.

        The handler receives the path's parameters and the body or query.
        """
        body = await self._read_body(request) if request.method == "POST" else b""
        values = _parse_object(body) if body else dict(request.query_params)
        return _json_response(handler(request.path_params, values, attempt_session))

    async def _serve_traces(
        self, request: Request, attempt_session: AttemptSession, agent: str
    ) -> Response:
        hook = self.on_traces
        if hook is None:
            raise ApiError(404, "this gateway does not accept traces", headers=NO_RETRY)
        body = await self._read_body(request, gzip=True)
        kind = request.headers.get("content-type", "")
        encoding = request.headers.get("content-encoding", "")
        owner = Identity("", attempt_session.rollout_id, attempt_session.attempt_id)
        try:
            answer = await asyncio.to_thread(hook, body, kind, encoding, owner=owner)
        except (TutelageError, ValueError) as error:
            status = int(getattr(error, "status", 400))
            raise ApiError(status, f"cannot parse the traces: {error}") from error
        return Response(answer, media_type=kind or PROTOBUF)

    async def _serve_rewards(
        self, parse: ReadBody, request: Request, attempt_session: AttemptSession, agent: str
    ) -> Response:
        rewards, answer = parse(_parse_object(await self._read_body(request)), attempt_session)
        if attempt_session.closed:  # it ended while the body was read
            raise attempt_session.closed_error()
        key = request.headers.get("idempotency-key")
        return _json_response(attempt_session.posted.add(rewards, key, answer))

    async def _read_body(self, request: Request, *, gzip: bool = False) -> bytes:
        """Read the body of a request.

        Raises `ApiError` 413 if it is too large, and 415 if it is compressed and `gzip` is False.
        """
        limit = self._limits.body_bytes
        if not gzip and request.headers.get("content-encoding") not in (None, "", "identity"):
            raise ApiError(415, "content-encoding is not supported; send the body uncompressed")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                text, headers = f"the request body exceeds {limit} bytes", {"connection": "close"}
                raise ApiError(413, text, code="request_too_large", headers=headers)
        return bytes(body)


def _json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(orjson.dumps(content), status, headers, "application/json")


async def _health(request: Request) -> Response:
    """Return the health status of the gateway. No API key is required."""
    return _json_response({"status": "ok"})


async def _list_models(request: Request, attempt_session: AttemptSession, agent: str) -> Response:
    """Return all served models, or the model in the path, in the client's format.

    Raises `ApiError`.
    """
    names, requested = attempt_session.models(), request.path_params.get("model")
    if requested is not None and requested not in names:
        raise model_not_found(requested, names)
    if not _is_anthropic(request):
        fields = {"object": "model", "created": 0, "owned_by": "tutelage"}
        models = [{"id": name, **fields} for name in names]
        page: JSON = {"object": "list", "data": models}
    else:  # the release date of a model is unknown, so the epoch is used
        fields = {"type": "model", "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active"}
        models = [{"id": name, "display_name": name, **fields} for name in names]
        ends = {"first_id": names[0], "last_id": names[-1]}
        page = {"data": models, "has_more": False, **ends}
    return _json_response(page if requested is None else models[names.index(requested)])


# ---------------------------------------------------------------- requests and replies


def _is_anthropic(request: Request) -> bool:
    """Return True if a header or the path identifies an Anthropic client."""
    path = request.scope["path"]
    messages_path = "/v1/messages" in path or path.endswith("/messages")
    return messages_path or "anthropic-version" in request.headers


def _render_error(request: Request, error: ApiError) -> Response:
    if not _is_anthropic(request):
        return _json_response(error.body(), error.status, error.headers)
    body = error.anthropic_body() | {"request_id": _request_id(request)}
    return _json_response(body, error.status, error.headers)


def _request_id(request: Request) -> str:
    """Return the client's own request id, or a new one."""
    client_id = request.headers.get("x-request-id")
    if client_id is not None and len(client_id) <= MAX_ID:
        return client_id
    return request.scope.setdefault("tutelage.id", f"req_{_PROCESS}{next(_request_numbers):012x}")


def _set_request_id(request: Request, response: Response) -> None:
    """Add the request id to the response headers."""
    response.headers["x-request-id"] = _request_id(request)
    if _is_anthropic(request):
        response.headers["request-id"] = _request_id(request)


def _parse_object(body: bytes) -> JSON:
    """Parse a request body as a JSON object. Raises `ApiError` 400."""
    try:
        data = parse_json(body, max_length=len(body), loads=orjson.loads)
    except ValueError as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise bad_request("the body must be a JSON object", code="invalid_json")
    return cast("JSON", data)


async def _run_while_connected(request: Request, work: Awaitable[T]) -> T:
    """Return the result of `work`. Raises `ClientDisconnect` if the client disconnects first."""
    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        disconnect.cancel()
        task.cancel()


def _check_answer(answer: PendingCompletion, attempt_session: AttemptSession) -> PendingCompletion:
    """Return a finished answer, or raise its error if it failed or was cancelled."""
    if not answer.task.cancelled():
        answer.task.result()
        return answer
    if attempt_session.closed:
        raise attempt_session.closed_error()
    raise ApiError(500, "the request was cancelled")
