"""Where the LLMs of an attempt come from: a session on the engine behind the attempt's own door.

`PolicyModels` binds the resources of a run. The policy is sampled by an engine that lives in the
gateway's event loop; a frozen LLM by a second one over the weights from before training; every
other one is a client of its server. All of them are reached through one door an attempt, which
knows whose calls it lets through, or in this process without HTTP. `live.py` opens and closes it;
the gateway itself is `gateway/server.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from tutelage.agents.own_time import OwnTime
from tutelage.engine.chat import ChatSession
from tutelage.engine.protocol import Engine, OnToken
from tutelage.errors import ContextOverflowError, EngineError
from tutelage.policy.codec import Codec
from tutelage.resources import LLM, NamedResources, Roles
from tutelage.seeds import SeedTree
from tutelage.types import Call, ChatClient, Constraint, Message, Sampling, ToolSpec

if TYPE_CHECKING:
    from tutelage.gateway import Gateway


class Seat(Protocol):
    """What one attempt was given."""

    @property
    def resources(self) -> Mapping[str, Any]:
        """LLMs and tokenizers by resource name, ready to use."""
        ...

    @property
    def env(self) -> Mapping[str, str]:
        """Environment for an external agent."""
        ...

    async def close(self) -> list[Call]:
        """Refuse further calls, cancel those that run, and give the record back.

        A call's `policy` names what it would train; it is None where nothing is.
        """
        ...

    @property
    def failure(self) -> EngineError | None:
        """The latest failure of an engine in this attempt, which an agent may have swallowed."""
        ...

    @property
    def lost(self) -> EngineError | None:
        """The failure after which no model of this attempt answered any more."""
        ...

    @property
    def own_time(self) -> OwnTime:
        """The attempt's clock, which stands still while a call of it waits or is sampled."""
        ...


class Models(Protocol):
    """Makes seats."""

    def open(self, rollout_id: str, attempt_id: str, seeds: SeedTree, order: int) -> Seat:
        """A seat for one attempt."""
        ...


class NoModels:
    """For agents whose run has no LLM at all."""

    def open(self, rollout_id: str, attempt_id: str, seeds: SeedTree, order: int) -> Seat:
        """A seat without anything."""
        return _Empty()


class _Empty:
    resources: Mapping[str, Any] = {}
    env: Mapping[str, str] = {}
    failure: EngineError | None = None
    lost: EngineError | None = None

    def __init__(self) -> None:
        self.own_time = OwnTime()

    async def close(self) -> list[Call]:
        return []


@dataclass(frozen=True, slots=True)
class Source:
    """One policy to sample from: an engine in the gateway's loop, its codec, how to sample it.

    `trains` is the policy's name, None for a frozen one.
    """

    engine: Engine
    codec: Codec
    sampling: Sampling
    trains: str | None


@dataclass(slots=True)
class Asked:
    """What the requests of an attempt came to, over all its models."""

    tickets: Iterator[int] = field(default_factory=itertools.count)
    """Numbers the calls in the order of their start."""
    failure: EngineError | None = None
    """The latest one."""
    lost: EngineError | None = None
    """The same while no answer has followed it. A prompt that is too long is none of these: the
    engine is there."""
    own_time: OwnTime = field(default_factory=OwnTime)
    """The attempt's clock, which stands still during them."""

    def answered(self) -> None:
        """A request was answered."""
        self.lost = None

    def failed(self, error: EngineError) -> None:
        """A request was not."""
        self.failure = error
        if not isinstance(error, ContextOverflowError):
            self.lost = error


class AttemptClient:
    """A session of one attempt that the run keeps in hand.

    How a policy is sampled (temperature, top-p, top-k) is the run's decision, since its losses are
    computed for that distribution; the length and the stop strings are the agent's. Failures of the
    engine are kept, whatever the agent makes of them, and after `end` nothing is sampled.
    """

    def __init__(
        self, source: Source, seeds: SeedTree, name: str, order: int, asked: Asked
    ) -> None:
        """`asked` is shared by all clients of the attempt."""
        self.codec = source.codec
        self._source = source
        self._session = ChatSession(
            source.engine, source.codec, seeds=seeds, name=name, order=order
        )
        self._ended = False
        self._running: set[asyncio.Task[Any]] = set()
        self._asked, self._ticket_of = asked, dict[str, int]()

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling,
        agent: str = "main",
        constraint: Constraint | None = None,
        seed: int | None = None,
        on_token: OnToken | None = None,
    ) -> Call:
        """Send one request; see `ChatClient`."""
        if self._ended:
            raise EngineError("this attempt has ended; its models answer no more")
        ticket, task = next(self._asked.tickets), asyncio.current_task()
        if task is not None:
            self._running.add(task)
        ruled = self._source.sampling
        sampling = replace(
            sampling, temperature=ruled.temperature, top_p=ruled.top_p, top_k=ruled.top_k
        )
        try:
            with self._asked.own_time.standing_still():
                call = await self._session.chat(
                    messages,
                    tools=tools,
                    sampling=sampling,
                    agent=agent,
                    constraint=constraint,
                    seed=seed,
                    on_token=on_token,
                )
            self._ticket_of[call.id] = ticket
            self._asked.answered()
            return call
        except EngineError as error:
            if not self._ended:
                self._asked.failed(error)
            raise
        finally:
            if task is not None:
                self._running.discard(task)

    async def end(self) -> list[tuple[int, Call]]:
        """Cancel what runs, free the engine's slots, and return the calls that were answered, each
        with its ticket."""
        self._ended = True
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(set(self._running), timeout=5.0)
        self._session.close()
        trains, tickets = self._source.trains, self._ticket_of
        return [(tickets[c.id], replace(c, policy=trains)) for c in self._session.calls]


class RemoteClient:
    """Another server's LLM in an attempt: recorded, never trained."""

    def __init__(self, client: ChatClient, asked: Asked) -> None:
        """`asked` is shared by all clients of the attempt."""
        self._client, self._asked = client, asked
        self._calls: list[tuple[int, Call]] = []

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling,
        agent: str = "main",
        constraint: Constraint | None = None,
        seed: int | None = None,
    ) -> Call:
        """Send one request; see `ChatClient`."""
        ticket = next(self._asked.tickets)
        try:
            with self._asked.own_time.standing_still():
                call = await self._client.chat(
                    messages,
                    tools=tools,
                    sampling=sampling,
                    agent=agent,
                    constraint=constraint,
                    seed=seed,
                )
        except ContextOverflowError:
            raise
        except EngineError as error:
            self._asked.failed(error)
            raise
        self._asked.answered()
        self._calls.append((ticket, replace(call, policy=None)))
        return call

    async def end(self) -> list[tuple[int, Call]]:
        """The calls that were answered."""
        return self._calls


class LoopClient:
    """A client that lives in another event loop, from whichever loop it is asked.

    The way there and back may wait for an engine that computes, so it is part of the call.
    """

    def __init__(
        self, client: ChatClient, loop: asyncio.AbstractEventLoop, own_time: OwnTime
    ) -> None:
        self._client, self._loop, self._own_time = client, loop, own_time

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling,
        agent: str = "main",
        constraint: Constraint | None = None,
        seed: int | None = None,
    ) -> Call:
        """Send one request; cancelling it cancels it there."""
        work = self._client.chat(
            messages, tools=tools, sampling=sampling, agent=agent, constraint=constraint, seed=seed
        )
        with self._own_time.standing_still():
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


Remote = Callable[[str, SeedTree], ChatClient]
"""Makes the client of a remote LLM for one attempt, from its resource name."""


@dataclass(frozen=True, slots=True)
class PolicyModels:
    """Models of a run, for attempts that play at the same time.

    `sources` has the engines by resource name: the policies and what is frozen. Everything else in
    `roles.remote` gets its client from `remote`.
    """

    gateway: Gateway
    resources: NamedResources
    roles: Roles
    sources: Mapping[str, Source]
    remote: Remote | None = None
    max_tokens: int = 256
    """Tokens of a reply for which the agent named no limit."""
    token_budget: int | None = None
    tokenizers: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def open(self, rollout_id: str, attempt_id: str, seeds: SeedTree, order: int) -> Seat:
        """Open a door for an attempt."""
        clients: dict[str, AttemptClient | RemoteClient] = {}
        asked = Asked()
        for place, (name, source) in enumerate(self.sources.items()):
            # The first one draws as the only one would; the others from streams of their own.
            branch = seeds if place == 0 else seeds.child("llm", name)
            clients[name] = AttemptClient(source, branch, f"{attempt_id}/{name}", order, asked)
        for name in self.roles.remote:
            if self.remote is not None:
                client = self.remote(name, seeds.child("llm", name))
                clients[name] = RemoteClient(client, asked)
        return _PolicySeat(self, rollout_id, attempt_id, clients, asked)


class _PolicySeat:
    """See `Seat`."""

    def __init__(
        self,
        models: PolicyModels,
        rollout_id: str,
        attempt_id: str,
        clients: Mapping[str, AttemptClient | RemoteClient],
        asked: Asked,
    ) -> None:
        self._models, self._clients, self._asked = models, clients, asked
        main = models.roles.main or next(iter(clients))
        others: dict[str, ChatClient] = {}
        for name, client in clients.items():
            if name != main:
                others[name] = client
                others.setdefault(_label(models.resources, name) or name, client)
        self._door = models.gateway.open(
            rollout_id,
            attempt_id,
            clients[main],
            clients=others,
            # One model answers to any name; of several, a wrong name must not be the policy.
            names=[main, *filter(None, [_label(models.resources, main)])] if others else None,
            model=main,
            sampling=self._sampling(main),
            token_budget=models.token_budget,
        )
        self.env: Mapping[str, str] = self._door.env()
        bound: dict[str, Any] = {name: self._bind(name, client) for name, client in clients.items()}
        self.resources: Mapping[str, Any] = {**models.tokenizers, **bound}

    @property
    def failure(self) -> EngineError | None:
        """See `Seat`."""
        return self._asked.failure

    @property
    def lost(self) -> EngineError | None:
        """See `Seat`."""
        return self._asked.lost

    @property
    def own_time(self) -> OwnTime:
        """See `Seat`."""
        return self._asked.own_time

    async def close(self) -> list[Call]:
        """Shut the door, and collect what came through it, in the order of time."""
        work = asyncio.run_coroutine_threadsafe(self._end(), self._models.gateway.loop)
        return await asyncio.wrap_future(work)

    async def _end(self) -> list[Call]:
        await self._door.aclose()
        found = [pair for client in self._clients.values() for pair in await client.end()]
        found.sort(key=lambda pair: pair[0])
        # Several sessions count from 0 each: the record has one order for all. A call over HTTP has
        # the id that its client saw, by which spans and evaluations name it.
        seen = self._door.response_id
        return [replace(c, id=seen(c.id) or c.id, index=i) for i, (_, c) in enumerate(found)]

    def _sampling(self, name: str) -> Sampling:
        """What holds for requests that are silent about it."""
        given = self._models.resources.get(name)
        default = Sampling(max_tokens=self._models.max_tokens)
        return given.sampling(default) if isinstance(given, LLM) else default

    def _bind(self, name: str, client: AttemptClient | RemoteClient) -> LLM:
        given = self._models.resources.get(name)
        llm = given if isinstance(given, LLM) else LLM(name)
        return replace(
            llm,
            endpoint=self._door.base_url,
            api_key=self._door.api_key,
            model=name,
            max_tokens=llm.max_tokens or self._models.max_tokens,
            client=LoopClient(client, self._models.gateway.loop, self.own_time),
            trainable=False,
            frozen=False,
        )


def _label(resources: NamedResources, name: str) -> str:
    found = resources.get(name)
    return found.name if isinstance(found, LLM) else ""
