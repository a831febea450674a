"""Agent under evaluation with the models that answer it, and how its rollouts are played.

A built-in agent on a policy of this process plays on the engine's invariant mode. Every other agent
plays on a `RolloutManager`: its LLMs are answered by servers, with metered calls, or sampled from a
policy behind the gateway. `targets.py` finds what a target names. Torch is loaded only for a policy
of this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutelage.agents.agent import Agent
from tutelage.agents.function import needs_model
from tutelage.agents.loop import LoopAgent
from tutelage.engine.endpoint import Endpoint
from tutelage.engine.factory import make_engine
from tutelage.engine.meter import CallLimits, MeteredClient, UsageMeter
from tutelage.engine.prices import Price, find_price
from tutelage.engine.remote import RemoteServers
from tutelage.engine.usage import Cost
from tutelage.environments.protocol import EnvironmentFactory
from tutelage.errors import FailureBudgetError
from tutelage.evaluate.config import EvaluationConfig
from tutelage.resources import LLM, POLICY, NamedResources, Roles
from tutelage.rewards import RewardFunction
from tutelage.rollouts.manager import RolloutManager
from tutelage.rollouts.models import EngineModelProvider, PolicySource
from tutelage.rollouts.runner import RolloutSpec, Runner, RunnerSettings
from tutelage.runs.figures import folder_hash
from tutelage.seeds import SeedTree
from tutelage.tools.tool import Tool
from tutelage.tracing.ingest import Sink, ingest_traces
from tutelage.types import UNBOUNDED, ChatClient, Rollout, Sampling

if TYPE_CHECKING:
    from tutelage.engine.driver import EngineDriver, Schedule
    from tutelage.policy.model import Policy

CPU_REPLY_TOKENS = 512
"""Default maximum tokens per reply of a model on a CPU: about a minute."""
_SLOTS = 64
OnDone = Callable[[Rollout, Cost], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedAgent:
    """Agent under evaluation, with its models and the limits of a rollout."""

    agent: Agent
    sampling: Sampling
    resources: NamedResources = field(default_factory=NamedResources)
    policies: Mapping[str, Policy] = field(default_factory=dict[str, "Policy"])
    """Policies by resource, for LLMs without a server."""
    weights: str = ""
    """Folder or hub name of those policies."""
    servers: Mapping[str, Endpoint] = field(default_factory=dict[str, Endpoint])
    """Servers by resource."""
    server_tokens: int = UNBOUNDED
    """Maximum tokens per reply of a server; `UNBOUNDED` sends no limit."""
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])
    tools: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    """Tools of a built-in agent."""
    environment: EnvironmentFactory | None = None
    """Environment that the agent acts in."""
    isolation: str = "none"
    max_calls: int = 16
    """Maximum calls to servers per rollout."""
    max_length: int | None = None
    runners: int = 8
    limits: RunnerSettings = field(default_factory=lambda: RunnerSettings(""))

    @property
    def policy(self) -> Policy:
        """Policy of the main LLM."""
        return next(iter(self.policies.values()))

    def model(self) -> str:
        """Return the names of the agent's models."""
        shown = [server.to_public_dict() for server in self.servers.values()]
        lines = [f"{server['model']} at {server['base_url']}" for server in shown]
        lines += [self.weights or "passed in Python"] * bool(self.policies)
        return ", ".join(dict.fromkeys(lines)) or "none"

    def describe_limits(self) -> str:
        """Return a description of the token limits per reply."""
        words = list[str]()
        if self.policies:
            length = self.max_length or self.policy.max_positions
            words.append(f"at most {self.sampling.max_tokens:,} a reply, context {length:,}")
        if self.servers:
            most = f"{self.server_tokens:,} a reply" if self.server_tokens < UNBOUNDED else "none"
            words.append(f"limit sent to the server: {most}")
        return "; ".join(words)

    def model_fingerprint(self) -> str | None:
        """Return an identifier of the model that is equal for equal weights, or for equal models of
        a server; None for weights without a folder."""
        if not self.policies or self.servers:
            return self.model()
        mark = folder_hash(Path(self.weights)) if self.weights else None
        return mark or (f"model:{self.weights}" if self.weights else None)

    async def play(
        self,
        specs: Sequence[RolloutSpec],
        grader: RewardFunction | None,
        run_id: str,
        on_done: OnDone,
        on_spans: Sink = lambda run_id, spans: None,
    ) -> None:
        """Run rollouts; `on_done` is called with each finished rollout and the cost of its model
        calls.

        `on_spans` receives a run's id and the spans of the agent's own code, from any thread.
        """
        limits = replace(self.limits, run_id=run_id)

        def build_engine(policy: Policy, concurrency: int, schedule: Schedule) -> EngineDriver:
            slots, length = max(1, min(_SLOTS, concurrency)), self.max_length
            return make_engine(
                policy, slots=slots, max_length=length, invariant=True, schedule=schedule
            )

        if isinstance(self.agent, LoopAgent) and not self.servers:
            engine = build_engine(self.policy, len(specs), "deterministic")
            models = EngineModelProvider(engine, self.policy.codec)
            runner = Runner(self.agent, models, limits, reward=grader, environment=self.environment)
            await runner.run(specs, lambda r: on_done(r, recorded_cost(r)))
            return
        urls = {name: server.base_url for name, server in self.servers.items()}
        servers = RemoteServers(self.servers)
        prices = {
            name: find_price(self.prices, server.model, local=server.is_local)
            for name, server in self.servers.items()
        }
        manager = RolloutManager(
            self.agent,
            self.resources,
            Roles(dict.fromkeys(self.policies, POLICY), (), urls),
            n_runners=self.runners,
            isolation=self.isolation,
            remote=servers,
        )
        policies = {id(policy): policy for policy in self.policies.values()}
        engines = {key: build_engine(p, self.runners, "free") for key, p in policies.items()}
        sources = {
            name: PolicySource(engines[id(policy)], policy.codec, self.sampling, None)
            for name, policy in self.policies.items()
        }
        gate = asyncio.Semaphore(self.runners)

        async def play_spec(spec: RolloutSpec) -> None:
            meter = UsageMeter(CallLimits(self.max_calls, UNBOUNDED, self.server_tokens))

            def make_client(name: str, seeds: SeedTree) -> ChatClient:
                seeded = seeds.child("seed") if self.sampling.temperature > 0 else None
                return MeteredClient(servers(name, seeds), meter, prices[name], seeded)

            async with gate:
                runner = manager.runner(
                    sources,
                    replace(limits, attempts=1),
                    max_tokens=self.sampling.max_tokens,
                    remote_max_tokens=self.server_tokens,
                    remote=make_client,
                    reward=grader,
                    on_spans=lambda rollout, spans: on_spans(limits.run_id, spans),
                    on_traces=partial(ingest_traces, on_spans, limits.run_id),
                    environment=self.environment,
                )
                rollout = (await runner.run([spec]))[0]
            cost = meter.cost  # as servers counted it, and by token ids here
            if None in prices.values():
                cost = replace(cost, dollars=None)
            if self.policies:
                cost = recorded_cost(rollout) + replace(cost, calls=0)
            on_done(rollout, cost)

        try:
            async with manager, asyncio.TaskGroup() as group:
                for spec in specs:
                    group.create_task(play_spec(spec))
        except* FailureBudgetError as stopped:
            raise stopped.exceptions[0] from None


def recorded_cost(rollout: Rollout) -> Cost:
    """Return the cost of a rollout according to its recorded token ids, with 0 dollars."""
    calls = [call for attempt in rollout.attempts for call in attempt.calls]
    prompt = sum(len(call.prompt_ids) for call in calls)
    return Cost(len(calls), prompt, sum(len(call.sampled.token_ids) for call in calls), 0.0)


def build_agent(
    agent: Agent,
    resources: Mapping[str, Any],
    options: EvaluationConfig,
    load: Callable[[Mapping[str, Any], Sequence[str]], Mapping[str, Policy]],
    *,
    urls: Mapping[str, str],
    server: Endpoint | None,
    model: str | None = None,
) -> EvaluatedAgent:
    """Combine a user's agent with its models; an LLM is added if the agent needs one and has none.

    An LLM is answered by its own endpoint, else by its name in `urls`, else by `server` with the
    model `model`; `load` receives the resources and the names of the remaining LLMs, and loads
    policies. Raises `ConfigError` if the agent needs a resource that is missing.
    """
    values: dict[str, Any] = {**agent.own_resources(), **resources}
    if not any(isinstance(v, LLM) for v in values.values()) and needs_model(agent, values):
        values = {POLICY: LLM(model or POLICY), **values}
    servers, here = dict[str, Endpoint](), list[str]()
    for name, llm in values.items():
        if not isinstance(llm, LLM):
            continue
        if llm.temperature is None:
            values[name] = replace(llm, temperature=options.sampling_temperature)
        if llm.tokenizer_only:
            continue
        url = llm.endpoint or urls.get(name) or urls.get(llm.name)
        own = llm.model or (llm.name if llm.name != POLICY else "")
        if url is not None:
            servers[name] = Endpoint(name, url, own or name, llm.api_key)
        elif server is not None:
            servers[name] = replace(server, role=name, model=model or own or server.model)
        else:
            here.append(name)
    agent.check([*values])
    policies = load(values, here) if here else {}
    on_gpu = any(policy.device.type != "cpu" for policy in policies.values())
    most = options.max_tokens or (2_000 if on_gpu else CPU_REPLY_TOKENS)
    return EvaluatedAgent(
        agent=agent,
        sampling=Sampling(options.sampling_temperature, max_tokens=most),
        resources=NamedResources(values),
        policies=policies,
        servers=servers,
        server_tokens=options.max_tokens or UNBOUNDED,
        max_calls=options.max_turns or 16,
        limits=RunnerSettings("", timeout=options.timeout),
    )
