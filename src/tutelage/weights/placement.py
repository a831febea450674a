"""Where a training's rollouts are played, and by what: its agent, on engines of its policies.

`LocalPlacement` plays in this process: it makes an engine of a policy when it is first asked for,
keeps it at the policy's version, and makes the one `Runner` for the run's own built-in agent or for
the user's. A worker on another machine holds one too, so that the same code plays a rollout there
(`distributed/ray_workers.py`, loaded where `agent.placement` names it). `run.py` asks, and
stores what comes back.
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
from tutelage.policy.machine import machine_facts
from tutelage.policy.model import Policy
from tutelage.resources import POLICY
from tutelage.rollouts.models import EngineModelProvider, PolicySource
from tutelage.rollouts.runner import OnSpans, Runner
from tutelage.rollouts.workers import RolloutWorkers
from tutelage.runs.job_inputs import grader_of
from tutelage.types import JSON, Mode, Sampling
from tutelage.weights.inputs import EVALUATION_SLOTS, TrainingInputs

FROZEN = "frozen "
"""Means the policy as it was before training, among the names of policies."""


@dataclass(frozen=True, slots=True)
class PlaySettings:
    """How the rollouts of one batch are played."""

    run_id: str
    mode: Mode
    temperature: float
    with_tools: bool = True
    invariant: bool = False
    """Whether a sample may not depend on what else is sampled, as in a measurement."""
    own_agent: bool = False
    """Whether the user's agent plays, and not the built-in one."""


Tell = Callable[[str, str, JSON], None]
"""Takes what happened to a worker: a sentence, and an event with its values."""


class RolloutPool(Protocol):
    """Workers outside of this process, started before a run begins and ended after it."""

    def remarks(self) -> list[str]:
        """What is not the same on every worker, so that rollouts may depend on who plays them."""
        ...

    def placement(self, policies: Callable[[str], Policy], tell: Tell) -> LocalPlacement:
        """These workers as a run's placement. `policies` gives those that are trained by name, and
        the one before training."""
        ...

    def close(self) -> None:
        """End them."""


def check_workers(config: RunConfig) -> None:
    """Raise `MissingExtraError` or `ConfigError` where workers or ranks that the configuration has
    Ray place cannot be had, before anything is loaded for them."""
    workers = config.agent.placement == "ray"
    if workers or machine_facts().placed_ranks(config) > 1:
        cluster = importlib.import_module("tutelage.distributed.ray_cluster")
        nodes = f"trainer.nnodes={config.trainer.nnodes}"
        cluster.import_ray("agent.placement='ray'" if workers else nodes)
        cluster.check_address(config)


def start_workers(setting: TrainingInputs) -> RolloutPool | None:
    """The workers that the configuration asks for; None where this process plays."""
    if setting.config.agent.placement == "local" or setting.group.rank != 0:
        return None
    return importlib.import_module("tutelage.distributed.ray_workers").RayPool(setting)


class LocalPlacement:
    """Where rollouts are played: this process; a subclass has others play."""

    def __init__(
        self,
        setting: TrainingInputs,
        policies: Callable[[str], Policy],
        servers: Engine | None = None,
    ) -> None:
        """`policies` gives those that are trained by name, and the one before training; `servers`
        sample the main one in place of an engine of this process."""
        self._setting, self._policy_of, self._servers = setting, policies, servers
        self._engines: dict[tuple[str, bool, Schedule], Engine] = {}
        """By policy, whether samples are independent of their neighbours, and schedule."""

    def workers(
        self,
        play: PlaySettings,
        on_spans: OnSpans | None = None,
        on_traces: OnTraces | None = None,
    ) -> RolloutWorkers:
        """What plays a batch with the weights of now. Of a user's agent `on_spans` takes each
        rollout with its spans, and `on_traces` the spans that agents send by themselves."""
        setting, given = self._setting, self._setting.given
        config = setting.config
        if play.own_agent and given is not None:
            roles, rollout = given.roles, config.rollout
            sampling = Sampling(play.temperature, rollout.top_p, rollout.top_k)
            sources: dict[str, PolicySource] = {}
            for name, trained in (*roles.policies.items(), *((n, None) for n in roles.frozen)):
                policy = self._policy_of(trained or FROZEN)
                engine = None  # of what is sampled at its endpoint
                if name not in roles.remote:
                    engine = self._engine(trained or FROZEN, play.invariant, "free")
                sources[name] = PolicySource(engine, policy.codec, sampling, trained)
            return given.manager.runner(
                sources,
                setting.limits(play.run_id, play.mode),
                max_tokens=config.turn_tokens,
                token_budget=rollout.response_length,
                reward=grader_of(given, setting.reward),
                on_spans=on_spans,
                on_traces=on_traces,
                environment=setting.environment,
            )
        engine = self._engine(POLICY, play.invariant, config.rollout.schedule)
        return Runner(
            setting.agent(play.temperature, with_tools=play.with_tools),
            EngineModelProvider(engine, setting.policy.codec),
            setting.limits(play.run_id, play.mode),
            reward=setting.reward,
            environment=setting.environment,
        )

    def free(self) -> None:
        """Before an update, hold as little as can be until it is asked again."""
        for engine in self._engines.values():
            engine.free()

    def hand_over_weights(self) -> None:
        """After an update, training's engines sample from the weights of now; those of
        measurements when they are asked."""
        for key in [key for key in self._engines if not key[1]]:
            self._load(*key)

    def _engine(self, name: str, invariant: bool, schedule: Schedule) -> Engine:
        """A policy's training engine, or the one whose samples do not depend on neighbours."""
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
        return self._load(*key)

    def _load(self, name: str, invariant: bool, schedule: Schedule) -> Engine:
        """An engine that samples from the weights that its policy has now."""
        engine, policy = self._engines[name, invariant, schedule], self._policy_of(name)
        if engine.version != policy.version:
            engine.update_weights(policy, policy.version)
        return engine
