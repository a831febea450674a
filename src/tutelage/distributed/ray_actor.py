"""A rollout worker: a process that Ray placed, with a copy of the policies and a placement.

It plays groups as one process would (`weights/placement.py`), on engines whose samples do not
depend on what else is sampled: who plays a group, and beside which others, changes no bit of it.
Tools, environments, rewards and sandboxes run here; what was played goes back to the training,
which alone writes the record. Weights come by name and version and are taken when they are new.
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

from tutelage.distributed.shipment import Parts, Shipment, check_same, unpacked
from tutelage.gateway.address import BIND, URL
from tutelage.policy import machine
from tutelage.policy.model import Policy
from tutelage.resources import POLICY, NamedResources
from tutelage.rewards import resolve_reward
from tutelage.rollouts.manager import RolloutManager
from tutelage.rollouts.runner import RolloutSpec
from tutelage.runs.inputs import Tasks, load_tools, offered_tools, reward_of
from tutelage.runs.job_inputs import JobInputs
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import EMBEDDED_REWARD
from tutelage.tracing import SpanRecord
from tutelage.tracing.ingest import ingest_traces
from tutelage.trainer.arguments import remotes_of
from tutelage.types import JSON, Rollout
from tutelage.weights.config.extensions import load_extensions
from tutelage.weights.inputs import TrainingInputs
from tutelage.weights.placement import FROZEN, LocalPlacement, PlaySettings

Weights = Mapping[str, tuple[int, Sequence[Any]]]
"""By policy: its version, and in a list the reference to its tensors, so that Ray passes it on
unread."""


@dataclass(slots=True)
class Played:
    """A group as it was played."""

    rollouts: list[Rollout]
    spans: dict[str, list[SpanRecord]] = field(default_factory=dict[str, "list[SpanRecord]"])
    """What the code of a rollout opened, by its id."""
    traces: list[SpanRecord] = field(default_factory=list[SpanRecord])
    """What agents sent by themselves since the last group."""


class RolloutWorker:
    """See the module's docstring. Ray runs all its methods in one event loop."""

    def __init__(self) -> None:
        self._ready: asyncio.Future[_Stage] | None = None

    async def prepare(self, trainer: JSON, shipment: Shipment) -> JSON:
        """Take over what is played, and say what bits depend on here. `trainer` is what they depend
        on there. Raises `ConfigError` for another Python or version, and what cannot be loaded."""
        self._ready = asyncio.get_running_loop().create_future()
        try:
            for name in (BIND, URL):  # each worker has a gateway of its own
                os.environ.pop(name, None)
            check_same(trainer, host := platform.node())
            stage = await _Stage.open(await unpacked(shipment, host))
            self._ready.set_result(stage)
        except Exception as error:
            self._ready.set_exception(error)
            self._ready.exception()  # it is raised here, and need not be fetched
            raise
        conditions = machine.compute_conditions(stage.setting.choice)
        return {"host": host, "pid": os.getpid(), "conditions": conditions}

    async def play(
        self, specs: Sequence[RolloutSpec], play: PlaySettings, weights: Weights, *, spans: bool
    ) -> Played:
        """Play one group; with `spans` what the code of its rollouts opened comes back too."""
        while self._ready is None:  # the call to prepare was sent first, and may begin later
            await asyncio.sleep(0)
        stage = await self._ready
        await stage.take(weights)
        kept: dict[str, list[SpanRecord]] = {}

        def keep(rollout: Rollout, records: Sequence[SpanRecord]) -> None:
            kept[rollout.id] = list(records)

        traces = partial(ingest_traces, stage.add_traces, play.run_id)
        play = replace(play, invariant=True)
        runner = stage.placement.workers(play, keep if spans else None, traces)
        rollouts = await runner.run(specs)
        return Played(rollouts, kept, stage.traces())


class _Stage:
    """What a worker plays with."""

    def __init__(self, setting: TrainingInputs, policies: dict[str, Policy]) -> None:
        self.setting, self._policies = setting, policies
        self.placement = LocalPlacement(setting, policies.__getitem__)
        self._versions: dict[str, int] = {}
        self._taking = asyncio.Lock()
        self._traces: list[SpanRecord] = []

    @classmethod
    async def open(cls, parts: Parts) -> _Stage:
        """Read what the configuration names, and begin what the agent needs: a manager of this
        process, which stays open until the process ends."""
        config, policies, given = parts.config, parts.policies, None
        policies[FROZEN] = policies[POLICY].copy()
        load_extensions(config)
        knows_tools = policies[POLICY].codec.knows_tools
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
                remote=remotes_of(resources, parts.roles, config),
            )
            await manager.__aenter__()
            given = JobInputs(
                parts.agent, resources, parts.roles, manager, tasks, None, tasks, parts.reward, {}
            )
        setting = TrainingInputs(
            config,
            SeedTree(config.seed),
            Tasks((), (), ()),
            offered_tools(config, load_tools(config), knows_tools=knows_tools),
            reward_of(config) if given is None else given.reward or resolve_reward(EMBEDDED_REWARD),
            policies[POLICY],
            parts.choice,
            given,
            {name: p for name, p in policies.items() if name not in (POLICY, FROZEN)},
        )
        return cls(setting, policies)

    async def take(self, weights: Weights) -> None:
        """Load the weights that are new."""
        async with self._taking:
            for name, (version, (reference,)) in weights.items():
                if self._versions.get(name) != version:
                    tensors: dict[str, Tensor] = await reference
                    policy = self._policies[name]
                    policy.load_tensors(tensors)
                    policy.version = self._versions[name] = version

    def add_traces(self, run_id: str, spans: Sequence[SpanRecord]) -> None:
        """Keep spans that agents sent by themselves."""
        self._traces.extend(spans)

    def traces(self) -> list[SpanRecord]:
        """Return what agents sent by themselves since the last call."""
        traces, self._traces = self._traces, []
        return traces
