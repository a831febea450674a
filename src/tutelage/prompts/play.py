"""The search's `Play`, made of the real thing: rollout engine, gateway, models, store.

A `Theatre` is open for the length of a run. Each rollout is played by `rollouts/live.py` with the
candidate's texts in its resources, so that every call, span and reward is recorded as in any other
run; its identifiers come from the step key of the search, so that they repeat. Agents play in the
caller's event loop, models answer in the gateway's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tutelage.agents.context import RolloutContext
from tutelage.agents.isolated import IsolatedAgent
from tutelage.agents.program import Isolation, Program
from tutelage.engine.endpoint import Endpoint
from tutelage.engine.factory import make_engine
from tutelage.engine.meter import Caps, Meter, MeteredClient
from tutelage.engine.prices import Price
from tutelage.engine.remote import RemoteServers, Server
from tutelage.gateway import Gateway
from tutelage.prompts.agent import with_components
from tutelage.prompts.contract import SLOT, Components, Episode
from tutelage.prompts.episode import episode_of
from tutelage.prompts.shots import Demonstrations
from tutelage.resources import NamedResources, Roles
from tutelage.rewards import RewardFunction
from tutelage.rollouts.live import LiveRunner
from tutelage.rollouts.models import Models, NoModels, PolicyModels, Source
from tutelage.rollouts.runner import RunnerSettings, Spec
from tutelage.seeds import SeedTree
from tutelage.statistics.outcome import Success
from tutelage.tracing.ingest import TraceIngest
from tutelage.tracing.records import SpanRecord
from tutelage.types import ChatClient, Mode, Rollout, Sampling, Task

if TYPE_CHECKING:
    from tutelage.engine.protocol import Engine
    from tutelage.policy.model import Policy

SLOTS = 64
"""Rollouts that the embedded policy samples at once, at most."""
REMOTE_SECONDS = 120.0
"""For one request to a task model."""


@dataclass(frozen=True, slots=True)
class Company:
    """An agent with everything it plays with."""

    program: Program
    resources: NamedResources
    roles: Roles
    caps: Caps
    sampling: Sampling
    policy: Policy | None = None
    """What the LLMs of `roles.policies` are sampled from."""
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict[str, Endpoint])
    """Of the LLMs of `roles.remote`, by resource."""
    prices: Mapping[str, Price | None] = field(default_factory=dict[str, "Price | None"])
    """By resource; None is not known."""
    reward: RewardFunction | None = None
    """Grades what returns no reward of its own."""
    success: Success | None = None
    """What the user says is right."""
    isolation: Isolation = "none"


@dataclass(frozen=True, slots=True)
class Records:
    """Where rollouts and spans go, from the event loop and, for traces, from the gateway's."""

    run_id: str
    rollout: Callable[[Rollout], None]
    spans: Callable[[str, Sequence[SpanRecord]], None]
    begins: Callable[[str], None] = lambda rollout_id: None
    """Told of a rollout's identifier before it is played."""


class _Seen:
    """A program that keeps the context of the rollout it played, for what no record has."""

    def __init__(self, program: Program) -> None:
        self.inner, self.name = program, program.name
        self.isolation: Isolation = program.isolation
        self.context: RolloutContext | None = None

    def own_resources(self) -> Mapping[str, Any]:
        return self.inner.own_resources()

    def check(self, names: Collection[str]) -> None:
        self.inner.check(names)

    async def play(self, rollout: RolloutContext) -> Any:
        self.context = rollout
        return await self.inner.play(rollout)


class Theatre:
    """See the module's docstring. `async with Theatre(...) as play:` makes a `Play`."""

    def __init__(
        self,
        company: Company,
        records: Records,
        seeds: SeedTree,
        *,
        runners: int,
        limits: RunnerSettings,
    ) -> None:
        """`limits` are those of one rollout; the run is that of `records`."""
        self._company, self._records, self._seeds = company, records, seeds
        self._runners, self._limits = runners, replace(limits, run_id=records.run_id)
        apart = "process" in (company.isolation, company.program.isolation)
        self._program = IsolatedAgent(company.program) if apart else company.program
        self._resources = company.resources
        self._gateway: Gateway | None = None
        servers = {n: Server(e.base_url, e.model, e.api_key) for n, e in company.endpoints.items()}
        self._servers = RemoteServers(servers, timeout=REMOTE_SECONDS)
        self._engine: Engine | None = None
        self._stack = AsyncExitStack()
        self.unknown = 0
        """Calls whose usage a server did not tell."""

    async def __aenter__(self) -> Theatre:
        await self._stack.__aenter__()
        try:
            self._resources = await self._resources.entered(self._stack)
            roles = self._company.roles
            if roles.policies or roles.remote:
                self._gateway = await asyncio.to_thread(Gateway().start)
                records = self._records
                self._gateway.on_traces = TraceIngest(records.spans, records.run_id)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await self._stack.aclose()
        finally:
            if self._gateway is not None:
                await asyncio.wrap_future(self._gateway.submit(self._servers.aclose()))
                await asyncio.to_thread(self._gateway.close)
            if isinstance(self._program, IsolatedAgent):
                self._program.close()

    async def __call__(self, components: Components, task: Task, sample: int) -> Episode:
        """Play one rollout of a candidate; a search calls it."""
        slot = SLOT.get()
        mode = Mode.TRAIN if slot is None else slot.split
        seeds = self._seeds.child("play", task.id if slot is None else slot.key)
        spec = Spec(
            task,
            mode,
            group=task.id,
            index=sample,
            seeds=seeds,
            label="" if slot is None else slot.candidate,
        )
        self._records.begins(seeds.id("roll"))
        resources = _for_task(with_components(self._resources, components), task)
        meter = Meter(self._company.caps)
        seen = _Seen(self._program)
        traced: list[SpanRecord] = []

        def keep(rollout: Rollout, spans: Sequence[SpanRecord]) -> None:
            traced.extend(spans)
            self._records.spans(self._records.run_id, spans)
            self._records.rollout(rollout)

        runner = LiveRunner(
            seen,
            self._models(resources, meter),
            resources,
            self._limits,
            reward=self._company.reward,
            policy=self._main,
            on_spans=keep,
        )
        rollout = (await runner.run([spec]))[0]
        said = "" if seen.context is None else seen.context.feedback
        usage = meter.usage() if self._company.roles.remote else None
        self.unknown += meter.counted.unknown
        return episode_of(
            rollout, components, resources, traced, said, usage, self._company.success
        )

    @property
    def _main(self) -> str | None:
        roles = self._company.roles
        return roles.main or next(iter(roles.remote), None)

    def _models(self, resources: NamedResources, meter: Meter) -> Models:
        if self._gateway is None:
            return NoModels()
        company = self._company

        def remote(name: str, seeds: SeedTree) -> ChatClient:
            seeded = seeds.child("seed") if company.sampling.temperature > 0 else None
            client = self._servers(name, seeds)
            return MeteredClient(client, meter, company.prices.get(name), seeded)

        return PolicyModels(
            gateway=self._gateway,
            resources=resources,
            roles=company.roles,
            sources=self._sources(),
            remote=remote,
            max_tokens=company.sampling.max_tokens,
        )

    def _sources(self) -> dict[str, Source]:
        company, policy = self._company, self._company.policy
        if policy is None:
            return {}
        if self._engine is None:
            # What a rollout says does not depend on what plays beside it.
            slots = max(1, min(SLOTS, self._runners))
            self._engine = make_engine(policy, slots=slots, invariant=True, schedule="free")
        return {
            name: Source(self._engine, policy.codec, company.sampling, None)
            for name in company.roles.policies
        }


def _for_task(resources: NamedResources, task: Task) -> NamedResources:
    """Without the demonstrations that show this task."""
    shown = {n: v for n, v in resources.items() if isinstance(v, Demonstrations)}
    return resources.replaced({n: v.without(task.id) for n, v in shown.items()})
