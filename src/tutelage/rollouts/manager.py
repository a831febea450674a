"""The environment of a user's agents during a job: gateway, resources and processes.

Agents play in the event loop that entered the `RolloutManager`, models answer in the gateway's
thread, and a training computes in a third thread, so none waits for another. The manager holds the
gateway, the entered resources, and the processes of isolated agents. `runner` returns a runner of
rollouts on it; `play` runs rollouts from the thread of a training and waits.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from tutelage.agents.agent import Agent
from tutelage.agents.function import TOKENIZER
from tutelage.agents.isolated import IsolatedAgent
from tutelage.agents.session import RolloutSession
from tutelage.engine.endpoint import read_environment as variables
from tutelage.environments.protocol import EnvironmentFactory
from tutelage.gateway import Gateway
from tutelage.gateway.address import read_address
from tutelage.gateway.app import OnTraces
from tutelage.resources import LLM, NamedResources, Roles
from tutelage.rewards import RewardFunction
from tutelage.rollouts.models import GatewayModelProvider, ModelProvider, PolicySource, Remote
from tutelage.rollouts.runner import OnSpans, RolloutSpec, Runner, RunnerSettings
from tutelage.rollouts.workers import RolloutWorkers
from tutelage.types import Rollout

if TYPE_CHECKING:
    from tutelage.engine.remote import RemoteServers


class RolloutManager:
    """Async context manager of the gateway, resources and agent processes of a job.

    It must be entered and exited in the event loop of the agents.
    """

    def __init__(
        self,
        agent: Agent,
        resources: NamedResources,
        roles: Roles,
        *,
        n_runners: int,
        isolation: str = "none",
        remote: RemoteServers | None = None,
    ) -> None:
        """Create the manager.

        Raises `ConfigError` if the agent cannot run in another process, or if the environment
        variables have an invalid gateway address.
        """
        apart = "process" in (isolation, agent.isolation)
        self.agent: Agent = IsolatedAgent(agent) if apart else agent
        self.resources, self.roles, self.n_runners = resources, roles, n_runners
        self._remote = remote
        self._address = read_address(variables())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gateway: Gateway | None = None
        self._resource_task: asyncio.Task[None] | None = None
        self._running: concurrent.futures.Future[list[Rollout]] | None = None
        self._lock = threading.Lock()
        self.stopping = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._closing = asyncio.Event()
        self._resource_task = asyncio.create_task(self._hold_resources(ready))
        # In one task from beginning to end, as many async context managers require.
        await asyncio.wait({self._resource_task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if self._resource_task.done():
            await self._resource_task
        if self.roles.policies or self.roles.remote:
            self._gateway = await asyncio.to_thread(Gateway.for_address(*self._address).start)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._closing.set()
        try:
            if self._resource_task is not None:
                await self._resource_task
        finally:
            if self._gateway is not None:
                if self._remote is not None:
                    await asyncio.wrap_future(self._gateway.submit(self._remote.aclose()))
                await asyncio.to_thread(self._gateway.close)
            if isinstance(self.agent, IsolatedAgent):
                self.agent.close()

    async def _hold_resources(self, ready: asyncio.Future[None]) -> None:
        """Enter and exit the resources in one task, as many async context managers require."""
        async with AsyncExitStack() as stack:
            self.resources = await self.resources.entered(stack)
            ready.set_result(None)
            await self._closing.wait()

    def runner(
        self,
        sources: Mapping[str, PolicySource],
        settings: RunnerSettings,
        *,
        max_tokens: int,
        remote_max_tokens: int | None = None,
        token_budget: int | None = None,
        resources: NamedResources | None = None,
        remote: Remote | None = None,
        reward: RewardFunction | None = None,
        on_spans: OnSpans | None = None,
        on_session: Callable[[RolloutSession], None] | None = None,
        on_traces: OnTraces | None = None,
        environment: EnvironmentFactory | None = None,
    ) -> Runner:
        """Return a runner for `n_runners` concurrent rollouts in the event loop of the manager.

        `sources` are engines by resource name. `resources` and `remote`, if given, replace the
        manager's. `on_traces` receives the spans that agents send to the gateway.
        """
        named_resources, models = resources or self.resources, ModelProvider()
        if self._gateway is not None:
            self._gateway.app.on_traces = on_traces
            # The policy's tokenizer, under every name that means it.
            items = named_resources.items()
            called = [n for n, v in items if isinstance(v, LLM) and v.tokenizer_only]
            called += [TOKENIZER] * (TOKENIZER not in named_resources)
            tokenizers = [source.codec.tokenizer for source in sources.values()][:1]
            models = GatewayModelProvider(
                gateway=self._gateway,
                resources=named_resources,
                roles=self.roles,
                sources=sources,
                remote=remote or self._remote,
                max_tokens=max_tokens,
                remote_max_tokens=remote_max_tokens,
                token_budget=token_budget,
                tokenizers={name: one for name in called for one in tokenizers},
            )
        return Runner(
            self.agent,
            models,
            replace(settings, concurrency=self.n_runners),
            reward=reward,
            environment=environment,
            resources=named_resources,
            policy=self.roles.main or next(iter(self.roles.remote), None),
            on_spans=on_spans,
            on_session=on_session,
        )

    def play(
        self,
        workers: RolloutWorkers,
        specs: Sequence[RolloutSpec],
        on_done: Callable[[Rollout], None] | None = None,
    ) -> list[Rollout]:
        """Run rollouts from the thread of the job. Raises `KeyboardInterrupt` after `stop`."""
        assert self._loop is not None, "it is entered first"
        with self._lock:
            if self.stopping:
                raise KeyboardInterrupt
            work = asyncio.run_coroutine_threadsafe(workers.run(specs, on_done), self._loop)
            self._running = work
        try:
            return work.result()
        except concurrent.futures.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            self._running = None

    def stop(self) -> None:
        """Cancel running rollouts and refuse new ones."""
        with self._lock:
            self.stopping = True
            if self._running is not None:
                self._running.cancel()
