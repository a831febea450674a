"""A user's agent from a file: `tutelage train prompt AGENT.py`.

The agent is the file's only `@rollout` function, `LitAgent` or `ExternalAgent`, or the one named by
`AGENT.py:name`. Its resources are `resources` of its module, or else the prompt templates there,
each under the name of its variable, for a file and for an object. `docs/agents.md` describes how to
write agents.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from tutelage.agents.agent import Agent
from tutelage.agents.external import ExternalAgent
from tutelage.agents.function import AgentFunction, as_agent
from tutelage.agents.lit_agent import LitAgent
from tutelage.errors import ConfigError
from tutelage.resources import NamedResources, PromptTemplate
from tutelage.rewards import RewardFunction
from tutelage.tools.loading import load_module, suggest_file
from tutelage.tools.source import hash_source

RESOURCES = "resources"


def load_agent(
    source: Any, resources: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Agent, NamedResources]:
    """Load an agent from an object or a file, with the resources of its module. `resources`
    override them. Raises `ConfigError`."""
    if not isinstance(source, (str, Path)):
        agent = as_agent(source)
        return agent, NamedResources(
            {**_find_resources(_module_vars(agent), resources), **resources}
        )
    reference = str(source)
    file, _, name = reference.rpartition(":")
    if not file.endswith(".py"):
        file, name = reference, ""
    if not file.endswith(".py"):
        raise ConfigError(
            f"the agent {reference!r} must be a Python file: AGENT.py or AGENT.py:name"
        )
    if not Path(file).is_file():
        suggestion = suggest_file(Path(file)) or "; pass the path of an agent file"
        raise ConfigError(f"agent file not found: {file!r}{suggestion}")
    names = vars(load_module(Path(file).resolve(), f"agent {file!r}"))
    if name in names:
        found = names[name]
    else:
        agents = _find_agents(names)
        if name:
            known = ", ".join(agents) or "none"
            raise ConfigError(f"{file} does not define {name!r}; its agents are {known}")
        if len(agents) != 1:
            known = f"several agents, {', '.join(agents)}" if agents else "no agent"
            raise ConfigError(
                f"{file} has {known}; decorate one function with @rollout, or choose one: "
                f"{file}:{next(iter(agents), 'name')}"
            )
        (found,) = agents.values()
    agent = as_agent(found() if isinstance(found, type) else found)
    return agent, NamedResources({**_find_resources(names, resources), **resources})


def _find_agents(names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the agents that a module defines, by name."""
    kinds = (AgentFunction, LitAgent, ExternalAgent)
    here = {n: v for n, v in names.items() if isinstance(v, kinds) and not n.startswith("_")}
    if here:
        return here
    own = names["__name__"]
    return {
        n: v()
        for n, v in names.items()
        if isinstance(v, type) and issubclass(v, LitAgent) and v.__module__ == own
    }


def _module_vars(agent: Agent) -> Mapping[str, Any]:
    """Return the global variables of the module that defines an agent."""
    if isinstance(agent, AgentFunction):
        return getattr(inspect.unwrap(agent.fn), "__globals__", {})
    own = type(agent).__module__
    module = None if own.startswith("tutelage.") else sys.modules.get(own)
    return {} if module is None else vars(module)


def _find_resources(names: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources of a module, or none if the caller passes prompt templates."""
    own = names.get(RESOURCES)
    if isinstance(own, Mapping):
        return dict(cast("Mapping[str, Any]", own))
    if any(isinstance(value, PromptTemplate) for value in overrides.values()):
        return {}
    return {n: v for n, v in names.items() if isinstance(v, PromptTemplate)}


def source_hash(*objects: object) -> str:
    """Hash the source code of agents, rewards or tools, including the code that they use in local
    files (`tools/source.py`)."""
    digest = hashlib.blake2b(digest_size=16)
    for thing in objects:
        digest.update(_object_code(thing).encode() + b"\0")
    return digest.hexdigest()


def _object_code(value: object) -> str:
    """Return the source hash of an object, or its name if there is no source."""
    if isinstance(value, RewardFunction | AgentFunction):
        return _object_code(value.fn)
    if isinstance(value, ExternalAgent):
        files = [Path(value.cwd or "", word) for word in value.command[1:]]
        texts = [f.read_bytes().hex() for f in files if f.is_file()]
        return repr((value.command[1:], value.output, value.task, texts))
    code_object: Any = value if inspect.isroutine(value) or isinstance(value, type) else type(value)
    # Of what was made in a console, or is built in, the name is what is known.
    module = getattr(code_object, "__module__", "")
    name = f"{module}.{getattr(code_object, '__qualname__', code_object)!s}"
    return _object_source(code_object) or name


def _object_source(code_object: Any) -> str | None:
    """Return the source hash of a user's function or class, or None if it has no file or belongs to
    this package."""
    try:
        text = inspect.getsourcefile(code_object)
    except (TypeError, OSError):  # built in; made in a console
        return None
    if text is None or not Path(text).is_file():
        return None
    path = Path(text).resolve()
    if path.is_relative_to(Path(__file__).resolve().parents[1]):
        return None
    return hash_source(path, str(getattr(code_object, "__qualname__", "")).partition(".")[0])
