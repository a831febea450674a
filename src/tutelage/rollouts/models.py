"""The models of an attempt, and the record of its calls.

`EngineModelProvider` samples from an engine of this event loop, for the built-in agents.
`GatewayModelProvider` serves all the LLMs of a run in one session per attempt, for agents that use
HTTP or own clients: the policy is sampled by an engine in the gateway's event loop; a frozen LLM by
a second engine with the weights before training; every other LLM is a client of its server.
`runner.py` opens and closes them; the gateway is in `gateway/server.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Unpack

from tutelage.engine.chat import ChatSession
from tutelage.engine.protocol import Engine, OnPrompt, OnToken
from tutelage.engine.stopwatch import ENGINE_CLOCK, AgentStopwatch
from tutelage.errors import ContextOverflowError, EngineError
from tutelage.policy.codec import Codec
from tutelage.resources import LLM, NamedResources, Roles
from tutelage.seeds import SeedTree
from tutelage.types import Call, ChatClient, ChatOptions, Message, Mode, Sampling

if TYPE_CHECKING:
    from tutelage.gateway import Gateway
    from tutelage.gateway.rewards import PostedRewards


class _AttemptModels:
    """The models of one attempt: a session on an engine, or no model."""

    client: ChatClient | None
    """Client of the main model in this process."""
    resources: Mapping[str, Any] = {}
    """LLMs and tokenizers by resource name, ready to use."""
    posted: PostedRewards | None = None
    """Rewards received over HTTP."""
    failure: EngineError | None = None
    """The latest engine failure in this attempt, which an agent may have caught."""
    lost: EngineError | None = None
    """The latest engine failure that no answer has followed, without overlong prompts."""

    def __init__(self, session: ChatSession | None = None) -> None:
        self.client = self._session = session
        self.own_time = AgentStopwatch(ENGINE_CLOCK.elapsed)
        """The attempt's clock, stopped while a call waits or is sampled."""

    def env(self, mode: Mode) -> Mapping[str, str]:
        """Return environment variables for an external agent."""
        return {}

    async def close(self, *, finish: bool = True) -> list[Call]:
        """Refuse further calls, cancel running ones, and return all recorded calls.

        With `finish`, streams that the agent stopped reading are first sampled to their end. The
        `policy` of a call is the name of the policy trained by the call, or None.
        """
        if self._session is None:
            return []
        self._session.close()
        return self._session.calls


class ModelProvider:
    """Provider of the models of a run. The base class provides no models."""

    def participant(self) -> AbstractAsyncContextManager[None]:
        """Return the context manager of a rollout, for engines that schedule rollouts."""
        return nullcontext()

    def open(self, rollout_id: str, attempt_id: str, seeds: SeedTree, order: int) -> _AttemptModels:
        """Open the models of one attempt. Raises `EngineError` if a model is not available."""
        return _AttemptModels()


@dataclass(frozen=True, slots=True)
class EngineModelProvider(ModelProvider):
    """Provider of one engine, in the event loop of the rollouts, for all attempts."""

    engine: Engine
    codec: Codec

    def participant(self) -> AbstractAsyncContextManager[None]:
        """Return the context manager of a rollout from the engine."""
        return self.engine.participant()

    def open(self, rollout_id: str, attempt_id: str, seeds: SeedTree, order: int) -> _AttemptModels:
        """Open a session on the engine."""
        return _AttemptModels(
            ChatSession(self.engine, self.codec, seeds=seeds, name=attempt_id, order=order)
        )


@dataclass(frozen=True, slots=True)
class PolicySource:
    """A policy to sample from: engine, codec and sampling parameters.

    `engine` runs in the gateway's event loop, or is None for an endpoint; `trains` is the name of
    the trained policy, or None for a frozen policy.
    """

    engine: Engine | None
    codec: Codec
    sampling: Sampling
    trains: str | None

    def merge(self, options: ChatOptions) -> ChatOptions:
        """Return request options with the run's temperature, top-p and top-k, and without a seed.

        A seed of the agent would make all rollouts of a task equal.
        """
        params = {name: getattr(self.sampling, name) for name in ("temperature", "top_p", "top_k")}
        return {**options, "sampling": replace(options["sampling"], **params), "seed": None}


Remote = Callable[[str, SeedTree], ChatClient]
"""Function that creates the client of a remote LLM for one attempt, from its resource name."""


@dataclass(frozen=True, slots=True)
class GatewayModelProvider(ModelProvider):
    """Provider of models behind the gateway, for concurrent attempts.

    `sources` has the engines of policies and frozen LLMs by resource name. Every other LLM in
    `roles.remote` gets its client from `remote`.
    """

    gateway: Gateway
    resources: NamedResources
    roles: Roles
    sources: Mapping[str, PolicySource]
    remote: Remote | None = None
    max_tokens: int = 256
    """Default limit of a reply in tokens."""
    remote_max_tokens: int | None = None
    """Default limit of replies of `remote` in tokens; None is `max_tokens`."""
    token_budget: int | None = None
    tokenizers: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def open(self, rollout_id: str, attempt_id: str, seeds: SeedTree, order: int) -> _AttemptModels:
        """Open a session for an attempt."""
        attempt = _GatewayAttempt(self)
        for place, (name, source) in enumerate(self.sources.items()):
            # The first one draws as the only one would; the others from streams of their own.
            branch = seeds if place == 0 else seeds.child("llm", name)
            if source.engine is not None:
                label = f"{attempt_id}/{name}"
                session = ChatSession(
                    source.engine, source.codec, seeds=branch, name=label, order=order
                )
                attempt.clients[name] = _SampledClient(attempt, source, session)
        for name in self.roles.remote:
            if self.remote is not None:
                client = self.remote(name, seeds.child("llm", name))
                attempt.clients[name] = _AttemptClient(attempt, client, self.sources.get(name))
        attempt.bind(rollout_id, attempt_id)
        return attempt

    def sampling(self, name: str) -> Sampling:
        """Return the default sampling parameters of a model."""
        given, default = self.resources.get(name), Sampling(max_tokens=self.limit(name))
        return given.sampling(default) if isinstance(given, LLM) else default

    def limit(self, name: str) -> int:
        """Return the default maximum tokens of a reply."""
        remote = None if name in self.sources else self.remote_max_tokens
        return remote or self.max_tokens

    def label(self, name: str) -> str:
        """Return the `name` of an LLM resource, or an empty string for other resources."""
        found = self.resources.get(name)
        return found.name if isinstance(found, LLM) else ""


class _GatewayAttempt(_AttemptModels):
    """The gateway session of an attempt, with all its models."""

    def __init__(self, models: GatewayModelProvider) -> None:
        super().__init__()
        self._models = models
        self._loop = models.gateway.loop
        self.clients: dict[str, _AttemptClient] = {}
        self.tickets = itertools.count()
        """Numbers of calls in the order of their start."""

    def bind(self, rollout_id: str, attempt_id: str) -> None:
        """Open the session, and set it as the endpoint of the LLMs."""
        models = self._models
        main = models.roles.main or next(iter(self.clients))
        others: dict[str, ChatClient] = {n: c for n, c in self.clients.items() if n != main}
        # A label that the main one has too is the main one's: no judge answers in its place.
        names = [main, *({models.label(main)} - {"", main, *others})]
        for name, client in list(others.items()):
            if (label := models.label(name)) and label not in names:
                others.setdefault(label, client)
        self._gateway_session = models.gateway.open(
            rollout_id,
            attempt_id,
            self.clients[main],
            clients=others,
            # One model answers to any name; of several, a wrong name must not be the policy.
            names=names if others else None,
            model=main,
            sampling=models.sampling(main),
            token_budget=models.token_budget,
        )
        self.posted = self._gateway_session.posted
        bound = {name: self._bind_llm(name, client) for name, client in self.clients.items()}
        self.client = bound[main].client
        self.resources = {**models.tokenizers, **bound}

    def env(self, mode: Mode) -> Mapping[str, str]:
        """Return environment variables for an external agent."""
        return self._gateway_session.env(mode=mode)

    async def close(self, *, finish: bool = True) -> list[Call]:
        """Close the session, and return its calls by start time."""
        work = asyncio.run_coroutine_threadsafe(self._close_session(finish), self._loop)
        return await asyncio.wrap_future(work)

    async def _close_session(self, finish: bool) -> list[Call]:
        """Close the session in the gateway's loop, and return its calls."""
        for client in self.clients.values():
            client.ended = True
        try:
            if finish:
                await self._gateway_session.finish()
        finally:
            await self._gateway_session.aclose()
        pairs = [pair for client in self.clients.values() for pair in await client.end()]
        pairs.sort(key=lambda pair: pair[0])
        # Several sessions count from 0 each: the record has one order for all. A call over HTTP has
        # the id that its client saw, by which spans and evaluations name it.
        seen = self._gateway_session.response_id
        return [replace(c, id=seen(c.id) or c.id, index=i) for i, (_, c) in enumerate(pairs)]

    def _bind_llm(self, name: str, client: ChatClient) -> LLM:
        """Return the LLM resource with the endpoint and key of the session."""
        given = self._models.resources.get(name)
        llm = given if isinstance(given, LLM) else LLM(name)
        return replace(
            llm,
            endpoint=self._gateway_session.base_url,
            api_key=self._gateway_session.api_key,
            model=name,
            max_tokens=llm.max_tokens or self._models.limit(name),
            client=_LoopClient(client, self._loop, self.own_time),
            trainable=False,
            frozen=False,
        )


class _AttemptClient:
    """A client of a remote model that records its calls; with a `source` the model is trained.

    Engine failures are kept even if the agent catches them, and requests after the attempt's end
    are refused.
    """

    def __init__(
        self, attempt: _GatewayAttempt, client: ChatClient, source: PolicySource | None
    ) -> None:
        self._attempt, self._client, self._source = attempt, client, source
        self.ended = False
        self._running: set[asyncio.Task[Any]] = set()
        self._calls: list[tuple[int, Call]] = []

    async def chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Call:
        """Send one request; see `ChatClient`."""
        if self._source is None:
            return await self._record_call(self._client.chat(messages, **options))
        return await self._record_call(self._sample_remote(messages, self._source.merge(options)))

    async def _sample_remote(self, messages: Sequence[Message], options: ChatOptions) -> Call:
        """Send a request to the endpoint of a trained policy. Raises `EngineError` without token
        ids."""
        if options.get("constraint") is not None:
            raise EngineError(
                "constraints are not supported for a trained policy that is sampled at an endpoint"
            )
        call = await self._client.chat(messages, **options)
        if not call.sampled.token_ids:
            raise EngineError(
                "the endpoint of a trained policy returned no token IDs with log-probabilities "
                "(`return_token_ids`, as in vLLM and `tutelage serve`)"
            )
        return call

    async def _record_call(self, request: Coroutine[Any, Any, Call]) -> Call:
        """Await a call, and record the call or its engine failure."""
        attempt, task = self._attempt, asyncio.current_task()
        if self.ended:
            request.close()
            raise EngineError("this attempt has ended; its models are closed")
        ticket = next(attempt.tickets)
        if task is not None:
            self._running.add(task)
        try:
            with attempt.own_time.pause():
                call = await request
        except EngineError as error:
            if not self.ended:
                self._record_failure(error)
            raise
        finally:
            if task is not None:
                self._running.discard(task)
        attempt.lost = None
        trains = None if self._source is None else self._source.trains
        self._calls.append((ticket, replace(call, policy=trains)))
        return call

    def _record_failure(self, error: EngineError) -> None:
        """Record an engine failure, except an overlong prompt."""
        if not isinstance(error, ContextOverflowError):
            self._attempt.failure = self._attempt.lost = error

    async def end(self) -> list[tuple[int, Call]]:
        """Cancel running calls, and return the completed calls with their tickets."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(set(self._running), timeout=5.0)
        return self._calls


class _SampledClient(_AttemptClient):
    """A client that samples from an engine session.

    The run decides how a policy is sampled (temperature, top-p, top-k, seed), since its losses are
    computed for that distribution; the agent sets the length and the stop strings.
    """

    def __init__(
        self, attempt: _GatewayAttempt, source: PolicySource, session: ChatSession
    ) -> None:
        super().__init__(attempt, session, source)
        self.codec, self.finishes = source.codec, source.trains is not None
        self._session, self._apply_sampling = session, source.merge

    async def chat(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        messages: Sequence[Message],
        *,
        on_token: OnToken | None = None,
        on_prompt: OnPrompt | None = None,
        **options: Unpack[ChatOptions],
    ) -> Call:
        """Send one request; see `ChatClient`."""
        return await self._record_call(
            self._session.chat(
                messages, on_token=on_token, on_prompt=on_prompt, **self._apply_sampling(options)
            )
        )

    def _record_failure(self, error: EngineError) -> None:
        super()._record_failure(error)
        self._attempt.failure = error

    async def end(self) -> list[tuple[int, Call]]:
        pairs = await super().end()
        self._session.close()
        return pairs


@dataclass(frozen=True, slots=True)
class _LoopClient:
    """A client whose requests run in another event loop.

    The transfer between loops may wait for an engine that computes, so it counts as part of the
    call.
    """

    client: ChatClient
    loop: asyncio.AbstractEventLoop
    own_time: AgentStopwatch

    async def chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Call:
        """Send one request in the event loop of the client. Cancellation is forwarded."""
        work = self.client.chat(messages, **options)
        with self.own_time.pause():
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))
