"""Where the models of an attempt come from, and the record of what it asked them.

`EngineModelProvider` samples from an engine of this event loop, for the built-in agents.
`GatewayModelProvider` binds all the LLMs of a run behind one session an attempt, for agents that
ask over HTTP or by themselves: the policy is sampled by an engine that lives in the gateway's event
loop; a frozen LLM by a second one over the weights from before training; every other one is a
client of its server. `runner.py` opens and closes them; the gateway itself is `gateway/server.py`.
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
    """The models of one attempt: an engine's session, or none."""

    client: ChatClient | None
    """The main one, in this process."""
    resources: Mapping[str, Any] = {}
    """LLMs and tokenizers by resource name, ready to use."""
    posted: PostedRewards | None = None
    """Rewards that came by HTTP."""
    failure: EngineError | None = None
    """The latest failure of an engine in this attempt, which an agent may have swallowed."""
    lost: EngineError | None = None
    """The same while no answer has followed it. A prompt that is too long does not count: the
    engine is there."""

    def __init__(self, session: ChatSession | None = None) -> None:
        self.client = self._session = session
        self.own_time = AgentStopwatch(ENGINE_CLOCK.elapsed)
        """The attempt's clock, which stands still while a call of it waits or is sampled."""

    def env(self, mode: Mode) -> Mapping[str, str]:
        """Environment for an external agent."""
        return {}

    async def close(self, *, finish: bool = True) -> list[Call]:
        """Refuse further calls, cancel those that run, and give the record back.

        With `finish` what an agent began to read and left is sampled to its end before. A call's
        `policy` names what it would train; it is None where nothing is.
        """
        if self._session is None:
            return []
        self._session.close()
        return self._session.calls


class ModelProvider:
    """The models of a run: none, for agents whose run has no LLM at all."""

    def participant(self) -> AbstractAsyncContextManager[None]:
        """Around a rollout, for an engine whose schedule knows which rollouts there are."""
        return nullcontext()

    def open(self, rollout_id: str, attempt_id: str, seeds: SeedTree, order: int) -> _AttemptModels:
        """The models of one attempt. Raises `EngineError`."""
        return _AttemptModels()


@dataclass(frozen=True, slots=True)
class EngineModelProvider(ModelProvider):
    """One model for every attempt: an engine of the event loop that the rollouts are in."""

    engine: Engine
    codec: Codec

    def participant(self) -> AbstractAsyncContextManager[None]:
        """See `ModelProvider`."""
        return self.engine.participant()

    def open(self, rollout_id: str, attempt_id: str, seeds: SeedTree, order: int) -> _AttemptModels:
        """See `ModelProvider`."""
        return _AttemptModels(
            ChatSession(self.engine, self.codec, seeds=seeds, name=attempt_id, order=order)
        )


@dataclass(frozen=True, slots=True)
class PolicySource:
    """One policy to sample from: an engine in the gateway's loop, its codec, how to sample it.

    `engine` is None for one of an endpoint; `trains` is the policy's name, None for a frozen one.
    """

    engine: Engine | None
    codec: Codec
    sampling: Sampling
    trains: str | None

    def ruled(self, asked: ChatOptions) -> ChatOptions:
        """How a request is sampled: from the run's distribution, by no seed of the agent's, which
        would make one sample of all rollouts of a task, and as long as the agent asks for."""
        drawn = {name: getattr(self.sampling, name) for name in ("temperature", "top_p", "top_k")}
        return {**asked, "sampling": replace(asked["sampling"], **drawn), "seed": None}


Remote = Callable[[str, SeedTree], ChatClient]
"""Makes the client of a remote LLM for one attempt, from its resource name."""


@dataclass(frozen=True, slots=True)
class GatewayModelProvider(ModelProvider):
    """Models of a run, for attempts that play at the same time.

    `sources` has the engines by resource name: the policies and what is frozen. Everything else in
    `roles.remote` gets its client from `remote`.
    """

    gateway: Gateway
    resources: NamedResources
    roles: Roles
    sources: Mapping[str, PolicySource]
    remote: Remote | None = None
    max_tokens: int = 256
    """Tokens of a reply for which the agent named no limit."""
    remote_max_tokens: int | None = None
    """The same of what `remote` answers; None is `max_tokens`."""
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
        """What holds for requests to a model that are silent about it."""
        given, default = self.resources.get(name), Sampling(max_tokens=self.limit(name))
        return given.sampling(default) if isinstance(given, LLM) else default

    def limit(self, name: str) -> int:
        """Tokens of a reply for which the agent named no limit."""
        remote = None if name in self.sources else self.remote_max_tokens
        return remote or self.max_tokens

    def label(self, name: str) -> str:
        """What the LLM of a resource calls itself."""
        found = self.resources.get(name)
        return found.name if isinstance(found, LLM) else ""


class _GatewayAttempt(_AttemptModels):
    """An attempt's session, and the usage of its requests over all its models."""

    def __init__(self, models: GatewayModelProvider) -> None:
        super().__init__()
        self._models = models
        self._loop = models.gateway.loop
        self.clients: dict[str, _AttemptClient] = {}
        self.tickets = itertools.count()
        """Numbers the calls in the order of their start."""

    def bind(self, rollout_id: str, attempt_id: str) -> None:
        """Open the session, and bind the LLMs to it."""
        models = self._models
        main = models.roles.main or next(iter(self.clients))
        others: dict[str, ChatClient] = {n: c for n, c in self.clients.items() if n != main}
        # A label that the main one has too is the main one's: no judge answers in its place.
        names = [main, *({models.label(main)} - {"", main, *others})]
        for name, client in list(others.items()):
            if (label := models.label(name)) and label not in names:
                others.setdefault(label, client)
        self._door = models.gateway.open(
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
        self.posted = self._door.posted
        bound = {name: self._llm(name, client) for name, client in self.clients.items()}
        self.client = bound[main].client
        self.resources = {**models.tokenizers, **bound}

    def env(self, mode: Mode) -> Mapping[str, str]:
        """See `_AttemptModels`."""
        return self._door.env(mode=mode)

    async def close(self, *, finish: bool = True) -> list[Call]:
        """Close the session, and collect what came through it, in the order of time."""
        work = asyncio.run_coroutine_threadsafe(self._end(finish), self._loop)
        return await asyncio.wrap_future(work)

    async def _end(self, finish: bool) -> list[Call]:
        for client in self.clients.values():
            client.ended = True
        try:
            if finish:
                await self._door.finish()
        finally:
            await self._door.aclose()
        pairs = [pair for client in self.clients.values() for pair in await client.end()]
        pairs.sort(key=lambda pair: pair[0])
        # Several sessions count from 0 each: the record has one order for all. A call over HTTP has
        # the id that its client saw, by which spans and evaluations name it.
        seen = self._door.response_id
        return [replace(c, id=seen(c.id) or c.id, index=i) for i, (_, c) in enumerate(pairs)]

    def _llm(self, name: str, client: ChatClient) -> LLM:
        given = self._models.resources.get(name)
        llm = given if isinstance(given, LLM) else LLM(name)
        return replace(
            llm,
            endpoint=self._door.base_url,
            api_key=self._door.api_key,
            model=name,
            max_tokens=llm.max_tokens or self._models.limit(name),
            client=_LoopClient(client, self._loop, self.own_time),
            trainable=False,
            frozen=False,
        )


class _AttemptClient:
    """A model of one attempt: another server's LLM, recorded, and trained where it has a `source`.

    Failures of the engine are kept, whatever the agent makes of them, and once the attempt has
    ended nothing is asked any more.
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
            return await self._asked(self._client.chat(messages, **options))
        return await self._asked(self._sampled(messages, self._source.ruled(options)))

    async def _sampled(self, messages: Sequence[Message], options: ChatOptions) -> Call:
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

    async def _asked(self, work: Coroutine[Any, Any, Call]) -> Call:
        attempt, task = self._attempt, asyncio.current_task()
        if self.ended:
            work.close()
            raise EngineError("this attempt has ended; its models are closed")
        ticket = next(attempt.tickets)
        if task is not None:
            self._running.add(task)
        try:
            with attempt.own_time.paused():
                call = await work
        except EngineError as error:
            if not self.ended:
                self._failed(error)
            raise
        finally:
            if task is not None:
                self._running.discard(task)
        attempt.lost = None
        trains = None if self._source is None else self._source.trains
        self._calls.append((ticket, replace(call, policy=trains)))
        return call

    def _failed(self, error: EngineError) -> None:
        """Keep why a request was not answered; a server that takes no more is asked too much."""
        if not isinstance(error, ContextOverflowError):
            self._attempt.failure = self._attempt.lost = error

    async def end(self) -> list[tuple[int, Call]]:
        """Cancel what runs, and return the calls that were answered, each with its ticket."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(set(self._running), timeout=5.0)
        return self._calls


class _SampledClient(_AttemptClient):
    """A session on an engine.

    How a policy is sampled (temperature, top-p, top-k, seed) is the run's decision, since its
    losses are computed for that distribution; the length and the stop strings are the agent's.
    """

    def __init__(
        self, attempt: _GatewayAttempt, source: PolicySource, session: ChatSession
    ) -> None:
        super().__init__(attempt, session, source)
        self.codec, self.finishes = source.codec, source.trains is not None
        self._session, self._ruled = session, source.ruled

    async def chat(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        messages: Sequence[Message],
        *,
        on_token: OnToken | None = None,
        on_prompt: OnPrompt | None = None,
        **options: Unpack[ChatOptions],
    ) -> Call:
        """Send one request; see `ChatClient`."""
        ruled = self._ruled(options)
        return await self._asked(
            self._session.chat(messages, on_token=on_token, on_prompt=on_prompt, **ruled)
        )

    def _failed(self, error: EngineError) -> None:
        super()._failed(error)
        self._attempt.failure = error

    async def end(self) -> list[tuple[int, Call]]:
        pairs = await super().end()
        self._session.close()
        return pairs


@dataclass(frozen=True, slots=True)
class _LoopClient:
    """A client that lives in another event loop, from whichever loop it is asked.

    The way there and back may wait for an engine that computes, so it is part of the call.
    """

    client: ChatClient
    loop: asyncio.AbstractEventLoop
    own_time: AgentStopwatch

    async def chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Call:
        """Send one request; cancelling it cancels it there."""
        work = self.client.chat(messages, **options)
        with self.own_time.paused():
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))
