"""The placement of a training's rollouts: its agent, on engines of its policies.

`LocalPlacement` plays in this process: it creates an engine of a policy on first use, keeps it at
the policy's version, and creates the `Runner` for the built-in agent or the user's. A worker on
another machine has one too, so that the same code plays its rollouts (`distributed/ray_workers.py`,
loaded if `agent.placement` names it). `run.py` calls this and stores the rollouts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tutelage.config import RunConfig
from tutelage.engine.driver import Schedule
from tutelage.engine.factory import make_engine
from tutelage.engine.protocol import Engine
from tutelage.gateway.app import OnTraces
from tutelage.policy.machine import detect_machine
from tutelage.policy.model import Policy
from tutelage.resources import POLICY
from tutelage.rollouts.models import EngineModelProvider, PolicySource
from tutelage.rollouts.runner import OnSpans, Runner
from tutelage.rollouts.workers import RolloutWorkers
from tutelage.runs.job_inputs import job_reward
from tutelage.types import JSON, Mode, Sampling
from tutelage.weights.inputs import EVALUATION_SLOTS, TrainingInputs

FROZEN = "frozen "
"""Name of the policy as it was before training."""


@dataclass(frozen=True, slots=True)
class PlaySettings:
    """Settings for playing the rollouts of one batch."""

    run_id: str
    mode: Mode
    temperature: float
    with_tools: bool = True
    invariant: bool = False
    """True if samples must not depend on other samples of the batch, as in a measurement."""
    own_agent: bool = False
    """True if the user's agent plays instead of the built-in one."""


Tell = Callable[[str, str, JSON], None]
"""Callback for an event of a worker: receives a message, the event's name and its values."""


class RolloutPool(Protocol):
    """Rollout workers outside of this process, started before a run begins and ended after it."""

    warnings: Callable[[], list[str]]
    """Describe the differences of workers that may change rollouts."""
    placement: Callable[[Callable[[str], Policy], Tell], LocalPlacement]
    """Return the placement of a run's rollouts on these workers, given a function that returns a
    policy by name."""
    close: Callable[[], None]
    """End the workers."""


def check_workers(config: RunConfig) -> None:
    """Raise `MissingExtraError` or `ConfigError` if configured Ray workers are not available."""
    workers = config.agent.placement == "ray"
    if workers or detect_machine().count_ray_ranks(config) > 1:
        cluster = importlib.import_module("tutelage.distributed.ray_cluster")
        nodes = f"trainer.nnodes={config.trainer.nnodes}"
        cluster.import_ray("agent.placement='ray'" if workers else nodes)
        cluster.check_address(config)


def start_workers(inputs: TrainingInputs) -> RolloutPool | None:
    """Start the rollout workers, or return None if rollouts are played in this process."""
    if inputs.config.agent.placement == "local" or inputs.group.rank != 0:
        return None
    return importlib.import_module("tutelage.distributed.ray_workers").RayPool(inputs)


class LocalPlacement:
    """The rollout engines and runners of this process. A subclass uses Ray workers."""

    def __init__(
        self,
        inputs: TrainingInputs,
        get_policy: Callable[[str], Policy],
        servers: Engine | None = None,
    ) -> None:
        """Create a placement.

        `get_policy` returns a trained policy, or the policy before training, by name. `servers`
        sample the main policy in place of an engine of this process.
        """
        self._setting, self._policy_of, self._servers = inputs, get_policy, servers
        self._engines: dict[tuple[str, bool, Schedule], Engine] = {}
        """Engines by policy, by whether samples are independent of the batch, and by schedule."""

    def workers(
        self,
        options: PlaySettings,
        on_spans: OnSpans | None = None,
        on_traces: OnTraces | None = None,
    ) -> RolloutWorkers:
        """Return the rollout workers for a batch, with the current weights.

        For a user's agent `on_spans` receives each rollout with its spans, and `on_traces` the
        spans that agents send themselves.
        """
        setting, given = self._setting, self._setting.given
        config = setting.config
        if options.own_agent and given is not None:
            roles, rollout = given.roles, config.rollout
            sampling = Sampling(options.temperature, rollout.top_p, rollout.top_k)
            sources: dict[str, PolicySource] = {}
            for name, trained in (*roles.policies.items(), *((n, None) for n in roles.frozen)):
                policy = self._policy_of(trained or FROZEN)
                engine = None  # of what is sampled at its endpoint
                if name not in roles.remote:
                    engine = self._get_engine(trained or FROZEN, options.invariant, "free")
                sources[name] = PolicySource(engine, policy.codec, sampling, trained)
            return given.manager.runner(
                sources,
                setting.limits(options.run_id, options.mode),
                max_tokens=config.turn_tokens,
                token_budget=rollout.response_length,
                reward=job_reward(given, setting.reward),
                on_spans=on_spans,
                on_traces=on_traces,
                environment=setting.environment,
            )
        engine = self._get_engine(POLICY, options.invariant, config.rollout.schedule)
        return Runner(
            setting.make_agent(options.temperature, with_tools=options.with_tools),
            EngineModelProvider(engine, setting.policy.codec),
            setting.limits(options.run_id, options.mode),
            reward=setting.reward,
            environment=setting.environment,
        )

    def free(self) -> None:
        """Free the memory of the engines for an update."""
        for engine in self._engines.values():
            engine.free()

    def hand_over_weights(self) -> None:
        """Load the updated weights into the training engines; other engines load them on use."""
        for key in [key for key in self._engines if not key[1]]:
            self._load_engine(*key)

    def _get_engine(self, name: str, invariant: bool, schedule: Schedule) -> Engine:
        """Return the training engine of a policy, or its batch-invariant engine."""
        key = (name, invariant, schedule)
        if key not in self._engines and name == POLICY and self._servers is not None:
            self._engines[key] = self._servers
        elif key not in self._engines:
            setting, slots = self._setting, self._setting.config.rollout.slots
            self._engines[key] = make_engine(
                self._policy_of(name),
                slots=min(EVALUATION_SLOTS, slots) if invariant else slots,
                max_length=setting.context,
                dtype=setting.choice.numerics.dtype,
                threads=setting.config.trainer.threads,
                invariant=invariant,
                schedule=schedule,
            )
        return self._load_engine(*key)

    def _load_engine(self, name: str, invariant: bool, schedule: Schedule) -> Engine:
        """Load the current weights of a policy into its engine, and return the engine."""
        engine, policy = self._engines[name, invariant, schedule], self._policy_of(name)
        if engine.version != policy.version:
            engine.update_weights(policy, policy.version)
        return engine
