"""What a `Trainer` has checked, as a plan, and how a few of its tasks are played to try it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tutelage.agents.program import Program
from tutelage.config import Resolved, RunConfig
from tutelage.policy.model import Policy
from tutelage.resources import LLM, POLICY, NamedResources, Roles
from tutelage.rollouts.runner import RunnerSettings, Spec
from tutelage.runs.given import Given
from tutelage.types import Mode, Rollout, Sampling, Task
from tutelage.weights.setting import Setting

if TYPE_CHECKING:
    from tutelage.engine.remote import RemoteServers


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A training, checked and ready to run."""

    resolved: Resolved
    place: Path
    program: Program
    resources: NamedResources
    roles: Roles
    train: Sequence[Task] | None
    val: Sequence[Task] | None
    test: Sequence[Task] | None
    policies: Mapping[str, Policy]


def try_out(setting: Setting, given: Given, n: int) -> list[Rollout]:
    """Play the first tasks once each."""
    config: RunConfig = setting.config
    policies = {POLICY: setting.policy, **setting.others}
    names = {**given.roles.policies, **dict.fromkeys(given.roles.frozen, POLICY)}
    sources = {
        resource: (
            setting.engine(slots=8, policy=policies[name], schedule="free"),
            policies[name],
        )
        for resource, name in names.items()
    }
    specs = [
        Spec(task, Mode.TRAIN, "dev", i, setting.seeds.child("dev", i), label="dev")
        for i, task in enumerate(setting.tasks.train[:n])
    ]
    return given.stage.play(
        specs,
        sources,
        sampling=Sampling(config.rollout.temperature, config.rollout.top_p, config.rollout.top_k),
        max_tokens=config.agent.max_tokens_per_turn,
        token_budget=config.rollout.response_length,
        settings=RunnerSettings(
            "dev",
            config.agent.timeout,
            concurrency=given.stage.n_runners,
            failure_reward=config.agent.failure_reward,
            reward_timeout=config.agent.reward_timeout,
        ),
        reward=given.reward,
        on_done=None,
        on_spans=lambda rollout, spans: None,  # they name the agents that are marked
    )


def remotes_of(plan: TrainingPlan) -> RemoteServers | None:
    """Clients of the LLMs that other servers serve; None where there are none."""
    if not plan.roles.remote:
        return None
    from tutelage.engine.remote import RemoteServers, Server

    servers: dict[str, Server] = {}
    for name, url in plan.roles.remote.items():
        llm: LLM = plan.resources[name]
        servers[name] = Server(url, llm.model or llm.name or name, llm.api_key)
    return RemoteServers(servers)
