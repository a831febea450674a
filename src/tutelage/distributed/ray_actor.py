"""A rollout worker: a Ray actor with a copy of the policies and engines for them.

It plays groups as a single process does (`weights/placement.py`), on engines whose samples do not
depend on other samples of the batch: a group is equal bit for bit on every worker. Tools,
environments, rewards and sandboxes run here; rollouts are sent back to the trainer, which writes
the store. Weights have a name and a version, and are loaded if the version has changed.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from tutelage.distributed.shipment import Parts, Shipment, check_versions, load_shipment
from tutelage.gateway.address import BIND, URL
from tutelage.policy import machine
from tutelage.policy.model import Policy
from tutelage.resources import POLICY, NamedResources
from tutelage.rewards import resolve_reward
from tutelage.rollouts.manager import RolloutManager
from tutelage.rollouts.runner import RolloutSpec
from tutelage.runs.inputs import Tasks, load_tools, reward_of, select_tools
from tutelage.runs.job_inputs import JobInputs
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import EMBEDDED_REWARD
from tutelage.tracing import SpanRecord
from tutelage.tracing.ingest import ingest_traces
from tutelage.trainer.arguments import to_servers
from tutelage.types import JSON, Rollout
from tutelage.weights.config.extensions import load_extensions
from tutelage.weights.inputs import TrainingInputs
from tutelage.weights.placement import FROZEN, LocalPlacement, PlaySettings

Weights = Mapping[str, tuple[int, Sequence[Any]]]
"""The version of each policy and the reference to its tensors, in a list so that Ray does not
resolve it."""


@dataclass(slots=True)
class Played:
    """The result of a played group of rollouts."""

    rollouts: list[Rollout]
    spans: dict[str, list[SpanRecord]] = field(default_factory=dict[str, "list[SpanRecord]"])
    """The spans of user code, by rollout id."""
    traces: list[SpanRecord] = field(default_factory=list[SpanRecord])
    """The spans that agents sent to the gateway since the last group."""


class RolloutWorker:
    """A Ray actor that plays groups of rollouts. All methods run in one event loop."""

    def __init__(self) -> None:
        self._ready: asyncio.Future[_WorkerState] | None = None

    async def prepare(self, trainer: JSON, shipment: Shipment) -> JSON:
        """Load the shipment and return this worker's host, process and compute conditions.

        `trainer` is the trainer's Python and Tutelage version. Raises `ConfigError` if this
        worker's versions differ, or if a part cannot be loaded.
        """
        self._ready = asyncio.get_running_loop().create_future()
        try:
            for name in (BIND, URL):  # each worker has a gateway of its own
                os.environ.pop(name, None)
            check_versions(trainer, host := platform.node())
            stage = await _WorkerState.open(await load_shipment(shipment, host))
            self._ready.set_result(stage)
        except Exception as error:
            self._ready.set_exception(error)
            self._ready.exception()  # it is raised here, and need not be fetched
            raise
        conditions = machine.compute_conditions(stage.setting.choice)
        return {"host": host, "pid": os.getpid(), "conditions": conditions}

    async def play(
        self, specs: Sequence[RolloutSpec], options: PlaySettings, weights: Weights, *, spans: bool
    ) -> Played:
        """Play one group of rollouts, with the spans of user code if `spans` is True."""
        while self._ready is None:  # the call to prepare was sent first, and may begin later
            await asyncio.sleep(0)
        stage = await self._ready
        await stage.load_weights(weights)
        kept: dict[str, list[SpanRecord]] = {}

        def keep_spans(rollout: Rollout, records: Sequence[SpanRecord]) -> None:
            kept[rollout.id] = list(records)

        traces = partial(ingest_traces, stage.add_traces, options.run_id)
        options = replace(options, invariant=True)
        runner = stage.placement.workers(options, keep_spans if spans else None, traces)
        rollouts = await runner.run(specs)
        return Played(rollouts, kept, stage.pop_traces())


class _WorkerState:
    """A worker's training inputs, policies and engines."""

    def __init__(self, inputs: TrainingInputs, policies: dict[str, Policy]) -> None:
        self.setting, self._policies = inputs, policies
        self.placement = LocalPlacement(inputs, policies.__getitem__)
        self._versions: dict[str, int] = {}
        self._loading = asyncio.Lock()
        self._traces: list[SpanRecord] = []

    @classmethod
    async def open(cls, parts: Parts) -> _WorkerState:
        """Build the training inputs from a shipment, and start the agent's rollout manager.

        The manager stays open until this process ends.
        """
        config, policies, given = parts.config, parts.policies, None
        policies[FROZEN] = policies[POLICY].copy()
        load_extensions(config)
        knows_tools = policies[POLICY].codec.supports_tools
        machine.apply_settings(parts.choice, large=policies[POLICY].network.large)
        if parts.agent is not None:
            n_runners, isolation, own_tasks = parts.play
            resources, tasks = NamedResources(parts.resources), () if own_tasks else None
            manager = RolloutManager(
                parts.agent,
                resources,
                parts.roles,
                n_runners=n_runners,
                isolation=isolation,
                remote=to_servers(resources, parts.roles, config),
            )
            await manager.__aenter__()
            given = JobInputs(
                parts.agent, resources, parts.roles, manager, tasks, None, tasks, parts.reward, {}
            )
        setting = TrainingInputs(
            config,
            SeedTree(config.seed),
            Tasks((), (), ()),
            select_tools(config, load_tools(config), supports_tools=knows_tools),
            reward_of(config) if given is None else given.reward or resolve_reward(EMBEDDED_REWARD),
            policies[POLICY],
            parts.choice,
            given,
            {name: p for name, p in policies.items() if name not in (POLICY, FROZEN)},
        )
        return cls(setting, policies)

    async def load_weights(self, weights: Weights) -> None:
        """Load all weights with a new version."""
        async with self._loading:
            for name, (version, (reference,)) in weights.items():
                if self._versions.get(name) != version:
                    tensors: dict[str, Tensor] = await reference
                    policy = self._policies[name]
                    policy.load_tensors(tensors)
                    policy.version = self._versions[name] = version

    def add_traces(self, run_id: str, spans: Sequence[SpanRecord]) -> None:
        """Store spans sent by agents to the gateway of this worker."""
        self._traces.extend(spans)

    def pop_traces(self) -> list[SpanRecord]:
        """Return and remove the spans sent by agents since the last call."""
        traces, self._traces = self._traces, []
        return traces
