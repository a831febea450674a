"""What is evaluated: an agent with the models that answer it, and how it plays.

A built-in agent on a policy of this process plays on the engine's invariant mode. Every other one
plays on a `RolloutManager`: its LLMs are answered by servers, counted call by call, or
sampled from a policy behind the gateway. What a target's name means is resolved in `targets.py`.
Torch is loaded where a policy of this process is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from tutelage.agents.agent import Agent
from tutelage.agents.function import wants_model
from tutelage.agents.loop import LoopAgent
from tutelage.engine.endpoint import Endpoint
from tutelage.engine.factory import make_engine
from tutelage.engine.meter import CallLimits, MeteredClient, UsageMeter
from tutelage.engine.prices import Price, find_price
from tutelage.engine.remote import RemoteServers
from tutelage.engine.usage import Cost
from tutelage.environments.protocol import EnvironmentFactory
from tutelage.errors import FailureBudgetError
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
"""Tokens of a reply of a model on a CPU, at most, where nobody names a limit: a minute's work."""
_SLOTS = 64
OnDone = Callable[[Rollout, Cost], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedAgent:
    """An agent, the models that answer it, and the limits of a rollout."""

    agent: Agent
    sampling: Sampling
    resources: NamedResources = field(default_factory=NamedResources)
    policies: Mapping[str, Policy] = field(default_factory=dict[str, "Policy"])
    """By resource: what the LLMs are sampled from that no server answers."""
    weights: str = ""
    """The folder, or the hub name, that those policies were loaded from."""
    servers: Mapping[str, Endpoint] = field(default_factory=dict[str, Endpoint])
    """By resource: the LLMs that servers answer."""
    server_tokens: int = UNBOUNDED
    """Tokens of a reply of a server, at most; `UNBOUNDED` sends it no limit."""
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])
    tools: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    """Those of a built-in agent."""
    environment: EnvironmentFactory | None = None
    """What answers the agent over several turns."""
    isolation: str = "none"
    max_calls: int = 16
    """Calls to servers in one rollout, at most."""
    max_length: int | None = None
    runners: int = 8
    limits: RunnerSettings = field(default_factory=lambda: RunnerSettings(""))

    @property
    def policy(self) -> Policy:
        """The policy of the main LLM."""
        return next(iter(self.policies.values()))

    @property
    def local(self) -> bool:
        """Whether a built-in agent plays on a policy of this process."""
        return isinstance(self.agent, LoopAgent) and not self.servers

    def model(self) -> str:
        """The models that answer, in words."""
        shown = [server.to_public_dict() for server in self.servers.values()]
        lines = [f"{server['model']} at {server['base_url']}" for server in shown]
        lines += [self.weights or "passed in Python"] * bool(self.policies)
        return ", ".join(dict.fromkeys(lines)) or "none"

    def tokens(self) -> str:
        """Say what bounds the tokens of a reply."""
        words, limit = list[str](), "no limit"
        if self.policies:
            own = "" if isinstance(self.agent, LoopAgent) else " for which the agent names no limit"
            most, length = self.sampling.max_tokens, self.max_length or self.policy.max_positions
            words.append(f"at most {most:,} a reply{own}, context {length:,}")
        if self.servers:
            if self.server_tokens < UNBOUNDED:
                limit = f"a limit of {self.server_tokens:,} a reply"
            words.append(f"{limit} is sent to the server")
        return "; ".join(words)

    def model_mark(self) -> str | None:
        """Equal for equal weights, and for the same model of the same server; None for weights that
        have no folder."""
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
        on_tokens: Callable[[int], None],
        on_spans: Sink = lambda run_id, spans: None,
    ) -> list[Rollout]:
        """Run rollouts; `on_done` receives each as it ends, with the cost of its model calls.
        `on_tokens` receives in a thread, once a second, how many tokens the policies have sampled.
        `on_spans` receives a run's id and the spans of the agent's own code, from any thread."""
        limits, engines = replace(self.limits, run_id=run_id), list[Any]()

        def engine_of(policy: Policy, at_once: int, schedule: Schedule) -> EngineDriver:
            slots = max(1, min(_SLOTS, at_once))
            made = make_engine(
                policy, slots=slots, max_length=self.max_length, invariant=True, schedule=schedule
            )
            engines.append(made)
            return made

        with _sampled(engines, on_tokens):
            if not self.local:
                return await self._on_manager(specs, grader, limits, on_done, engine_of, on_spans)
            engine = engine_of(self.policy, len(specs), "deterministic")
            models = EngineModelProvider(engine, self.policy.codec)
            runner = Runner(self.agent, models, limits, reward=grader, environment=self.environment)
            return await runner.run(specs, lambda r: on_done(r, self.recorded_cost(r)))

    async def _on_manager(
        self,
        specs: Sequence[RolloutSpec],
        grader: RewardFunction | None,
        limits: RunnerSettings,
        on_done: OnDone,
        engine_of: Callable[[Policy, int, Schedule], EngineDriver],
        on_spans: Sink,
    ) -> list[Rollout]:
        urls = {name: server.base_url for name, server in self.servers.items()}
        servers = RemoteServers(self.servers)
        manager = RolloutManager(
            self.agent,
            self.resources,
            Roles(dict.fromkeys(self.policies, POLICY), (), urls),
            n_runners=self.runners,
            isolation=self.isolation,
            remote=servers,
        )
        policies = {id(policy): policy for policy in self.policies.values()}
        engines = {key: engine_of(p, self.runners, "free") for key, p in policies.items()}
        sources = {
            name: PolicySource(engines[id(policy)], policy.codec, self.sampling, None)
            for name, policy in self.policies.items()
        }
        gate = asyncio.Semaphore(self.runners)

        async def one(spec: RolloutSpec) -> Rollout:
            meter = UsageMeter(CallLimits(self.max_calls, UNBOUNDED, self.server_tokens))

            def metered(name: str, seeds: SeedTree) -> ChatClient:
                seeded = seeds.child("seed") if self.sampling.temperature > 0 else None
                return MeteredClient(servers(name, seeds), meter, self._price(name), seeded)

            async with gate:
                runner = manager.runner(
                    sources,
                    replace(limits, attempts=1),
                    max_tokens=self.sampling.max_tokens,
                    remote_max_tokens=self.server_tokens,
                    remote=metered,
                    reward=grader,
                    on_spans=lambda rollout, spans: on_spans(limits.run_id, spans),
                    on_traces=partial(ingest_traces, on_spans, limits.run_id),
                    environment=self.environment,
                )
                rollout = (await runner.run([spec]))[0]
            cost = meter.cost  # as servers counted it, and by token ids here
            if any(self._price(name) is None for name in self.servers):
                cost = replace(cost, dollars=None)
            if self.policies:
                cost = self.recorded_cost(rollout) + replace(cost, calls=0)
            on_done(rollout, cost)
            return rollout

        try:
            async with manager, asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(spec)) for spec in specs]
        except* FailureBudgetError as stopped:
            raise stopped.exceptions[0] from None
        return [task.result() for task in tasks]

    def _price(self, name: str) -> Price | None:
        server = self.servers[name]
        return find_price(self.prices, server.model, local=server.on_loopback)

    @staticmethod
    def recorded_cost(rollout: Rollout) -> Cost:
        """The cost of the calls of a rollout whose tokens are on record: nothing was paid."""
        calls = [call for attempt in rollout.attempts for call in attempt.calls]
        prompt = sum(len(call.prompt_ids) for call in calls)
        return Cost(len(calls), prompt, sum(len(call.sampled.token_ids) for call in calls), 0.0)


@contextmanager
def _sampled(engines: Sequence[EngineDriver], on_tokens: Callable[[int], None]) -> Generator[None]:
    """Call `on_tokens` with the tokens that engines have sampled, once a second: in a thread, since
    an engine keeps the event loop until a reply ends."""
    ended = Event()

    def watch() -> None:
        while not ended.wait(1.0):
            on_tokens(sum(driver.engine.decoded_tokens for driver in engines))

    thread = Thread(target=watch, name="tutelage-tokens", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def reply_limit(asked: int | None, policies: Mapping[str, Policy]) -> int:
    """Tokens of a reply of a custom agent's policies, at most, where the agent names no limit."""
    on_gpu = any(policy.device.type != "cpu" for policy in policies.values())
    return asked or (2_000 if on_gpu else CPU_REPLY_TOKENS)


def equipped(
    agent: Agent, resources: NamedResources, temperature: float, model: str | None
) -> NamedResources:
    """What a user's agent is given: its own, and an LLM where it asks one and has none.

    Raises `ConfigError` where it needs a resource that is not there.
    """
    values: dict[str, Any] = {**agent.own_resources(), **resources}
    if not any(isinstance(v, LLM) for v in values.values()) and wants_model(agent, values):
        values = {POLICY: LLM(model or POLICY), **values}
    for name, value in values.items():
        if isinstance(value, LLM) and value.temperature is None:
            values[name] = replace(value, temperature=temperature)
    agent.check([*values])
    return NamedResources(values)


def answered(
    resources: NamedResources,
    urls: Mapping[str, str],
    server: Endpoint | None,
    model: str | None,
) -> tuple[dict[str, Endpoint], list[str]]:
    """The servers of an agent's LLMs by resource, and the LLMs that no server answers.

    An LLM's own endpoint wins, then `urls` by its name, then `server`, whose model is `model` where
    that is named.
    """
    servers: dict[str, Endpoint] = {}
    here: list[str] = []
    for name, llm in resources.items():
        if not isinstance(llm, LLM) or llm.tokenizer_only:
            continue
        url = llm.endpoint or urls.get(name) or urls.get(llm.name)
        own = llm.model or (llm.name if llm.name != POLICY else "")
        if url is not None:
            servers[name] = Endpoint(name, url, own or name, llm.api_key)
        elif server is not None:
            servers[name] = replace(server, role=name, model=model or own or server.model)
        else:
            here.append(name)
    return servers, here
