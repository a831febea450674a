"""The arguments of a `Trainer` as the job takes them: tasks, roles, other servers, and a try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutelage.errors import ConfigError
from tutelage.resources import LLM, POLICY, NamedResources, Roles
from tutelage.rollouts.runner import RolloutSpec
from tutelage.runs.job_inputs import JobInputs
from tutelage.tasks.dataset import Dataset
from tutelage.types import Mode, Rollout, Task

if TYPE_CHECKING:
    from tutelage.weights.inputs import TrainingInputs

if TYPE_CHECKING:
    from tutelage.engine.remote import RemoteServers


Tasks = Dataset[Any] | Sequence[Mapping[str, Any] | Task] | str | Path
"""Tasks as a Dataset, as rows, or as a file of them."""


def tasks_of(given: Tasks | None, name: str) -> Sequence[Task] | None:
    """Tasks as they are given; None stays None."""
    if given is None:
        return None
    if isinstance(given, (str, Path)):
        return Dataset[Any].load(given)
    if isinstance(given, Dataset):
        return given
    return Dataset(given, name=f"{name}_dataset", input_required=False)


def with_main_policy(found: Roles, main: str) -> Roles:
    """The first policy is the main one, whatever it was called, unless another one is."""
    if POLICY in found.policies.values():
        order = sorted(found.policies.items(), key=lambda item: item[1] != POLICY)
        return Roles(dict(order), found.frozen, found.remote)
    renamed = {r: POLICY if name == main else name for r, name in found.policies.items()}
    return Roles(renamed, found.frozen, found.remote)


def play_once(setting: TrainingInputs, given: JobInputs, n: int) -> list[Rollout]:
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
        RolloutSpec(task, Mode.TRAIN, "dev", i, setting.seeds.child("dev", i), label="dev")
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
    """Clients of the LLMs that other servers serve; None if there are none. `warm` is the
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
