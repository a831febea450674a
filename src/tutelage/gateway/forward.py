"""A chat completion that goes on to another server of chat completions as it came.

Body and reply go through but for the model's name, the key, and what the record needs: the server
refuses what it does not take, and nothing of either is read that is not recorded. Requests of other
dialects are read, and asked of the server by its `ChatClient`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import httpx2
import orjson
from starlette.responses import Response, StreamingResponse

from tutelage.bounded import DIRECT
from tutelage.config.api_keys import checked_api_key
from tutelage.engine.remote import RemoteChatClient
from tutelage.errors import UnreachableError
from tutelage.gateway.errors import ApiError
from tutelage.gateway.reply import event
from tutelage.seeds import SeedTree
from tutelage.types import JSON, Call, Message, Sampled, Sampling, StopReason, ToolCall

_LIMITS = ("max_tokens", "max_completion_tokens")
_FOR_TOKEN_IDS = ("return_token_ids", "logprobs")
_KEPT = 256
"""Calls whose usage the client remembers, until the gateway has read it."""
_TEXTS = frozenset({
    "content", "refusal", "reasoning", "reasoning_content", "arguments", "input", "text", "summary",
})  # fmt: skip
"""Fields of a delta that go on with the next one; others come whole."""
_ENDS = {"length": StopReason.LENGTH, "content_filter": StopReason.CONTENT_FILTER}


class Upstream:
    """A server of chat completions, and the model that it is asked for; a `ChatClient` too."""

    dialect = "chat.completions"
    """The name of the dialect whose requests go on as they came."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        model: str,
        *,
        seeds: SeedTree | None = None,
        defaults: Mapping[str, Any] | None = None,
        timeout: float = 600.0,
    ) -> None:
        """`defaults` are fields of a request where it is silent; `timeout` is in seconds."""
        remote = RemoteChatClient(
            base_url, api_key, model, seeds=seeds, token_ids=True, keep=_KEPT, timeout=timeout
        )
        self.chat = remote.chat
        self.url, self._model = f"{base_url.rstrip('/')}/chat/completions", model
        self._key, self._timeout = checked_api_key(api_key, "api_key"), timeout
        self._defaults, self._token_ids = dict(defaults or {}), True
        self._http: httpx2.AsyncClient | None = None

    async def send(self, body: JSON) -> tuple[JSON, httpx2.Response]:
        """Send a request; returns it as it was sent, and the reply, which is open.

        Token ids are asked for until the server refuses them. Raises `httpx2.HTTPError`.
        """
        sent = {**self._defaults, **body, "model": self._model}
        if sent.get("stream"):
            asked = sent.get("stream_options")
            options = cast("JSON", asked) if isinstance(asked, dict) else {}
            sent["stream_options"] = {**options, "include_usage": True}
        while True:
            ids = dict.fromkeys(_FOR_TOKEN_IDS, True) if self._token_ids else {}
            request = self._client().build_request("POST", self.url, json=sent | ids)
            response = await self._client().send(request, stream=True)
            if not (ids and response.status_code in (400, 422)):
                return sent | ids, response
            told = (await response.aread()).decode("utf-8", "replace")
            if not any(name in told for name in _FOR_TOKEN_IDS):
                return sent | ids, response
            self._token_ids = False

    def _client(self) -> httpx2.AsyncClient:
        if self._http is None:
            self._http = httpx2.AsyncClient(
                headers={} if self._key is None else {"authorization": f"Bearer {self._key}"},
                timeout=httpx2.Timeout(self._timeout, connect=min(10.0, self._timeout)),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=256),
                mounts=DIRECT,
            )
        return self._http


class ForwardedCall:
    """A call that goes on as it came, and what is known of it so far."""

    def __init__(
        self,
        upstream: Upstream,
        body: JSON,
        agent: str,
        most: int | None,
        on_end: Callable[[ForwardedCall], None],
    ) -> None:
        """`most` bounds the tokens of the reply, None for no bound. `on_end` is called once."""
        self.sent, self.agent = dict(body), agent
        self.model = str(body.get("model"))
        self.began_ns = time.time_ns()
        self.whole: JSON = {}
        """The reply so far, as a chat completion; of a stream each `message` is its `delta`."""
        self.failure: BaseException | None = None
        self._upstream, self._on_end = upstream, on_end
        self._ended = False
        options = body.get("stream_options")
        self._shows_usage = bool(isinstance(options, dict) and options.get("include_usage"))
        if most is not None:
            named = [name for name in _LIMITS if isinstance(body.get(name), int)]
            self.sent |= {name: min(body[name], most) for name in named or ()}
            self.sent |= {} if named else {_LIMITS[0]: most}

    async def respond(self) -> Response:
        """Send the call on; returns the reply as it comes. Raises `UnreachableError`."""
        try:
            self.sent, response = await self._upstream.send(self.sent)
            kind = response.headers.get("content-type", "application/json")
            if response.status_code < 400 and kind.startswith("text/event-stream"):
                return StreamingResponse(self._events(response), media_type=kind)
            content = await response.aread()
        except BaseException as error:
            self._end(error)
            if isinstance(error, httpx2.HTTPError):
                raise self._unreachable("cannot reach", error) from error
            raise
        names = ("retry-after", "x-should-retry")
        headers = {n: response.headers[n] for n in names if n in response.headers}
        try:
            read: Any = orjson.loads(content)
        except ValueError:
            read = {"error": "the reply is not JSON"}
        self._add(read if isinstance(read, dict) else {"error": "the reply is no object"})
        self._end(None)
        return Response(content, response.status_code, headers, kind)

    async def _events(self, response: httpx2.Response) -> AsyncGenerator[bytes]:
        """Yield the events of a stream as they come."""
        rest, failure = b"", None
        try:
            async for part in response.aiter_bytes():
                *lines, rest = (rest + part).split(b"\n")
                if passed := b"".join(line + b"\n" for line in lines if self._passes(line)):
                    yield passed
            if rest and self._passes(rest):
                yield rest
            if not self._ended:
                failure = UnreachableError(f"the server {self._upstream.url!r} aborted its reply")
        except httpx2.HTTPError as error:
            failure = self._unreachable("incomplete reply from", error)
            yield event(ApiError(502, str(failure), code="upstream_error").body())
        except BaseException as error:
            failure = error
            raise
        finally:
            self._end(failure)
            await response.aclose()

    def _passes(self, line: bytes) -> bool:
        """Take a line of a stream; returns whether it goes on: usage does where it is asked for."""
        if not line.startswith(b"data:"):
            return True
        data = line.removeprefix(b"data:").strip()
        try:
            chunk: Any = orjson.loads(data)
        except ValueError:
            self._ended |= data == b"[DONE]"
            return True
        if not isinstance(chunk, dict):
            return True
        self._add(cast("JSON", chunk))
        return bool(self._shows_usage or chunk.get("choices") or "usage" not in chunk)

    def _add(self, chunk: JSON) -> None:
        with suppress(AttributeError, TypeError):  # what makes no sense goes through all the same
            merge(self.whole, chunk)
        self._ended |= any(c.get("finish_reason") for c in choices(chunk))

    def _unreachable(self, what: str, error: Exception) -> UnreachableError:
        words = f"{what} the server {self._upstream.url!r}: {type(error).__name__}: {error}"
        return UnreachableError(words)

    def _end(self, failure: BaseException | None) -> None:
        told = self.whole.get("error")
        self.failure = failure or (None if told is None else UnreachableError(f"{told}"))
        self._on_end(self)


def merge(whole: JSON, more: Mapping[str, Any]) -> None:
    """Add a chunk to what has come of a reply: texts go on, objects with an `index` are told apart
    by it, and other lists grow."""
    for name, value in more.items():
        known = whole.get(name)
        if isinstance(value, str) and isinstance(known, str) and name in _TEXTS:
            whole[name] = known + value
        elif isinstance(value, dict):
            whole[name] = known if isinstance(known, dict) else {}
            merge(whole[name], cast("JSON", value))
        elif isinstance(value, list):
            listed = whole[name] = known if isinstance(known, list) else []
            for each in cast("list[Any]", value):
                at = each.get("index") if isinstance(each, dict) else None
                if at is None:
                    listed.append(each)
                    continue
                same = [e for e in listed if e.get("index") == at]
                if not same:
                    same = [{}]
                    listed.append(same[0])
                merge(same[0], each)
        elif value is not None or name not in whole:
            whole[name] = value


def choices(reply: JSON) -> list[JSON]:
    """Return the choices of a completion or a chunk that are objects."""
    found = reply.get("choices")
    listed = cast("list[Any]", found) if isinstance(found, list) else []
    return [cast("JSON", each) for each in listed if isinstance(each, dict)]


def message_of(choice: JSON) -> JSON:
    """Return the message of a choice as far as it has come."""
    said = choice.get("message") or choice.get("delta")
    return cast("JSON", said) if isinstance(said, dict) else {}


def read_call(call: ForwardedCall, choice: JSON, index: int) -> Call:
    """Return a choice as the record of a call; what cannot be read stays raw beside its message."""
    sent, told = call.sent.get("messages"), message_of(choice)
    listed = [cast("JSON", m) for m in cast("list[Any]", sent or ()) if isinstance(m, dict)]
    rest = {k: v for k, v in told.items() if k not in ("role", "content") and v is not None}
    try:
        made = tuple(ToolCall.from_dict(each) for each in rest.get("tool_calls") or ())
        rest.pop("tool_calls", None)
    except (AttributeError, KeyError, TypeError):
        made = ()
    content = told.get("content")
    if content is not None and not isinstance(content, str):
        content, rest["content"] = None, content
    ids, logprobs = _tokens(choice)
    prompt = call.whole.get("prompt_token_ids") if ids else None
    reason = _ENDS.get(str(choice.get("finish_reason")), StopReason.STOP)
    return Call(
        id=f"{call.whole.get('id')}-{index}" if index else str(call.whole.get("id")),
        agent=call.agent,
        index=index,
        messages=tuple(Message(str(m.get("role")), extra=m) for m in listed),
        prompt_ids=tuple(prompt or ()),
        sampled=Sampled(ids, logprobs, logprobs, reason, 0),
        reply=Message("assistant", content, made, extra=rest),
        sampling=Sampling(),
        started=call.began_ns / 1e9,
        seconds=(time.time_ns() - call.began_ns) / 1e9,
        policy=None,
    )


def _tokens(choice: JSON) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The token ids of a choice with their log-probabilities; empty unless each has one."""
    try:
        entries = (choice.get("logprobs") or {}).get("content") or ()
        ids = tuple(int(i) for i in choice.get("token_ids") or ())
        logprobs = tuple(float(entry["logprob"]) for entry in entries)
    except (AttributeError, KeyError, TypeError, ValueError):
        return (), ()
    return (ids, logprobs) if len(ids) == len(logprobs) else ((), ())
