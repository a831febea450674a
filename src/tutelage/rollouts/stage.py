"""The stage: where a user's agents play, for as long as a job lasts.

Training computes in a thread, agents play in the event loop of whoever called `Trainer.train`, and
models answer in the gateway's own thread, so none of the three waits for another. The stage holds
the loop, the gateway, and the resources that were entered; the job's thread hands it a step's
rollouts and waits. `trainer/trainer.py` opens and closes it, `weights/context.py` plays on it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from tutelage.agents.function import TOKENIZER
from tutelage.agents.isolated import IsolatedAgent
from tutelage.agents.program import Program
from tutelage.engine.protocol import Engine
from tutelage.errors import ConfigError
from tutelage.gateway import Gateway
from tutelage.policy.model import Policy
from tutelage.resources import LLM, NamedResources, Roles
from tutelage.rewards import RewardFunction
from tutelage.rollouts.live import LiveRunner, OnSpans
from tutelage.rollouts.models import Models, NoModels, PolicyModels, Source
from tutelage.rollouts.runner import RunnerSettings, Spec
from tutelage.tracing.ingest import TraceIngest
from tutelage.types import Rollout, Sampling

if TYPE_CHECKING:
    from tutelage.engine.remote import RemoteServers


class Stage:
    """See the module's docstring. Entered and left in the event loop that agents play in."""

    def __init__(
        self,
        program: Program,
        resources: NamedResources,
        roles: Roles,
        *,
        n_runners: int,
        isolation: str = "none",
        remote: RemoteServers | None = None,
    ) -> None:
        apart = "process" in (isolation, program.isolation)
        self.program: Program = IsolatedAgent(program) if apart else program
        self.roles, self.n_runners = roles, n_runners
        self._resources, self._remote = resources, remote
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gateway: Gateway | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._playing: concurrent.futures.Future[list[Rollout]] | None = None
        self._lock = threading.Lock()
        self.stopping = False

    async def __aenter__(self) -> Stage:
        self._loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._leave = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(ready))
        # In one task from beginning to end, as many async context managers require.
        await asyncio.wait({self._keeper, ready}, return_when=asyncio.FIRST_COMPLETED)
        if self._keeper.done():
            await self._keeper
        if self.roles.policies or self.roles.remote:
            self._gateway = await asyncio.to_thread(Gateway().start)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._leave.set()
        try:
            if self._keeper is not None:
                await self._keeper
        finally:
            if self._gateway is not None:
                if self._remote is not None:
                    await asyncio.wrap_future(self._gateway.submit(self._remote.aclose()))
                await asyncio.to_thread(self._gateway.close)
            if isinstance(self.program, IsolatedAgent):
                self.program.close()

    async def _keep(self, ready: asyncio.Future[None]) -> None:
        async with AsyncExitStack() as stack:
            self._resources = await self._resources.entered(stack)
            ready.set_result(None)
            await self._leave.wait()

    def stop(self) -> None:
        """Cancel what plays, and let nothing begin any more."""
        with self._lock:
            self.stopping = True
            if self._playing is not None:
                self._playing.cancel()

    def play(
        self,
        specs: Sequence[Spec],
        sources: Mapping[str, tuple[Engine, Policy]],
        *,
        sampling: Sampling,
        max_tokens: int,
        token_budget: int | None,
        settings: RunnerSettings,
        reward: RewardFunction | None,
        on_done: Callable[[Rollout], None] | None,
        on_spans: OnSpans | None,
        on_traces: TraceIngest | None = None,
    ) -> list[Rollout]:
        """Run rollouts, from the job's thread. `sources` are engines by resource name; `on_traces`
        takes the spans that agents send to the gateway by themselves.

        Raises `KeyboardInterrupt` once `stop` was called.
        """
        if self._loop is None:
            raise ConfigError("the stage is not open")
        if self._gateway is not None:
            self._gateway.on_traces = on_traces
        runner = LiveRunner(
            self.program,
            self._models(sources, sampling, max_tokens, token_budget),
            self._resources,
            settings,
            reward=reward,
            policy=self.roles.main,
            on_spans=on_spans,
        )
        with self._lock:
            if self.stopping:
                raise KeyboardInterrupt
            work = asyncio.run_coroutine_threadsafe(runner.run(specs, on_done), self._loop)
            self._playing = work
        try:
            return work.result()
        except concurrent.futures.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            self._playing = None

    def _models(
        self,
        sources: Mapping[str, tuple[Engine, Policy]],
        sampling: Sampling,
        max_tokens: int,
        token_budget: int | None,
    ) -> Models:
        if self._gateway is None:
            return NoModels()
        main = next(iter(sources.values()), None)
        tokenizer = None if main is None else main[1].codec.tokenizer
        tokenizers: dict[str, Any] = {
            name: tokenizer
            for name, value in self._resources.items()
            if isinstance(value, LLM) and value.tokenizer_only
        }
        if TOKENIZER not in self._resources:
            tokenizers[TOKENIZER] = tokenizer
        return PolicyModels(
            gateway=self._gateway,
            resources=self._resources,
            roles=self.roles,
            sources={
                name: Source(engine, policy.codec, sampling, self.roles.policies.get(name))
                for name, (engine, policy) in sources.items()
            },
            remote=self._remote,
            max_tokens=max_tokens,
            token_budget=token_budget,
            tokenizers=tokenizers,
        )
