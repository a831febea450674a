"""Forward chat completions to another server with minimal changes.

Only the model name, the key and fields needed for the record are changed in the body and the reply:
the server itself rejects unsupported fields, and every field is recorded. Requests of other
dialects are parsed, and sent to the server by its `ChatClient`.
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
from tutelage.config.api_keys import validate_api_key
from tutelage.engine.remote import RemoteChatClient, add_delta, read_completion
from tutelage.errors import RemoteError, UnreachableError
from tutelage.gateway.errors import ApiError
from tutelage.gateway.record import RecordedRequest
from tutelage.gateway.reply import event
from tutelage.seeds import SeedTree
from tutelage.types import JSON, Call, Message, Sampled, Sampling, StopReason

_LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")
_TOKEN_ID_FIELDS = ("return_token_ids", "logprobs")
_KEPT_CALLS = 256
"""Number of calls whose usage the client keeps until the gateway has read it."""
_RECORDED = frozenset({"choices", "prompt_token_ids", "id", "object", "created"})
"""Fields of a completion that have their own place in the record."""
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "stop", "seed")
_EMPTY_SAMPLE = Sampled((), (), (), StopReason.STOP, 0)


class Upstream:
    """`ChatClient` for one model that forwards requests to another chat completions server."""

    dialect = "chat.completions"
    """The name of the dialect whose requests are forwarded."""

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
        """Set up the upstream server. `defaults` are values of omitted request fields; `timeout` is
        in seconds."""
        remote = RemoteChatClient(
            base_url, api_key, model, seeds=seeds, token_ids=True, keep=_KEPT_CALLS, timeout=timeout
        )
        self.chat = remote.chat
        self.url, self._model = f"{base_url.rstrip('/')}/chat/completions", model
        key = validate_api_key(api_key, "api_key")
        self._defaults, self._token_ids = dict(defaults or {}), True
        self._http = httpx2.AsyncClient(
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            timeout=httpx2.Timeout(timeout, connect=min(10.0, timeout)),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=256),
            mounts=DIRECT,
        )

    async def send(self, body: JSON) -> tuple[JSON, httpx2.Response]:
        """Send a request upstream; return the body as sent and the open response.

        Token ids are requested until the server rejects them. Raises `httpx2.HTTPError`.
        """
        sent = {**self._defaults, **body, "model": self._model}
        if sent.get("stream"):
            requested = sent.get("stream_options")
            options = cast("JSON", requested) if isinstance(requested, dict) else {}
            sent["stream_options"] = {**options, "include_usage": True}
        while True:
            id_fields = dict.fromkeys(_TOKEN_ID_FIELDS, True) if self._token_ids else {}
            request = self._http.build_request("POST", self.url, json=sent | id_fields)
            response = await self._http.send(request, stream=True)
            if not (id_fields and response.status_code in (400, 422)):
                return sent | id_fields, response
            error = (await response.aread()).decode("utf-8", "replace")
            if not any(name in error for name in _TOKEN_ID_FIELDS):
                return sent | id_fields, response
            self._token_ids = False


class ForwardedCall(RecordedRequest):
    """A call that is forwarded to an upstream server. Its reply is recorded as it arrives."""

    def __init__(
        self,
        upstream: Upstream,
        body: JSON,
        agent: str,
        limit: int | None,
        on_end: Callable[[ForwardedCall], None],
    ) -> None:
        """Prepare a call. Replies have at most `limit` tokens (None: no limit). `on_end` is called
        once."""
        self.sent, self.agent, self.api = dict(body), agent, upstream.dialect
        self.model_name = str(body.get("model"))
        self.began_ns = time.time_ns()
        self.reply: JSON = {}
        """The reply so far, as a chat completion; of a stream each `message` is its `delta`."""
        self.usage: tuple[int, int] | None = None
        """Prompt and completion tokens, once it has ended; None if the server reports none."""
        self.failure: BaseException | None = None
        self._upstream, self._on_end = upstream, on_end
        self._ended = False
        options = body.get("stream_options")
        self._shows_usage = bool(isinstance(options, dict) and options.get("include_usage"))
        if limit is not None:
            caps = [name for name in _LIMIT_FIELDS if isinstance(body.get(name), int)]
            self.sent |= {n: min(body[n], limit) for n in caps} or {_LIMIT_FIELDS[0]: limit}

    async def respond(self) -> Response:
        """Forward the call and return its response. Raises `UnreachableError`."""
        try:
            self.sent, response = await self._upstream.send(self.sent)
            media_type = response.headers.get("content-type", "application/json")
            if response.status_code < 400 and media_type.startswith("text/event-stream"):
                return StreamingResponse(self._stream_events(response), media_type=media_type)
            content = await response.aread()
        except BaseException as error:
            self._finish(error)
            if isinstance(error, httpx2.HTTPError):
                raise self._unreachable_error("cannot reach the server", error) from error
            raise
        kept = ("retry-after", "x-should-retry")
        headers = {n: response.headers[n] for n in kept if n in response.headers}
        try:
            parsed: Any = orjson.loads(content)
        except ValueError:
            parsed = {"error": "reply is not JSON"}
        self._add_chunk(parsed if isinstance(parsed, dict) else {"error": "reply is not an object"})
        self._finish(None)
        return Response(content, response.status_code, headers, media_type)

    async def _stream_events(self, response: httpx2.Response) -> AsyncGenerator[bytes]:
        """Yield the upstream stream events as they arrive."""
        rest, failure = b"", None
        try:
            async for chunk in response.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                if data := b"".join(line + b"\n" for line in lines if self._process_line(line)):
                    yield data
            if rest and self._process_line(rest):
                yield rest
            if not self._ended:
                failure = UnreachableError(f"the server {self._upstream.url!r} aborted its reply")
        except httpx2.HTTPError as error:
            failure = self._unreachable_error("incomplete reply from the server", error)
            yield event(ApiError(502, str(failure), code="upstream_error").body())
        except BaseException as error:
            failure = error
            raise
        finally:
            self._finish(failure)
            await response.aclose()

    def _process_line(self, line: bytes) -> bool:
        """Record a line of the upstream stream; return True if it is forwarded to the client.

        Usage is forwarded only if the client asked for it.
        """
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
        self._add_chunk(cast("JSON", chunk))
        return bool(self._shows_usage or chunk.get("choices") or "usage" not in chunk)

    def _add_chunk(self, chunk: JSON) -> None:
        self.reply |= {k: v for k, v in chunk.items() if k != "choices" and v is not None}
        with suppress(AttributeError, TypeError):  # malformed chunks are forwarded too
            add_delta(self.reply, {"choices": chunk.get("choices")})
        self._ended |= any(c.get("finish_reason") for c in _choices(chunk))

    def _unreachable_error(self, problem: str, error: Exception) -> UnreachableError:
        message = f"{problem} {self._upstream.url!r}: {type(error).__name__}: {error}"
        return UnreachableError(message)

    def _finish(self, failure: BaseException | None) -> None:
        error, usage, items = self.reply.get("error"), self.reply.get("usage"), _choices(self.reply)
        self.failure = failure or (None if error is None else UnreachableError(f"{error}"))
        self.id = str(self.reply.get("id"))
        counts = cast("JSON", usage) if isinstance(usage, dict) else {}
        prompt, sampled = counts.get("prompt_tokens"), counts.get("completion_tokens")
        if isinstance(prompt, int) and isinstance(sampled, int):
            self.usage = prompt, sampled
        if self.failure is None:
            self.calls = tuple(self._build_call(i, choice) for i, choice in enumerate(items))
            self.finish_reasons = tuple(str(c.get("finish_reason") or "stop") for c in items)
        self._on_end(self)

    def partial_messages(self) -> tuple[JSON, ...]:
        """Return the partial output, one message per choice."""
        return tuple(map(_message, _choices(self.reply)))

    def describe_choice(self, index: int) -> JSON:
        """Return a choice's request fields and sampling parameters, for the record.

        They include the other fields of the server's reply.
        """
        sent = self.sent
        limit = sent.get("max_completion_tokens", sent.get("max_tokens"))
        extra = {name: value for name, value in self.reply.items() if name not in _RECORDED}
        reasons = [choice.get("finish_reason") for choice in _choices(self.reply)]
        return {
            "messages": sent.get("messages"),
            "tools": sent.get("tools") or [],
            "sampling": {**{n: sent.get(n) for n in _SAMPLING_FIELDS}, "max_tokens": limit},
            "constraint": None,
            "sent": {k: v for k, v in sent.items() if k not in ("messages", "tools")},
            "answered": {**extra, "finish_reason": reasons[0]} if self.calls else None,
        }

    def _build_call(self, index: int, choice: JSON) -> Call:
        """Build the record of a choice. A message that cannot be parsed is recorded unchanged."""
        message = _message(choice)
        try:
            completion = {**self.reply, "choices": [{**choice, "message": message}]}
            reply, sampled, prompt_ids = read_completion(completion, SeedTree(0))
        except (RemoteError, AttributeError, KeyError, TypeError, ValueError):
            reply, sampled, prompt_ids = Message("assistant", extra=message), _EMPTY_SAMPLE, ()
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
    """Return the choices of a completion or chunk that are JSON objects."""
    choices = reply.get("choices")
    items = cast("list[Any]", choices) if isinstance(choices, list) else []
    return [cast("JSON", each) for each in items if isinstance(each, dict)]


def _message(choice: JSON) -> JSON:
    """Return the message of a choice, which may be incomplete."""
    message = choice.get("message") or choice.get("delta")
    return cast("JSON", message) if isinstance(message, dict) else {}
