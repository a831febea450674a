"""The `Play` of a search on a rollout manager.

Each rollout of a candidate is played on a `RolloutManager` with the candidate's texts in its
resources, so that every call, span and reward is recorded as in any other run; its identifiers are
derived from the step key of the search, so that they repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from tutelage.agents.agent import Agent, Isolation
from tutelage.agents.session import RolloutSession
from tutelage.engine.endpoint import Endpoint
from tutelage.engine.factory import make_engine
from tutelage.engine.meter import CallLimits, MeteredClient, UsageMeter
from tutelage.engine.prices import Price
from tutelage.engine.remote import RemoteServers
from tutelage.environments.protocol import EnvironmentFactory
from tutelage.prompts.agent import set_components
from tutelage.prompts.contract import Components, Episode, RolloutSlot
from tutelage.prompts.episode import to_episode
from tutelage.resources import NamedResources, Roles
from tutelage.rewards import RewardFunction
from tutelage.rollouts.manager import RolloutManager
from tutelage.rollouts.models import PolicySource
from tutelage.rollouts.runner import RolloutSpec, RunnerSettings
from tutelage.seeds import SeedTree
from tutelage.statistics.outcome import Success
from tutelage.tracing.ingest import ingest_traces
from tutelage.tracing.records import SpanRecord
from tutelage.types import ChatClient, Rollout, Sampling, Task

if TYPE_CHECKING:
    from tutelage.engine.protocol import Engine
    from tutelage.policy.model import Policy
    from tutelage.runs.lifecycle import Run

DRY = "dry-run"
"""Run name in identifiers of rollouts without a run."""
SLOTS = 64
"""Maximum concurrent rollouts of the embedded policy."""
REMOTE_SECONDS = 120.0
"""Timeout of a request to a task model in seconds."""


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """Specification of an agent without its models."""

    agent: Agent
    resources: NamedResources
    reward: RewardFunction | None
    """Reward of rollouts whose agent returns none."""
    isolation: Isolation = "none"
    policy: Policy | None = None
    """A policy passed by the caller."""
    urls: Mapping[str, str] = field(default_factory=dict[str, str])
    """Base URLs of LLMs by resource or model name."""
    environment: EnvironmentFactory | None = None
    """The environment that the agent acts in."""


@dataclass(frozen=True, slots=True)
class AgentBundle:
    """An agent with its models and limits."""

    spec: AgentSpec
    resources: NamedResources
    """The agent's resources, including an LLM if it needs one."""
    policy: Policy | None
    """The policy that the LLMs of `roles.policies` are sampled from."""
    roles: Roles
    caps: CallLimits
    sampling: Sampling
    endpoints: Mapping[str, Endpoint]
    """Endpoints of the LLMs of `roles.remote`, by resource."""
    prices: Mapping[str, Price | None]
    """Prices by resource; None if unknown."""
    success: Success | None
    """The user's definition of success."""
    limits: RunnerSettings
    """Limits of a rollout, without a run id."""


class CandidateRunner(RolloutManager):
    """Rollout manager that runs candidate prompts; it implements `Play`."""

    def __init__(
        self,
        bundle: AgentBundle,
        seeds: SeedTree,
        runners: int,
        on_rollout: Callable[[Rollout], None],
        run: Run | None = None,
    ) -> None:
        """Create a runner. `on_rollout` receives each rollout; `run` stores rollouts if set."""
        self._servers = RemoteServers(bundle.endpoints, timeout=REMOTE_SECONDS)
        super().__init__(
            bundle.spec.agent,
            bundle.resources,
            bundle.roles,
            n_runners=runners,
            isolation=bundle.spec.isolation,
            remote=self._servers,
        )
        self._bundle, self._seeds, self._on_rollout, self._run = bundle, seeds, on_rollout, run
        self._settings = replace(bundle.limits, run_id=DRY if run is None else run.id)
        self._traces = run and partial(ingest_traces, run.writer.submit_spans, run.id)
        self._stored = set(run.store.rollout_ids(run.id)) if run else set[str]()
        """Rollout ids of an interrupted process; those without an answer are played again."""
        self._engine: Engine | None = None
        self.unknown = 0
        """Calls without a usage in the server's reply."""

    async def __call__(self, components: Components, task: Task, slot: RolloutSlot) -> Episode:
        """Run one rollout of a candidate and return its episode."""
        bundle, run = self._bundle, self._run
        seeds = self._seeds.child("play", slot.key)
        spec = RolloutSpec(task, slot.split, task.id, slot.sample, seeds, label=slot.candidate)
        rollout_id = seeds.id("roll", self._settings.run_id)
        if run is not None and rollout_id in self._stored:
            self._stored.remove(rollout_id)
            run.store.discard_rollout(run.id, rollout_id)
        meter = UsageMeter(bundle.caps)
        sessions: list[RolloutSession] = []

        def store_rollout(rollout: Rollout, spans: Sequence[SpanRecord]) -> None:
            if run is not None:
                run.writer.submit_spans(run.id, spans)
                run.writer.submit([rollout])
            self._on_rollout(rollout)

        def make_client(name: str, seeds: SeedTree) -> ChatClient:
            seeded = seeds.child("seed") if bundle.sampling.temperature > 0 else None
            client = self._servers(name, seeds)
            return MeteredClient(client, meter, bundle.prices.get(name), seeded)

        sources: dict[str, PolicySource] = {}
        if (policy := bundle.policy) is not None:
            if self._engine is None:
                # Its samples do not depend on what plays beside a rollout.
                slots = max(1, min(SLOTS, self.n_runners))
                self._engine = make_engine(policy, slots=slots, invariant=True, schedule="free")
            source = PolicySource(self._engine, policy.codec, bundle.sampling, None)
            sources = dict.fromkeys(bundle.roles.policies, source)
        runner = self.runner(
            sources,
            self._settings,
            max_tokens=bundle.sampling.max_tokens,
            resources=set_components(self.resources, components),
            remote=make_client,
            reward=bundle.spec.reward,
            on_spans=store_rollout,
            on_session=sessions.append,
            on_traces=self._traces,
            environment=bundle.spec.environment,
        )
        rollout = (await runner.run([spec]))[0]
        if run is not None:
            # An answer is not played again, so its record has to be on the disk before.
            await asyncio.wrap_future(run.writer.flush_async())
        text = sessions[-1].feedback if sessions else ""
        usage = meter.usage() if bundle.roles.remote else None
        self.unknown += meter.cost.unknown
        return to_episode(rollout, text, usage, bundle.success)
