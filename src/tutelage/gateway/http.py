"""The few things that the endpoints need of ASGI: bodies with limits, JSON, server-sent events.

Plain ASGI instead of request and response objects, because this is the path of every model call:
see `benchmarks/gateway`. `app.py` is what uses it.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator, Mapping
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

import orjson
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from tutelage.bounded import parse_json
from tutelage.gateway.errors import ApiError, invalid
from tutelage.gateway.limits import GatewayLimits
from tutelage.types import JSON

T = TypeVar("T")
_CLOSE: Mapping[str, str] = {"connection": "close"}
_NAMED = "tutelage.headers"
"""Where a request's headers are kept by name; most are asked for, and clients send many."""
_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_READ_ON = 8
"""At most this multiple of the limit of a body is read."""


def request_headers(scope: Scope) -> Mapping[bytes, bytes]:
    """The headers of a request by their lower-case names, the first where there are several."""
    named: Mapping[bytes, bytes] | None = scope.get(_NAMED)
    if named is None:
        named = scope[_NAMED] = dict(reversed(list(scope["headers"])))
    return named


def names_anthropic(scope: Scope) -> bool:
    """Whether a request says that it is one of Anthropic's API."""
    return b"anthropic-version" in request_headers(scope)


def query(scope: Scope) -> JSON:
    """The parameters after the path."""
    text = scope.get("query_string", b"").decode("latin-1")
    return dict(parse_qsl(text, keep_blank_values=True)) if text else {}


async def read_body(scope: Scope, receive: Receive, limits: GatewayLimits) -> bytes:
    """The body. Raises `ApiError` 413 when it is too large and 408 when it takes too long.

    One that is too large is read on for a while and thrown away: a client that is still sending
    when the connection closes sees a broken pipe instead of the answer.
    """
    limit, seconds = limits.body_bytes, limits.body_seconds
    declared = request_headers(scope).get(b"content-length")
    # uvicorn has refused what is no number.
    if declared is not None and declared.isdigit() and int(declared) > _READ_ON * limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0

    async def whole() -> bytes:
        nonlocal size
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientDisconnect
            part: bytes = message.get("body", b"")
            size += len(part)
            more = message.get("more_body", False)
            if size > (_READ_ON * limit if more else limit):
                raise _too_large(limit)
            if not more:
                return b"".join((*parts, part)) if parts else part
            if size > limit:
                parts.clear()
            else:
                parts.append(part)

    try:
        return await within(seconds, whole())
    except TimeoutError:
        if size > limit:
            raise _too_large(limit) from None
        raise ApiError(
            408, f"the request body was not received within {seconds:g} seconds", headers=_CLOSE
        ) from None


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which has this time from where it first has to wait. Most need not, and
    a clock costs more than they do. Raises `TimeoutError`."""
    try:
        waits = work.send(None)
    except StopIteration as done:
        return done.value
    async with asyncio.timeout(seconds):
        return await _resumed(work, waits)


@types.coroutine
def _resumed(work: Coroutine[Any, Any, T], waits: Any) -> Generator[Any, Any, T]:
    """Continue a coroutine that waits, as `yield from` does with one that has not begun."""
    while True:
        try:
            try:
                told = yield waits
            except BaseException as error:
                waits = work.throw(error)
            else:
                waits = work.send(told)
        except StopIteration as done:
            return done.value


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413, f"the request body exceeds {limit} bytes", code="request_too_large", headers=_CLOSE
    )


def json_object(body: bytes) -> JSON:
    """The JSON object that a body is. Raises `ApiError` 400."""
    try:
        data = parse_json(body, longest=len(body), loads=orjson.loads)
    except ValueError as error:
        raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise invalid("the body must be a JSON object", code="invalid_json")
    return cast("JSON", data)


async def send_json(
    send: Send, status: int, data: Any, headers: Mapping[str, str] | None = None
) -> None:
    """A whole JSON response."""
    await send_bytes(send, status, orjson.dumps(data), "application/json", headers)


async def send_bytes(
    send: Send,
    status: int,
    body: bytes,
    content_type: str,
    headers: Mapping[str, str] | None = None,
) -> None:
    """A whole response of any type."""
    sent = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    if headers:
        sent += [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": body})


DONE = b"data: [DONE]\n\n"
"""What ends a stream of OpenAI's APIs."""


def event(data: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    line = b"data: " + orjson.dumps(data) + b"\n\n"
    return line if name is None else b"event: " + name.encode() + b"\n" + line


class EventStream:
    """A response of server-sent events; begins with the first bytes. A client that reads nothing
    for `seconds` counts as gone."""

    def __init__(self, send: Send, seconds: float) -> None:
        self.begun = False
        self._send, self._seconds = send, seconds

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send some events."""
        try:
            await within(self._seconds, self._write(data, last))
        except TimeoutError:
            raise ClientDisconnect from None

    async def _write(self, data: bytes, last: bool) -> None:
        if not self.begun:
            self.begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
