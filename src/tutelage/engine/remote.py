"""A chat client of any OpenAI-compatible server: other people's models, with the same record.

Used for frozen agents, judges, prompt training, and policies that are sampled elsewhere. Messages
go out as they are and come back as `Call`s; token ids are recorded where the server gives them
(vLLM's and our gateway's `return_token_ids`), else they are empty, and nothing of such a call is
ever trained. A server that
is overloaded or away is asked again with growing pauses; one that refuses a field by its name is
asked in its own words (`server_fields.py`). `chat.py` is the client of our own engine.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

import httpx2

from tutelage.bounded import HTTPResponse, fetch
from tutelage.engine.endpoint import Endpoint
from tutelage.engine.options import recorded_options
from tutelage.engine.server_fields import ServerFields
from tutelage.engine.streamed import Listener, OnEntries, OnText, stream_completion
from tutelage.errors import (
    ConfigError,
    ContextOverflowError,
    EngineError,
    RemoteError,
    UnreachableError,
)
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

_AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
"""Statuses after which the same request may succeed."""
_OURS = frozenset({"role", "content", "tool_calls", "refusal"})
"""Fields of a reply that are read; others stay with it."""
_LONGEST_PAUSE = 30.0
_TOLD = 1024
"""Calls of which more than the record is remembered."""
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=256)


class RemoteChatClient:
    """A `ChatClient` over `POST {base_url}/chat/completions`; `calls` is its record.

    It belongs to the event loop in which it is first used.
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
        extra: Mapping[str, Any] | None = None,
        keep: int | None = None,
        passes: bool = False,
        transport: httpx2.AsyncBaseTransport | None = None,
        words: ServerFields | None = None,
    ) -> None:
        """`token_ids` asks the server for them, and no more once it has refused: others than vLLM
        and ours do.

        `timeout` is in seconds for one request, `attempts` counts the first one, `extra` are
        further fields of each request, `keep` bounds the calls on record. `passes` has the gateway
        hand on what of a request it does not read itself.
        """
        self.calls: list[Call] = []
        self._url, self._model = f"{base_url.rstrip('/')}/chat/completions", model
        self._key, self._timeout = api_key, timeout
        self._seeds = (seeds or SeedTree(0)).child("remote", name)
        self._token_ids, self._attempts = token_ids, max(1, attempts)
        self._extra, self._keep, self._transport = dict(extra or {}), keep, transport
        self.passes = passes
        self._started = 0
        self._words = words or ServerFields()
        self._http: httpx2.AsyncClient | None = None
        self._usage: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._logprobs: OrderedDict[str, list[JSON]] = OrderedDict()

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        on_text: OnText | None = None,
        on_entries: OnEntries | None = None,
        passed: Mapping[str, Any] | None = None,
        **options: Unpack[ChatOptions],
    ) -> Call:
        """Send one request and record it; `on_text` gets its text as it comes, `on_entries` the
        server's log-probabilities of it, and `passed` are fields that are sent as they are.

        Raises `ContextOverflowError` when the server says so, `RemoteError` with the status of any
        other refusal, `UnreachableError` when nobody answers, `EngineError` for nonsense.
        """
        if options.get("prompt") is not None or options["sampling"].max_thinking_tokens is not None:
            raise ConfigError(
                f"the model behind {self._url!r} is asked by chat completions, which continue no "
                "raw prompt and take no limit of thinking tokens; ask its server itself"
            )
        index, self._started = self._started, self._started + 1
        seeds = self._seeds.child("call", index)
        body = self._body(messages, options) | dict(passed or {})
        started, begun = time.time(), time.perf_counter()
        listener = None if on_text is None else Listener(on_text, on_entries)
        data = await self._spoken(body, seeds, listener)
        try:
            reply, sampled, prompt = _read(data, seeds)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(
                f"the server {self._url!r} answered what is no chat completion: {error!r}"
            ) from error
        call = Call(
            id=seeds.id("call"),
            index=index,
            messages=tuple(messages),
            prompt_ids=prompt,
            sampled=sampled,
            reply=reply,
            started=started,
            seconds=time.perf_counter() - begun,
            policy=None,
            **recorded_options(options),
        )
        self._record(call, data)
        return call

    def usage(self, call: Call) -> tuple[int, int] | None:
        """Prompt and completion tokens of a call as the server counted them."""
        return self._usage.get(call.id)

    def logprobs(self, call: Call) -> list[JSON] | None:
        """The log-probabilities of a call's tokens in the server's words."""
        return self._logprobs.get(call.id)

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            client, self._http = self._http, None
            await client.aclose()

    # ------------------------------------------------------------ sending

    def _body(self, messages: Sequence[Message], options: ChatOptions) -> JSON:
        sampling, tools = options["sampling"], options.get("tools", ())
        body: JSON = {
            "model": self._model,
            "messages": [m.to_dict(extra=True) for m in messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.max_tokens < UNBOUNDED:  # else the server's own limit holds
            body["max_tokens"] = sampling.max_tokens
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if (seed := options.get("seed")) is not None:
            body["seed"] = seed
        if tools:
            body["tools"] = [t.to_dict() for t in tools]
        if (constraint := options.get("constraint")) is not None:
            body |= _constraint_fields(constraint, bool(tools))
        if self._token_ids:
            body |= {"return_token_ids": True, "logprobs": True}
        return body | self._extra

    async def _spoken(self, body: JSON, seeds: SeedTree, listener: Listener | None) -> JSON:
        """The answer to a request in the server's words, which are kept once it took them."""
        words = replace(self._words)
        while True:
            sent = words.spoken(body)
            try:
                data = await self._post(sent, seeds, listener)
            except RemoteError as refusal:
                other = words.after(refusal, sent)
                if other is None:
                    raise
                words = other
            else:
                self._words.learn(words)
                return data

    async def _post(self, body: JSON, seeds: SeedTree, listener: Listener | None) -> JSON:
        """The answer; asks again while that may help."""
        for attempt in range(self._attempts):
            last = attempt == self._attempts - 1
            headers = {"x-stainless-retry-count": str(attempt)}
            wait: float | None = None
            try:
                response = await self._asked(body, headers, listener)
            except httpx2.ReadTimeout as error:
                # It has the request, and had all the time that it may take.
                raise UnreachableError(
                    f"the server {self._url!r} has not answered within {self._timeout:g} seconds"
                ) from error
            except httpx2.HTTPError as error:
                if last:
                    raise UnreachableError(
                        f"cannot reach the server {self._url!r}: {type(error).__name__}: {error}"
                    ) from error
            else:
                if response.status_code < 400:
                    return _object(response, self._url)
                if last or response.status_code not in _AGAIN or _never(response):
                    refused = _refusal(response, self._url)
                    if isinstance(refused, RemoteError):
                        refused.final = attempt > 0 or _never(response)
                    raise refused
                wait = _retry_after(response)
            if wait is None:
                jitter = 0.5 + seeds.child("retry", attempt).python().random()
                wait = min(_LONGEST_PAUSE, 0.5 * 2**attempt * jitter)
            await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def _asked(
        self, body: JSON, headers: dict[str, str], listener: Listener | None
    ) -> HTTPResponse:
        client, url = self._client(), self._url
        if listener is None:
            return await fetch(client, "POST", url, json=body, headers=headers)
        return await stream_completion(client, url, body, headers, listener)

    def _client(self) -> httpx2.AsyncClient:
        if self._http is None:
            headers = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
            self._http = httpx2.AsyncClient(
                headers=headers,
                timeout=httpx2.Timeout(self._timeout, connect=min(10.0, self._timeout)),
                limits=_LIMITS,
                transport=self._transport,
            )
        return self._http

    def _record(self, call: Call, data: JSON) -> None:
        self.calls.append(call)
        usage = data.get("usage")
        if isinstance(usage, dict):
            counted = cast("JSON", usage)
            pair = (counted.get("prompt_tokens"), counted.get("completion_tokens"))
            if isinstance(pair[0], int) and isinstance(pair[1], int):
                self._usage[call.id] = (pair[0], pair[1])
        entries = (data["choices"][0].get("logprobs") or {}).get("content")
        if self.passes and entries:
            self._logprobs[call.id] = entries
        if self._keep is not None:
            del self.calls[: max(0, len(self.calls) - self._keep)]
            # Who asked reads these after the record is done.
            for told in (self._usage, self._logprobs):
                while len(told) > max(self._keep, _TOLD if self.passes else 0):
                    told.popitem(last=False)


class RemoteServers:
    """Clients of named servers, a new one for each attempt, over connections that all share.

    It belongs to the event loop in which its clients are used; `aclose` there closes them all.
    """

    def __init__(self, servers: Mapping[str, Endpoint], *, timeout: float = 600.0) -> None:
        """`timeout` is in seconds for one request."""
        self._servers, self._timeout = dict(servers), timeout
        self._words = {(s.base_url, s.model): ServerFields() for s in servers.values()}
        self._transports: dict[str, httpx2.AsyncBaseTransport] = {}

    def __call__(self, name: str, seeds: SeedTree) -> RemoteChatClient:
        """A client of the server `name`."""
        server = self._servers[name]
        transport = self._transports.get(server.base_url)
        if transport is None:
            transport = self._transports[server.base_url] = httpx2.AsyncHTTPTransport(
                limits=_LIMITS
            )
        return RemoteChatClient(
            server.base_url,
            server.api_key,
            server.model,
            seeds=seeds,
            name=name,
            token_ids=server.token_ids,
            timeout=self._timeout,
            transport=transport,
            words=self._words[server.base_url, server.model],
        )

    async def aclose(self) -> None:
        """Close the connections."""
        while self._transports:
            _, transport = self._transports.popitem()
            await transport.aclose()


def _constraint_fields(constraint: Constraint, tools: bool) -> JSON:
    fields: JSON = {}
    choice = constraint.tool_choice
    if tools and choice in ("none", "required"):
        fields["tool_choice"] = choice
    elif tools and choice != "auto":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice}}
    if tools and not constraint.parallel_tool_calls:
        fields["parallel_tool_calls"] = False
    schema = constraint.json_schema
    if schema == {"type": "object"}:
        fields["response_format"] = {"type": "json_object"}
    elif schema is not None:
        wanted = {"name": "reply", "schema": schema, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": wanted}
    return fields


def _object(response: HTTPResponse, url: str) -> JSON:
    try:
        data = response.json()
    except ValueError as error:
        raise EngineError(f"the server {url!r} answered what is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise EngineError(f"the server {url!r} answered {type(data).__name__} instead of an object")
    return cast("JSON", data)


def _refusal(response: HTTPResponse, url: str) -> EngineError:
    """What the server's error means here."""
    message, code = response.text[:500], None
    try:
        told = response.json()["error"]
        message, code = str(told["message"]), told.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # not OpenAI's form: the text says what it can
    if code == "context_length_exceeded" or "maximum context length" in message:
        return ContextOverflowError(f"the server {url!r} refused the prompt as too long: {message}")
    status = response.status_code
    refused = RemoteError(f"the server {url!r} answered {status}: {message}", status)
    refused.retry_after = _retry_after(response)
    return refused


def _never(response: HTTPResponse) -> bool:
    return response.headers.get("x-should-retry") == "false"


def _retry_after(response: HTTPResponse) -> float | None:
    try:
        wait = float(response.headers["retry-after"])
    except (KeyError, ValueError):
        return None
    return min(max(wait, 0.0), _LONGEST_PAUSE)


def _read(data: JSON, seeds: SeedTree) -> tuple[Message, Sampled, tuple[int, ...]]:
    """The reply, its tokens, and the prompt's; ids are empty where the server gives none."""
    choice = data["choices"][0]
    message = choice["message"]
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise TypeError(f"content is {type(content).__name__}")
    calls = tuple(
        ToolCall(
            str(c.get("id") or seeds.child("tool", i).id("call")),
            str(c["function"]["name"]),
            str(c["function"]["arguments"]),
        )
        for i, c in enumerate(message.get("tool_calls") or ())
    )
    ids = tuple(int(i) for i in choice.get("token_ids") or ())
    entries = (choice.get("logprobs") or {}).get("content") or ()
    logprobs = tuple(float(e["logprob"]) for e in entries)
    prompt = tuple(int(i) for i in data.get("prompt_token_ids") or ())
    # A server may leave the end-of-turn token out of the log-probabilities: it is no text.
    if len(logprobs) != len(ids):
        ids, logprobs, prompt = (), (), ()
    ended = choice.get("finish_reason")
    reason = StopReason.LENGTH if ended == "length" else StopReason.STOP
    more = {k: v for k, v in message.items() if k not in _OURS and v is not None}
    reply = Message("assistant", content, calls, extra=more)
    return reply, Sampled(ids, logprobs, logprobs, reason, 0), prompt
