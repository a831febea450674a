"""The client behind `tutelage serve --upstream`: requests go on as they came.

Other models are asked by `remote.py`; this client is left until the gateway forwards by itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import httpx2

from tutelage.bounded import DIRECT, HTTPResponse, fetch, whole_characters
from tutelage.config.api_keys import checked_api_key
from tutelage.engine.answered import Answered, answered, call_id_of, read_completion
from tutelage.engine.asked import passed_on, written
from tutelage.engine.options import recorded_options
from tutelage.engine.refusals import (
    judged,
    malformed,
    never_again,
    refusal,
    retry_after,
    worth_asking_again,
)
from tutelage.engine.server_fields import ServerFields
from tutelage.engine.streamed import (
    Listener,
    OnEntries,
    OnFields,
    OnText,
    message_so_far,
    stream_completion,
)
from tutelage.errors import (
    ConfigError,
    RemoteError,
    UnreachableError,
)
from tutelage.replies import split_thought
from tutelage.seeds import SeedTree
from tutelage.types import (
    JSON,
    Call,
    ChatOptions,
    Message,
)

log = logging.getLogger(__name__)
_BROKEN = (httpx2.ReadError, httpx2.RemoteProtocolError, httpx2.DecodingError)
"""Errors of a reply from a server that was reached."""
_LONGEST_PAUSE = 30.0
_TOLD = 1024
"""Calls of which more than the record is remembered."""
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=256)


class PassingClient:
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
        defaults: Mapping[str, Any] | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        words: ServerFields | None = None,
    ) -> None:
        """`token_ids` asks the server for them, and no more once it has refused: others than vLLM
        and ours do.

        `timeout` is in seconds for one request, `attempts` counts the first one, `extra` are
        further fields of each request, `keep` bounds the calls on record. `passes` has the gateway
        hand on requests as they came, with `defaults` for fields of which they say nothing.
        Raises `ConfigError` for a key that no header can carry.
        """
        self.calls: list[Call] = []
        self._url, self._model = f"{base_url.rstrip('/')}/chat/completions", model
        self._key, self._timeout = checked_api_key(api_key, "api_key"), timeout
        self._seeds = (seeds or SeedTree(0)).child("remote", name)
        self._token_ids, self._attempts = token_ids, max(1, attempts)
        self._extra, self._keep, self._transport = dict(extra or {}), keep, transport
        self.passes, self._defaults = passes, dict(defaults or {})
        self._started = 0
        self._words = words or ServerFields()
        self._http: httpx2.AsyncClient | None = None
        self._answered: OrderedDict[str, Answered] = OrderedDict()
        self._endless = False
        """Whether it was said that the server leaves out why a reply ends."""

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        on_text: OnText | None = None,
        on_entries: OnEntries | None = None,
        on_fields: OnFields | None = None,
        passed: Mapping[str, Any] | None = None,
        **options: Unpack[ChatOptions],
    ) -> Call:
        """Send one request and record it; `on_text` gets its text as it comes, `on_fields` its
        thoughts and tool calls, `on_entries` the server's log-probabilities. `passed` is a request
        that a client sent, which goes on as it came.

        Raises `ContextOverflowError` when the server says so, `RemoteError` with the status of any
        other refusal, `UnreachableError` when nobody answers, `MalformedReplyError` for nonsense.
        """
        raw = options.get("prompt") is not None
        if raw or options["sampling"].max_thinking_tokens:
            cannot = "continue raw prompts" if raw else "limit thinking tokens"
            raise ConfigError(
                f"the model at {self._url!r} is served by chat completions, which cannot {cannot}; "
                "send the request to its server directly"
            )
        index, self._started = self._started, self._started + 1
        seeds = self._seeds.child("call", index)
        if passed is None:
            body = written(messages, options)
        else:
            body = self._defaults | passed_on(passed, messages, options)
        body["model"] = self._model
        if self._token_ids:
            body |= {"return_token_ids": True, "logprobs": True}
        body |= self._extra
        started, begun = time.time(), time.perf_counter()
        listener = None
        if on_text is not None:
            call_id = partial(call_id_of, seeds)
            listener = Listener(on_text, on_entries, on_fields, call_id)
        asked = {name for name, value in (passed or {}).items() if value}
        sent, response, data = await self._spoken(body, seeds, listener, asked)
        try:
            reply, sampled, prompt = read_completion(data, seeds, functions="functions" in sent)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            what = f"an invalid chat completion ({error!r})"
            raise malformed(response, self._url, what) from error
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
            thought=split_thought(reply.content or "")[0],
            **recorded_options(options),
        )
        told = answered(data, sent, logprobs=passed is None or bool(passed.get("logprobs")))
        if told.finish_reason is None and not self._endless:
            self._endless = True
            log.warning("the server %r returns no finish reason; recording it as stop", self._url)
        self.calls.append(call)
        self._answered[call.id] = told
        if self._keep is not None:
            del self.calls[: max(0, len(self.calls) - self._keep)]
            # The caller reads these after the record is done.
            while len(self._answered) > max(self._keep, _TOLD if self.passes else 0):
                self._answered.popitem(last=False)
        return call

    def answered(self, call: Call) -> Answered | None:
        """What the server said of a call beside its message; None where nobody remembers."""
        return self._answered.get(call.id)

    def usage(self, call: Call) -> tuple[int, int] | None:
        """Prompt and completion tokens of a call as the server counted them."""
        told = self.answered(call)
        return None if told is None else told.tokens

    def logprobs(self, call: Call) -> list[JSON] | None:
        """The log-probabilities of a call's tokens in the server's words."""
        told = self.answered(call)
        return None if told is None else told.logprobs

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            client, self._http = self._http, None
            await client.aclose()

    # ------------------------------------------------------------ sending

    async def _spoken(
        self, body: JSON, seeds: SeedTree, listener: Listener | None, asked: Set[str]
    ) -> tuple[JSON, HTTPResponse, JSON]:
        """A request in the server's words, which are kept once it took them, and its answer, with
        the completion that it is.
        `asked` names what a client wants itself."""
        words = replace(self._words)
        while True:
            sent = words.spoken(body, asked)
            try:
                response, data = await self._post(sent, seeds, listener)
            except RemoteError as refused:
                other = words.after(refused, sent)
                if other is None:
                    raise
                words = other
            else:
                self._words.learn(words)
                return sent, response, data

    async def _post(
        self, body: JSON, seeds: SeedTree, listener: Listener | None
    ) -> tuple[HTTPResponse, JSON]:
        """The answer; asks again while that may help."""
        client, url, body = self._client(), self._url, whole_characters(body)
        for attempt in range(self._attempts):
            last = attempt == self._attempts - 1
            headers = {"x-stainless-retry-count": str(attempt)}
            wait: float | None = None
            try:
                if listener is None:
                    answer = await fetch(client, "POST", url, json=body, headers=headers)
                else:
                    answer = await stream_completion(client, url, body, headers, listener)
                response, data = judged(answer, url)
            except httpx2.InvalidURL as error:
                raise UnreachableError(f"invalid server URL {url!r}: {error}") from error
            except httpx2.ReadTimeout as error:
                # It has the request, and had all the time that it may take.
                raise UnreachableError(
                    f"the server {self._url!r} did not answer within {self._timeout:g} seconds"
                ) from error
            except httpx2.HTTPError as error:
                if last:
                    broken = isinstance(error, _BROKEN)
                    what = "incomplete reply from" if broken else "cannot reach"
                    raise UnreachableError(
                        f"{what} the server {self._url!r}: {type(error).__name__}: {error}"
                    ) from error
            else:
                if response.status_code < 400:
                    return response, data
                if last or not worth_asking_again(response):
                    refused = refusal(response, self._url)
                    if isinstance(refused, RemoteError):
                        refused.final = attempt > 0 or never_again(response)
                        refused.part = message_so_far(data)
                    raise refused
                wait = retry_after(response)
            if wait is None:
                jitter = 0.5 + seeds.child("retry", attempt).python().random()
                wait = float(0.5 * 2**attempt * jitter)
            await asyncio.sleep(min(_LONGEST_PAUSE, wait))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _client(self) -> httpx2.AsyncClient:
        if self._http is None:
            headers = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
            self._http = httpx2.AsyncClient(
                headers=headers,
                timeout=httpx2.Timeout(self._timeout, connect=min(10.0, self._timeout)),
                limits=_LIMITS,
                transport=self._transport,
                mounts=DIRECT,
            )
        return self._http
