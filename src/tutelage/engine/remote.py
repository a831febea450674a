"""Chat client for OpenAI-compatible servers, which records its calls.

Used for frozen agents, judges, prompt training, and policies that other servers sample. Messages
are sent unchanged and replies become `Call`s; token ids are recorded where the server reports them
(`return_token_ids` of vLLM and our gateway), otherwise they are empty, and such a call is never
used for training. The openai package sends, retries and streams; replies are read as OpenAI
documents them. If a server rejects a field by name, requests are adapted to it
(`server_fields.py`). `chat.py` is the client of our own engine.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Unpack, cast

from tutelage.bounded import DIRECT, replace_surrogates
from tutelage.config.api_keys import validate_api_key
from tutelage.engine.endpoint import NO_KEY, Endpoint, auth_options
from tutelage.engine.options import option_fields
from tutelage.engine.server_fields import ServerFields
from tutelage.errors import (
    ConfigError,
    ContextOverflowError,
    EngineError,
    MalformedReplyError,
    RemoteError,
    UnreachableError,
)
from tutelage.replies import split_thought
from tutelage.seeds import SeedTree
from tutelage.types import (
    JSON,
    UNBOUNDED,
    Call,
    ChatOptions,
    Constraint,
    Message,
    Sampled,
    StopReason,
    ToolCall,
)

if TYPE_CHECKING:
    import openai

OnText = Callable[[str], None]
OnFields = Callable[[JSON], None]
"""Callback that receives a piece of a thought, as the fields of a delta."""
Usage = tuple[int, int] | None
"""Prompt and completion tokens; None if the server reports no counts."""
_PATH = "/chat/completions"
_SHOWN = 200
"""Characters of a reply that an error shows."""
_PARTS, _RECORDED = "content_parts", ("content_parts", "tool_call_fields")
"""Keys of `Message.extra`: the content in parts, and the fields of a client's request that are kept
for the record only."""
_IN_A_PART = ("type", "text", "refusal", "image_url", "input_audio", "file")
_READ = frozenset({"role", "content", "tool_calls"})
"""Fields of a reply that a `Message` has itself; others go to its `extra`."""
_ENDS = {"length": StopReason.LENGTH, "content_filter": StopReason.CONTENT_FILTER}
_ABORTED = ("abort", "error", "insufficient_system_resource")
"""Finish reasons of vLLM, OpenRouter and DeepSeek for an aborted reply."""
_WHOLE = frozenset({"id", "type", "role", "format", "index", "finish_reason", "stop_reason"})
"""Text fields of a chunk that are complete; other texts come in pieces."""
_TOO_LONG = {"context_length_exceeded", "exceed_context_size_error"}
"""Error codes of servers for a prompt that exceeds the context."""
_TOO_LONG_WORDS = (
    "maximum context length", "exceeds the available context size", "prompt is too long:",
)  # fmt: skip
"""Phrases in such errors: OpenAI and vLLM, llama.cpp, Anthropic."""
_NOT_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout")
"""Names of the httpx errors after which no server has received the request."""


class RemoteChatClient:
    """Send chat requests to an OpenAI-compatible server and record them in `calls`.

    A client belongs to the event loop in which it is first used.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        model: str = "default",
        *,
        seeds: SeedTree | None = None,
        name: str = "remote",
        token_ids: bool = False,
        timeout: float = 600.0,
        attempts: int = 5,
        keep: int | None = None,
        fields: ServerFields | None = None,
        api: openai.AsyncOpenAI | None = None,
    ) -> None:
        """Create a client without connecting.

        With `token_ids`, token ids are requested until the server rejects that field, as most
        servers but vLLM and this package's own gateway do. `timeout` is in seconds per request,
        `attempts` includes the first one, `keep` limits the recorded calls. `api` is a connection
        shared with other clients. Raises `ConfigError` for a key that no header can carry.
        """
        self.calls: deque[Call] = deque(maxlen=keep)
        self._base_url, self._model = base_url.rstrip("/"), model
        self._server = f"the server {self._base_url + _PATH!r}"
        self._key, self._timeout = validate_api_key(api_key, "api_key"), timeout
        self._seeds = (seeds or SeedTree(0)).child("remote", name)
        self._token_ids, self._attempts = token_ids, max(1, attempts)
        self._fields = fields or ServerFields()
        self._api, self._shared = api, api is not None
        self._started = 0

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        on_text: OnText | None = None,
        on_fields: OnFields | None = None,
        **options: Unpack[ChatOptions],
    ) -> Call:
        """Send one chat request and record the call.

        `on_text` receives the reply's text as it arrives, `on_fields` its thoughts. Raises
        `ContextOverflowError` if the server reports one, `RemoteError` with the status of any other
        refusal, `UnreachableError` if there is no answer, `MalformedReplyError` for an invalid
        reply.
        """
        raw = options.get("prompt") is not None
        if raw or options["sampling"].max_thinking_tokens:
            action = "continue raw prompts" if raw else "limit thinking tokens"
            raise ConfigError(
                f"the chat completions API at {self._base_url + _PATH!r} cannot {action}; send the "
                "request to the model's server directly"
            )
        index, self._started = self._started, self._started + 1
        seeds = self._seeds.child("call", index)
        body = request_body(messages, options) | {"model": self._model}
        if self._token_ids:
            body |= {"return_token_ids": True, "logprobs": True}
        started, clock = time.time(), time.perf_counter()
        completion = await self._send(replace_surrogates(body), on_text, on_fields)
        try:
            reply, sampled, prompt = read_completion(completion, seeds)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            reason = f"an invalid chat completion ({error!r})"
            raise self._malformed_reply(reason, completion) from error
        call = Call(
            id=seeds.id("call"),
            index=index,
            messages=tuple(messages),
            prompt_ids=prompt,
            sampled=sampled,
            reply=reply,
            started=started,
            seconds=time.perf_counter() - clock,
            policy=None,
            thought=split_thought(reply.content or "")[0],
            model=self._model,
            answered_by=completion.get("model") or "",
            usage=_read_usage(completion.get("usage")),
            **option_fields(options),
        )
        self.calls.append(call)
        return call

    async def close(self) -> None:
        """Close the connections to the server, unless they are shared."""
        if self._api is not None and not self._shared:
            api, self._api = self._api, None
            await api.close()

    # ------------------------------------------------------------ sending

    async def _send(self, body: JSON, on_text: OnText | None, on_fields: OnFields | None) -> JSON:
        """Send a request without the fields that the server rejects, and return the response.

        The fields of the accepted request are remembered for later ones.
        """
        fields = replace(self._fields)
        while True:
            sent = fields.translate(body)
            try:
                if on_text is None:
                    reply = await self._post(sent)
                else:
                    reply = await self._stream(sent, on_text, on_fields)
                if not isinstance(reply, dict):
                    reason = f"{type(reply).__name__} instead of an object"
                    raise self._malformed_reply(reason, reply)
                completion = cast("JSON", reply)
                if completion.get("error"):
                    raise _to_error(self._server, completion["error"])
            except RemoteError as error:
                adapted = fields.adapt(error, sent)
                if adapted is None:
                    raise
                fields = adapted
            else:
                self._fields.adopt(fields)
                return completion

    async def _post(self, body: JSON, **stream: Any) -> Any:
        """Post a request and return the response as JSON, or as an open stream."""
        if self._api is None:
            self._api = connect(self._base_url, self._key, self._timeout, self._attempts)
        try:
            reply: Any = await self._api.post(
                _PATH, body=body, cast_to=object, options=auth_options(self._key), **stream
            )
            # The package returns a string if the content type is not JSON.
            return replace_surrogates(json.loads(reply) if isinstance(reply, str) else reply)
        except Exception as error:
            raise self._engine_error(error) from error

    async def _stream(self, body: JSON, on_text: OnText, on_fields: OnFields | None) -> JSON:
        """Pass a streamed reply to the callbacks and return the assembled completion."""
        import openai

        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        stream = await self._post(body, stream=True, stream_cls=openai.AsyncStream[object])
        choice: JSON = {"message": {"role": "assistant", "content": None}, "finish_reason": None}
        completion: JSON = {"choices": [choice]}
        async with stream:
            while True:
                try:
                    chunk = replace_surrogates(await anext(stream))
                except StopAsyncIteration:
                    break
                except Exception as error:
                    raise self._engine_error(error) from error
                try:
                    delta = add_chunk(completion, chunk)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    raise self._malformed_reply(f"an invalid chunk ({error!r})", chunk) from error
                extra = {k: v for k, v in delta.items() if k not in _READ and v not in (None, "")}
                if on_fields is not None and extra:
                    on_fields(extra)
                if delta.get("content"):
                    on_text(delta["content"])
        if choice["finish_reason"] is None:
            raise UnreachableError(
                f"{self._server}: the stream ended before the reply was complete"
            )
        return completion

    # ------------------------------------------------------------ errors

    def _malformed_reply(self, reason: str, reply: Any) -> MalformedReplyError:
        """Return the error for a 200 response that is not a completion, quoting its beginning."""
        text = reply if isinstance(reply, str) else json.dumps(reply, ensure_ascii=False)
        return MalformedReplyError(f"{self._server} answered 200 with {reason}: {text[:_SHOWN]!r}")

    def _engine_error(self, error: Exception) -> EngineError:
        """Convert an error of the openai package or of httpx to an `EngineError`."""
        import openai

        if isinstance(error, openai.APIStatusError):
            return _to_error(self._server, error.body, error.response)
        if isinstance(error, openai.APIError) and not isinstance(error, openai.APIConnectionError):
            return _to_error(self._server, error.body)  # reported in a stream
        if isinstance(error, ValueError):
            return self._malformed_reply(f"invalid JSON ({error})", getattr(error, "doc", ""))
        cause = error.__cause__ or error
        name = type(cause).__name__
        if name in _NOT_SENT:
            message = f"cannot reach {self._server}: {name}: {cause}"
            return UnreachableError(message, "connect")
        if "Timeout" in name:
            message = f"{self._server} did not answer within {self._timeout:g} seconds"
            return UnreachableError(message, "timeout")
        return UnreachableError(f"incomplete reply from {self._server}: {name}: {cause}")


def _to_error(server: str, body: object, response: Any = None) -> EngineError:
    """Convert an error response of a server, which may have status 200, to an exception."""
    error = cast("JSON", body) if isinstance(body, dict) else {}
    message = replace_surrogates(str(error.get("message") or body or ""))
    code = error.get("code")
    names = {str(code), str(error.get("type"))}
    if names & _TOO_LONG or any(phrase in message.lower() for phrase in _TOO_LONG_WORDS):
        return ContextOverflowError(f"{server} refused the prompt as too long: {message}")
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    if response is not None:
        status = int(response.status_code)
    refused = RemoteError(f"{server} answered {status}: {message[:500]}", status)
    refused.param, refused.code = _read_text(error.get("param")), _read_text(code)
    if response is not None:
        refused.retry_after = _parse_retry_after(response.headers)
        retried = response.request.headers.get("x-stainless-retry-count", "0") != "0"
        refused.final = retried or response.headers.get("x-should-retry") == "false"
    return refused


def _read_text(value: Any) -> str | None:
    """Return an error field if it is a non-numeric string, otherwise None."""
    return value if isinstance(value, str) and value and not value.isdecimal() else None


def _parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the server's requested retry delay in seconds, or None."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        with suppress(ValueError):
            return max(float(headers.get(name, "")) * unit, 0.0)
    with suppress(TypeError, ValueError, OverflowError):
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        return max(date.timestamp() - time.time(), 0.0)
    return None


# ---------------------------------------------------------------- requests and replies


def request_body(messages: Sequence[Message], options: ChatOptions) -> JSON:
    """Build the JSON body of a chat request."""
    sampling, tools = options["sampling"], options.get("tools", ())
    body: JSON = {
        "messages": [_to_json(message) for message in messages],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if sampling.max_tokens < UNBOUNDED:  # otherwise the server's own limit applies
        body["max_tokens"] = sampling.max_tokens
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if (seed := options.get("seed")) is not None:
        body["seed"] = seed
    constraint = options.get("constraint") or Constraint()
    if tools:
        body["tools"] = [t.to_dict() for t in tools]
        choice = constraint.tool_choice
        if choice in ("none", "required"):
            body["tool_choice"] = choice
        elif choice != "auto":
            body["tool_choice"] = {"type": "function", "function": {"name": choice}}
        if not constraint.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    schema = constraint.json_schema
    if schema == {"type": "object"}:
        body["response_format"] = {"type": "json_object"}
    elif schema is not None:
        reply_schema = {"name": "reply", "schema": schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": reply_schema}
    return body


def _to_json(message: Message) -> JSON:
    """Convert a message to JSON with its extra fields. Parts are kept unless all are text."""
    extra = {name: value for name, value in message.extra.items() if name not in _RECORDED}
    value: Any = message.extra.get(_PARTS)
    parts = [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
    if any(part.get("type") not in ("text", "refusal") for part in parts):
        # Send only the fields of a part that chat completions have.
        extra["content"] = [{k: part[k] for k in part if k in _IN_A_PART} for part in parts]
    return message.to_dict() | extra


def read_completion(data: JSON, seeds: SeedTree) -> tuple[Message, Sampled, tuple[int, ...]]:
    """Parse a chat completion into the reply, its sampled tokens, and the prompt's token ids.

    Token ids are empty if the server does not report them.

    Raises `RemoteError` if the server aborted the reply, and `KeyError`, `TypeError` and other
    errors of Python if the data is not a chat completion.
    """
    choice = data["choices"][0]
    message, ended = choice["message"], choice.get("finish_reason")
    if ended in _ABORTED:
        raise RemoteError(f"the server aborted its reply with the finish reason {ended!r}", 502)
    content = message.get("content")
    if not isinstance(content, str | None):
        raise TypeError(f"`content` is {type(content).__name__}, not a string")
    calls: list[ToolCall] = []
    for i, entry in enumerate(message.get("tool_calls") or ()):
        call = ToolCall.from_dict(entry)
        arguments = call.arguments or ("" if call.custom else "{}")
        id = call.id or seeds.child("tool", i).id("call")
        calls.append(replace(call, id=id, arguments=arguments))
    ids = tuple(int(i) for i in choice.get("token_ids") or ())
    prompt = tuple(int(i) for i in data.get("prompt_token_ids") or ())
    entries = (choice.get("logprobs") or {}).get("content") or ()
    logprobs = tuple(float(entry["logprob"]) for entry in entries)
    # A server may leave the end-of-turn token out of the log-probabilities: it is no text.
    if len(logprobs) != len(ids) or not all(map(math.isfinite, logprobs)):
        ids, logprobs, prompt = (), (), ()
    extra = {k: v for k, v in message.items() if k not in _READ and v is not None}
    reply = Message("assistant", content, tuple(calls), extra=extra)
    return reply, Sampled(ids, logprobs, logprobs, _ENDS.get(ended, StopReason.STOP), 0), prompt


def _read_usage(usage: Any) -> Usage:
    """Return the token counts that a server reports, converting floats such as 7.0."""
    counted = cast("JSON", usage) if isinstance(usage, dict) else {}
    counts = [counted.get(f"{kind}_tokens") for kind in ("prompt", "completion")]
    numbers = [int(n) for n in counts if isinstance(n, int | float) and n >= 0 and n % 1 == 0]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


def add_chunk(completion: JSON, chunk: JSON) -> JSON:
    """Merge a streamed chunk into the completion so far, and return the chunk's delta."""
    completion |= {k: v for k, v in chunk.items() if k != "choices" and v is not None}
    choice = completion["choices"][0]
    for part in chunk.get("choices") or ():
        if part.get("index") in (0, None):  # a request asks for one choice only
            delta = part.get("delta") or {}
            add_delta(choice["message"], delta)
            add_delta(choice, {k: v for k, v in part.items() if k != "delta"})
            return delta
    return {}


def add_delta(target: JSON, delta: Mapping[str, Any]) -> None:
    """Merge a streamed delta into `target`.

    Texts and lists grow; objects are merged, and so are list entries with an `index`, such as tool
    calls.
    """
    for name, value in delta.items():
        current = target.get(name)
        if isinstance(value, dict):
            target[name] = current if isinstance(current, dict) else {}
            add_delta(target[name], cast("JSON", value))
        elif isinstance(value, list):
            entries: list[Any] = current or []
            target[name] = entries
            for entry in cast("list[Any]", value):
                numbered = isinstance(entry, dict) and "index" in entry
                match = next((e for e in entries if _matches(e, entry)), None) if numbered else None
                if match is None:
                    entries.append(deepcopy(entry))
                else:
                    add_delta(match, entry)
        elif isinstance(value, str) and isinstance(current, str) and name not in _WHOLE:
            target[name] = current + value
        elif value is not None:
            target[name] = value


def _matches(current: Any, entry: JSON) -> bool:
    """Return True if a streamed list entry continues `current`: it has the same index and type.

    Later pieces of an entry may leave out the type.
    """
    if not isinstance(current, dict):
        return False
    existing = cast("JSON", current)
    kind = existing.get("type")
    return existing.get("index") == entry["index"] and entry.get("type", kind) == kind


# ---------------------------------------------------------------- connections


def connect(
    base_url: str, api_key: str | None, timeout: float, attempts: int = 5
) -> openai.AsyncOpenAI:
    """Create a client of the openai package. Raises `UnreachableError` if the URL is invalid.

    A client belongs to the event loop in which it is first used.
    """
    import openai

    try:
        return openai.AsyncOpenAI(
            api_key=api_key or NO_KEY,
            base_url=base_url,
            timeout=openai.Timeout(timeout, connect=min(10.0, timeout)),
            max_retries=attempts - 1,
            http_client=openai.DefaultAsyncHttpxClient(mounts=DIRECT),
        )
    except Exception as error:  # httpx raises an error of its own
        raise UnreachableError(f"invalid server URL {base_url!r}: {error}", "connect") from error


class RemoteServers:
    """Factory of clients for named servers. The clients of a server share a connection.

    A factory belongs to the event loop in which its clients are used; call `aclose` in that loop.
    """

    def __init__(self, servers: Mapping[str, Endpoint], *, timeout: float = 600.0) -> None:
        """Prepare clients of `servers` by name, without connecting. `timeout` is in seconds per
        request."""
        self._servers, self._timeout = dict(servers), timeout
        self._fields = {(s.base_url, s.model): ServerFields() for s in servers.values()}
        self._apis: dict[tuple[str, str | None], openai.AsyncOpenAI] = {}

    def __call__(self, name: str, seeds: SeedTree) -> RemoteChatClient:
        """Create a client of the server `name`."""
        server = self._servers[name]
        key = server.base_url, server.api_key
        if key not in self._apis:
            self._apis[key] = connect(*key, self._timeout)
        return RemoteChatClient(
            server.base_url,
            server.api_key,
            server.model,
            seeds=seeds,
            name=name,
            token_ids=server.token_ids,
            timeout=self._timeout,
            fields=self._fields[server.base_url, server.model],
            api=self._apis[key],
        )

    async def aclose(self) -> None:
        """Close the connections of all clients."""
        while self._apis:
            await self._apis.popitem()[1].close()
