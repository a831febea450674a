"""What a rollout worker gets: the configuration, the policies, and the objects of a Python agent.

What the configuration names (tools, agent types, rewards in files) a worker reads for itself, so
that it has its own sandbox and its own servers of tools; what exists as an object alone is sent.
Functions of files that were named on the command line, and of the main program, are sent with their
code; other modules have to be importable there. Each part is packed by itself, so that an error
says which one cannot be sent. Ray is imported when something is packed or unpacked.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutelage import __version__
from tutelage.agents.agent import Agent
from tutelage.agents.function import MODEL, TOKENIZER, AgentFunction
from tutelage.agents.isolated import IsolatedAgent
from tutelage.config import RunConfig
from tutelage.errors import ConfigError
from tutelage.policy.machine import ComputeSettings
from tutelage.policy.model import Policy
from tutelage.resources import POLICY, NamedResources, Roles
from tutelage.rewards import RewardFunction, resolve_reward
from tutelage.runs.inputs import reward_of
from tutelage.runs.job_inputs import JobInputs
from tutelage.tasks.arithmetic import EMBEDDED_REWARD
from tutelage.tools.loading import USER_MODULE
from tutelage.trainer.arguments import remotes_of
from tutelage.types import JSON
from tutelage.weights.inputs import TrainingInputs

if TYPE_CHECKING:
    from tutelage.engine.remote import RemoteServers


@dataclass(frozen=True, slots=True)
class AgentParts:
    """A user's agent, and what it plays with."""

    agent: Agent
    resources: NamedResources
    roles: Roles
    reward: RewardFunction | None
    config: RunConfig
    n_runners: int
    isolation: str
    own_tasks: bool

    def servers(self) -> RemoteServers | None:
        """Clients of the LLMs that other servers serve."""
        return remotes_of(self.resources, self.roles, self.config)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a worker plays with."""

    config: RunConfig
    choice: ComputeSettings
    policies: Mapping[str, Policy]
    agent: AgentParts | None

    @property
    def reward(self) -> RewardFunction | None:
        """What grades rollouts; one that the configuration names is read here."""
        if self.agent is None:
            return reward_of(self.config)
        return self.agent.reward or resolve_reward(EMBEDDED_REWARD)


Shipment = Mapping[str, tuple[str, bytes]]
"""By key: a part in words, and what was made of it."""


def packed(setting: TrainingInputs) -> Shipment:
    """What a worker plays with, part by part. Raises `ConfigError` for what cannot be sent."""
    # The context follows from the memory of a machine, and all have to play the same.
    rollout = setting.config.rollout.model_copy(update={"max_len": setting.context})
    config = setting.config.model_copy(update={"rollout": rollout})
    choice = replace(setting.choice, operation_threads=1, shards=1)
    parts: dict[str, tuple[str, Any]] = {
        "config": ("the configuration", config),
        "choice": ("the choice of number formats", choice),
        "policies": ("the policies", {POLICY: setting.policy, **setting.others}),
        **({} if setting.given is None else _agent_parts(setting.given)),
    }
    return {key: (what, dumped(what, value)) for key, (what, value) in parts.items()}


def _agent_parts(given: JobInputs) -> dict[str, tuple[str, Any]]:
    manager, reward = given.manager, given.reward
    isolation = "process" if isinstance(manager.agent, IsolatedAgent) else "none"
    name = "none" if reward is None else repr(reward.name)
    return {
        "agent": (f"the agent {given.agent.name!r}", given.agent),
        **{f"/{n}": (f"the resource {n!r}", value) for n, value in given.resources.items()},
        "reward": (f"the reward {name}", reward),
        "roles": ("the roles of its LLMs", given.roles),
        "rest": ("its settings", (manager.n_runners, isolation, given.own_tasks)),
    }


def unpacked(shipment: Shipment, host: str) -> Parts:
    """What was packed. Raises `ConfigError` for a part that cannot be loaded on this machine."""
    found = {key: loaded(what, data, host) for key, (what, data) in shipment.items()}
    agent = None
    if "agent" in found:
        resources = {key[1:]: value for key, value in found.items() if key.startswith("/")}
        agent = AgentParts(
            found["agent"],
            NamedResources(resources),
            found["roles"],
            found["reward"],
            found["config"],
            *found["rest"],
        )
    return Parts(found["config"], found["choice"], found["policies"], agent)


# ---------------------------------------------------------------- one part


def _cloudpickle() -> Any:
    from ray import cloudpickle

    return cloudpickle


def _dumps(value: object) -> bytes:
    """Pickle a value, functions of the main program and of files with their code."""
    cloudpickle = _cloudpickle()
    for name, module in list(sys.modules.items()):
        if name.startswith(USER_MODULE):  # no worker could import it
            cloudpickle.register_pickle_by_value(module)

    def reduced(pickler: Any, part: object) -> Any:
        if isinstance(part, AgentFunction) and part.isolation == "none":
            return _agent, (part.fn, part.own_resources())
        return cloudpickle.CloudPickler.reducer_override(pickler, part)

    kind = type("_Pickler", (cloudpickle.CloudPickler,), {"reducer_override": reduced})
    file = io.BytesIO()
    kind(file).dump(value)
    return file.getvalue()


def _agent(fn: Callable[..., Any], own: Mapping[str, Any]) -> AgentFunction:
    return AgentFunction(fn, model=own.get(MODEL), tokenizer=own.get(TOKENIZER))


def dumped(what: str, value: object) -> bytes:
    """One part as bytes; `what` names it in errors. Raises `ConfigError`."""
    try:
        return _dumps(value)
    except Exception as error:
        holder = _unsendable(value, 3)
        where = f"{what}, in {holder}," if holder else what
        raise ConfigError(
            f"cannot send {where} to a Ray worker: {error}. Create it inside the rollout, or in a "
            "resource that is an async context manager, which each worker enters itself; or use "
            "agent.placement=local"
        ) from error


def _unsendable(value: object, depth: int) -> str:
    """The name under which something lies that cannot be packed, down to some depth."""
    for name, part in _held(value):
        try:
            _dumps(part)
        except Exception:
            inner = _unsendable(part, depth - 1) if depth > 1 else ""
            return inner or repr(name)
    return ""


def _held(value: Any) -> Iterator[tuple[str, object]]:
    """What a function refers to and an object holds, by name."""
    while isinstance(value, functools.partial):
        value = value.func
    function = inspect.unwrap(value) if callable(value) else None
    if inspect.isfunction(function):
        used = inspect.getclosurevars(function)
        yield from {**used.nonlocals, **used.globals}.items()
    yield from getattr(value, "__dict__", {}).items()
    for kind in inspect.getmro(type(value)):
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield name, getattr(value, name)


def loaded(what: str, data: bytes, host: str) -> Any:
    """One part again, on the machine `host`. Raises `ConfigError`."""
    try:
        return _cloudpickle().loads(data)
    except Exception as error:
        raise ConfigError(
            f"a Ray worker on {host!r} cannot load {what}: {type(error).__name__}: {error}. "
            "Install its imports there, or use `ray job submit --working-dir .`"
        ) from error


# ---------------------------------------------------------------- the same code on both sides


@functools.cache
def source_mark() -> str:
    """The version of this package, and a digest of its source."""
    root, digest = Path(__file__).parents[1], hashlib.blake2b(digest_size=8)
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{__version__} ({digest.hexdigest()})"


def here() -> JSON:
    """What has to be the same on a worker."""
    return {"python": platform.python_version(), "tutelage": source_mark()}


def check_same(there: JSON, host: str) -> None:
    """Raise `ConfigError` where this worker is not what the training is on."""
    odd = [(name, was, now) for name, was in there.items() if (now := here()[name]) != was]
    for name, was, now in odd:
        raise ConfigError(
            f"the Ray worker on {host!r} has {name} {now}, but this run has {was}, so results "
            "would differ; install the same version there, and restart its node"
        )
