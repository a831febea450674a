"""What a `Trainer` has checked, as a plan, and how a few of its tasks are played to try it out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tutelage.config import Resolved
from tutelage.errors import ConfigError
from tutelage.resources import LLM, POLICY, NamedResources, Roles
from tutelage.rollouts.runner import Spec
from tutelage.runs.given import Given
from tutelage.types import Mode, Rollout
from tutelage.weights.setting import Setting

if TYPE_CHECKING:
    from tutelage.engine.remote import RemoteServers


class TrainingPlan(NamedTuple):
    """A training, checked and ready to run."""

    resolved: Resolved
    place: Path
    given: Given


def try_out(setting: Setting, given: Given, n: int) -> list[Rollout]:
    """Play the first tasks once each."""
    policies = {POLICY: setting.policy, **setting.others}
    names = {**given.roles.policies, **dict.fromkeys(given.roles.frozen, POLICY)}
    sources = {
        resource: (
            setting.engine(slots=8, policy=policies[name], schedule="free")
            if resource not in given.roles.remote
            else None,
            policies[name],
        )
        for resource, name in names.items()
    }
    specs = [
        Spec(task, Mode.TRAIN, "dev", i, setting.seeds.child("dev", i), label="dev")
        for i, task in enumerate(setting.tasks.train[:n])
    ]
    rollout = setting.config.rollout
    runner = given.stage.runner(
        setting.sources(sources, rollout.temperature),
        replace(setting.limits("dev"), group_deadline=None),
        max_tokens=setting.config.agent.max_tokens_per_turn,
        token_budget=rollout.response_length,
        reward=given.reward,
        on_spans=lambda rollout, spans: None,  # they name the agents that are marked
    )
    return given.stage.play(runner, specs)


def remotes_of(resources: NamedResources, roles: Roles, warm: float) -> RemoteServers | None:
    """Clients of the LLMs that other servers serve; None where there are none. `warm` is the
    temperature of the run.

    Raises `ConfigError` where one is trained of whose samples nobody would know the probability.
    """
    if not roles.remote:
        return None
    from tutelage.engine.endpoint import Endpoint
    from tutelage.engine.remote import RemoteServers

    servers: dict[str, Endpoint] = {}
    for name, url in roles.remote.items():
        llm: LLM = resources[name]
        trained = name in roles.policies
        if trained and warm != 1.0:
            raise ConfigError(
                f"LLM {name!r} is trained on what {url!r} samples, and servers tell "
                f"log-probabilities at temperature 1: set rollout.temperature=1, not {warm:g}"
            )
        servers[name] = Endpoint(name, url, llm.model or llm.name or name, llm.api_key, trained)
    return RemoteServers(servers)
