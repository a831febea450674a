"""The inputs of a rollout worker: the configuration, the policies, and objects of a Python agent.

A worker loads what the configuration names (tools, agent types, rewards in files), so that it has
its own sandbox and tool servers; Python objects are sent through Ray's object store. Functions of
user files and of the main program are sent with their code; other modules must be importable on the
worker. Each part is put separately, so that an error names the part that cannot be sent. Ray is
imported on first use.
"""

from __future__ import annotations

import functools
import hashlib
import io
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tutelage import __version__
from tutelage.agents.agent import Agent, Isolation
from tutelage.agents.function import MODEL, TOKENIZER, AgentFunction
from tutelage.agents.isolated import IsolatedAgent
from tutelage.config import RunConfig
from tutelage.distributed.ray_cluster import import_ray
from tutelage.errors import ConfigError
from tutelage.policy.machine import ComputeSettings
from tutelage.policy.model import Policy
from tutelage.resources import POLICY, Roles
from tutelage.rewards import RewardFunction
from tutelage.tools.loading import USER_MODULE
from tutelage.types import JSON
from tutelage.weights.inputs import TrainingInputs

Shipment = Mapping[str, tuple[str, list[Any]]]
"""The name of each part in errors and its reference, in a list so that Ray does not resolve it."""


@dataclass(slots=True)
class Parts:
    """The inputs of a rollout worker. The fields from `agent` on are for a Python agent."""

    config: RunConfig
    choice: ComputeSettings
    policies: dict[str, Policy]
    agent: Agent | None = None
    reward: RewardFunction | None = None
    roles: Roles = field(default_factory=lambda: Roles({}, (), {}))
    play: tuple[int, Isolation, bool] = (1, "none", False)
    """The agent's number of runners, its isolation, and True if it has its own tasks."""
    resources: dict[str, Any] = field(default_factory=dict[str, Any])


def put_inputs(inputs: TrainingInputs) -> Shipment:
    """Put the inputs of rollout workers into Ray's object store. Raises `ConfigError`."""
    ray, given = import_ray(), inputs.given
    # The context follows from the memory of a machine, and all have to play the same.
    rollout = inputs.config.rollout.model_copy(update={"max_len": inputs.context})
    parts: dict[str, tuple[str, Any]] = {
        "config": ("the configuration", inputs.config.model_copy(update={"rollout": rollout})),
        "choice": (
            "the choice of number formats",
            replace(inputs.choice, operation_threads=1, shards=1),
        ),
        "policies": ("the policies", {POLICY: inputs.policy, **inputs.others}),
    }
    if given is not None:
        isolation = "process" if isinstance(given.manager.agent, IsolatedAgent) else "none"
        name = None if given.reward is None else given.reward.name
        parts |= {
            "agent": (f"the agent {given.agent.name!r}", given.agent),
            "reward": (f"the reward {name!r}", given.reward),
            "roles": ("the roles of its LLMs", given.roles),
            "play": ("its settings", (given.manager.n_runners, isolation, given.has_own_tasks)),
            **{f"/{n}": (f"the resource {n!r}", value) for n, value in given.resources.items()},
        }
    ray.util.register_serializer(AgentFunction, serializer=_dump_agent, deserializer=_load_agent)
    return {key: (label, [put_part(label, value)]) for key, (label, value) in parts.items()}


def put_part(label: str, value: object) -> Any:
    """Put a value into the object store and return its reference.

    Raises `ConfigError` with the `label` of the value if it cannot be serialised.
    """
    ray = import_ray()
    for name, module in list(sys.modules.items()):
        if name.startswith(USER_MODULE):  # no worker could import it
            ray.cloudpickle.register_pickle_by_value(module)
    try:
        return ray.put(value)
    except Exception as error:
        _, failed = ray.util.inspect_serializability(value, print_file=io.StringIO())
        names = [f", in {one.path[-1]!r}," for one in failed if one.path]
        raise ConfigError(
            f"cannot send {label}{''.join(names[:1])} to a Ray worker: {error.__cause__ or error}. "
            "Create it inside the rollout, or in a resource that is an async context manager, "
            "which each worker enters itself; or use agent.placement=local"
        ) from error


def _dump_agent(agent: AgentFunction) -> tuple[Callable[..., Any], Isolation, Mapping[str, Any]]:
    return agent.fn, agent.isolation, agent.own_resources()


def _load_agent(parts: tuple[Callable[..., Any], Isolation, Mapping[str, Any]]) -> AgentFunction:
    fn, isolation, own = parts
    return AgentFunction(
        fn, model=own.get(MODEL), tokenizer=own.get(TOKENIZER), isolation=isolation
    )


async def load_shipment(shipment: Shipment, host: str) -> Parts:
    """Load the inputs of a worker. Raises `ConfigError` if one cannot be loaded on `host`."""
    values: dict[str, Any] = {}
    for key, (label, (reference,)) in shipment.items():
        try:
            values[key] = await reference
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                f"a Ray worker on {host!r} cannot load {label}: {reason}. Install its imports "
                "there, or use `ray job submit --working-dir .`"
            ) from error
    resources = {key[1:]: values.pop(key) for key in [*values] if key.startswith("/")}
    return Parts(**values, resources=resources)


@functools.cache
def source_version() -> str:
    """Return the version of this package with a hash of its source."""
    root, digest = Path(__file__).parents[1], hashlib.blake2b(digest_size=8)
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{__version__} ({digest.hexdigest()})"


def versions() -> JSON:
    """Return the Python and package versions, which must be equal on trainer and workers."""
    return {"python": platform.python_version(), "tutelage": source_version()}


def check_versions(expected: JSON, host: str) -> None:
    """Raise `ConfigError` if the versions of this worker differ from the trainer's versions."""
    odd = [(name, was, now) for name, was in expected.items() if (now := versions()[name]) != was]
    for name, was, now in odd:
        raise ConfigError(
            f"the Ray worker on {host!r} has {name} {now}, but this run has {was}, so results "
            "would differ; install the same version there, and restart its node"
        )
