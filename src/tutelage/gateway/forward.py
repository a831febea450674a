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
from tutelage.engine.remote import RemoteChatClient, add_delta, read_completion
from tutelage.errors import RemoteError, UnreachableError
from tutelage.gateway.errors import ApiError
from tutelage.gateway.record import RecordedRequest
from tutelage.gateway.reply import event
from tutelage.seeds import SeedTree
from tutelage.types import JSON, Call, Message, Sampled, Sampling, StopReason

_LIMITS = ("max_tokens", "max_completion_tokens")
_FOR_TOKEN_IDS = ("return_token_ids", "logprobs")
_KEPT = 256
"""Calls whose usage the client remembers, until the gateway has read it."""
_RECORDED = frozenset({"choices", "prompt_token_ids", "id", "object", "created"})
"""Fields of a completion that are recorded by themselves."""
_SAMPLING = ("temperature", "top_p", "top_k", "stop", "seed")
_NOTHING = Sampled((), (), (), StopReason.STOP, 0)


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
        key = checked_api_key(api_key, "api_key")
        self._defaults, self._token_ids = dict(defaults or {}), True
        self._http = httpx2.AsyncClient(
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            timeout=httpx2.Timeout(timeout, connect=min(10.0, timeout)),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=256),
            mounts=DIRECT,
        )

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
            request = self._http.build_request("POST", self.url, json=sent | ids)
            response = await self._http.send(request, stream=True)
            if not (ids and response.status_code in (400, 422)):
                return sent | ids, response
            told = (await response.aread()).decode("utf-8", "replace")
            if not any(name in told for name in _FOR_TOKEN_IDS):
                return sent | ids, response
            self._token_ids = False


class ForwardedCall(RecordedRequest):
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
        self.sent, self.agent, self.api = dict(body), agent, upstream.dialect
        self.model_name = str(body.get("model"))
        self.began_ns = time.time_ns()
        self.whole: JSON = {}
        """The reply so far, as a chat completion; of a stream each `message` is its `delta`."""
        self.usage: tuple[int, int] | None = None
        """Prompt and completion tokens, once it has ended; None where the server counts none."""
        self.failure: BaseException | None = None
        self._upstream, self._on_end = upstream, on_end
        self._ended = False
        options = body.get("stream_options")
        self._shows_usage = bool(isinstance(options, dict) and options.get("include_usage"))
        if most is not None:
            named = [name for name in _LIMITS if isinstance(body.get(name), int)]
            self.sent |= {name: min(body[name], most) for name in named} or {_LIMITS[0]: most}

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
        self.whole |= {k: v for k, v in chunk.items() if k != "choices" and v is not None}
        with suppress(AttributeError, TypeError):  # what makes no sense goes through all the same
            add_delta(self.whole, {"choices": chunk.get("choices")})
        self._ended |= any(c.get("finish_reason") for c in _choices(chunk))

    def _unreachable(self, what: str, error: Exception) -> UnreachableError:
        words = f"{what} the server {self._upstream.url!r}: {type(error).__name__}: {error}"
        return UnreachableError(words)

    def _end(self, failure: BaseException | None) -> None:
        told, usage, found = self.whole.get("error"), self.whole.get("usage"), _choices(self.whole)
        self.failure = failure or (None if told is None else UnreachableError(f"{told}"))
        self.id = str(self.whole.get("id"))
        counts = cast("JSON", usage) if isinstance(usage, dict) else {}
        read, wrote = counts.get("prompt_tokens"), counts.get("completion_tokens")
        if isinstance(read, int) and isinstance(wrote, int):
            self.usage = read, wrote
        if self.failure is None:
            self.calls = tuple(self._call(index, choice) for index, choice in enumerate(found))
            self.finish_reasons = tuple(str(c.get("finish_reason") or "stop") for c in found)
        self._on_end(self)

    def partial(self) -> tuple[JSON, ...]:
        """Return what has come of each choice so far, as messages."""
        return tuple(map(_message, _choices(self.whole)))

    def asked(self, index: int) -> JSON:
        """See `RecordedRequest`; what the server said beside its choices is there too."""
        sent = self.sent
        limit = sent.get("max_completion_tokens", sent.get("max_tokens"))
        answered = {name: value for name, value in self.whole.items() if name not in _RECORDED}
        ends = [choice.get("finish_reason") for choice in _choices(self.whole)]
        return {
            "messages": sent.get("messages"),
            "tools": sent.get("tools") or [],
            "sampling": {**{n: sent.get(n) for n in _SAMPLING}, "max_tokens": limit},
            "constraint": None,
            "sent": {k: v for k, v in sent.items() if k not in ("messages", "tools")},
            "answered": {**answered, "finish_reason": ends[0]} if self.calls else None,
        }

    def _call(self, index: int, choice: JSON) -> Call:
        """Return the record of a choice; a message that cannot be read is on it raw."""
        said = _message(choice)
        try:
            completion = {**self.whole, "choices": [{**choice, "message": said}]}
            reply, sampled, prompt_ids = read_completion(completion, SeedTree(0))
        except (RemoteError, AttributeError, KeyError, TypeError, ValueError):
            reply, sampled, prompt_ids = Message("assistant", extra=said), _NOTHING, ()
        return Call(
            id=f"{self.id}-{index}" if index else self.id,
            agent=self.agent,
            index=index,
            messages=(),
            prompt_ids=prompt_ids,
            sampled=sampled,
            reply=reply,
            sampling=Sampling(),
            started=self.began_ns / 1e9,
            seconds=(time.time_ns() - self.began_ns) / 1e9,
            policy=None,
            usage=self.usage,
        )


def _choices(reply: JSON) -> list[JSON]:
    """Return the choices of a completion or a chunk that are objects."""
    found = reply.get("choices")
    listed = cast("list[Any]", found) if isinstance(found, list) else []
    return [cast("JSON", each) for each in listed if isinstance(each, dict)]


def _message(choice: JSON) -> JSON:
    """Return the message of a choice as far as it has come."""
    said = choice.get("message") or choice.get("delta")
    return cast("JSON", said) if isinstance(said, dict) else {}
