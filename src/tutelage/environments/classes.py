"""Adapters for environment classes written for TRL, SkyRL and gymnasium.

TRL's `environment_factory` (1.16) is a class whose `reset(**row)` returns None or text and whose
public functions are tools, or a dictionary of such classes, of which a row's `environment` names
one. SkyRL's classes have `init(prompt)` and a `step` that returns a dictionary. Classes with
gymnasium's `reset(seed=...)` and a `step` of five values are adapted in `gym.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any, cast

from omegaconf import OmegaConf

from tutelage.environments.gym import gym_factory
from tutelage.environments.protocol import Environment, EnvironmentFactory, Observation, Step
from tutelage.environments.tool_classes import ToolEnvironment
from tutelage.errors import ConfigError, DataError
from tutelage.tools.execute import call
from tutelage.tools.schema import read_signature
from tutelage.tools.tool import Tool, ToolClass
from tutelage.types import Message, Task


def adapt_class(value: Any, name: str, kwargs: Mapping[str, Any]) -> EnvironmentFactory | None:
    """Return the factory of a class written for another library, or of a dictionary of such
    classes, or None for other values. Raises `ConfigError` for an unusable class."""
    if isinstance(value, Mapping) and value:
        factories = dict[str, EnvironmentFactory]()
        for key, each in cast("Mapping[str, Any]", value).items():
            factory = adapt_class(each, f"{name}[{key!r}]", kwargs)
            if factory is None:
                raise ConfigError(f"{name}[{key!r}] is not an environment: {each!r:.80}")
            factories[key] = factory
        steady = all(factory.deterministic for factory in factories.values())
        return EnvironmentFactory(name, lambda: _RowEnvironment(factories), deterministic=steady)
    if not callable(value):
        return None
    make = cast("Callable[..., Any]", value)
    cls: Any = value if isinstance(value, type) else type(make(**kwargs))
    if hasattr(cls, "init") and hasattr(cls, "step"):
        factory = EnvironmentFactory(name, lambda: _SkyRLEnvironment(make, kwargs))
    elif not hasattr(cls, "reset"):
        return None
    elif hasattr(cls, "step") and "seed" in inspect.signature(cls.reset).parameters:
        factory = gym_factory(name, make, kwargs)
    else:
        members = inspect.getmembers_static(cls, lambda member: isinstance(member, FunctionType))
        hidden = ("reset", "get_reward", "close")
        public = {n: f for n, f in members if not n.startswith("_") and n not in hidden}
        tools = [Tool(n, d, f, s) for n, f in public.items() for d, s in [read_signature(f)]]
        owner = ToolClass(name, lambda task: make(**kwargs))
        specs = tuple(tool.spec for tool in tools)
        factory = EnvironmentFactory(name, lambda: _TRLEnvironment(owner, tools), specs)
    own = {n: getattr(cls, n) for n in ("tasks", "expert", "deterministic") if hasattr(cls, n)}
    return replace(factory, **own)


class _TRLEnvironment(ToolEnvironment):
    """One episode of a TRL environment class, whose `get_reward` is called after each turn."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Call `reset` with the row's fields and return the resulting text as an observation."""
        self.state = self._made = await call(self.owner.make, task)
        self._bound = {tool.name: tool.bind(self.state) for tool in self._tools}
        text: Any = await call(self.state.reset, **task.fields)
        if not (text is None or isinstance(text, str)):
            raise TypeError(f"reset must return text or None, got {text!r:.80}")
        shown = () if text is None else (Message("user", text),)
        specs = tuple(tool.spec for tool in self._tools)
        return Observation(shown, tools=specs, continues_prompt=True)

    async def _read_attribute(self, name: str) -> Any:
        """Return the value of `get_reward`, if defined. Only the model can end an episode."""
        read = getattr(self.state, "get_reward", None) if name == "reward" else None
        return None if read is None else await call(read)

    async def close(self) -> None:
        """Call `close` of the instance, if defined."""
        await call(getattr(self._made, "close", lambda: None))


class _RowEnvironment(Environment):
    """One episode of the environment named in the task's `environment` field."""

    def __init__(self, factories: Mapping[str, EnvironmentFactory]) -> None:
        self._factories = factories
        self._inner: Environment | None = None

    async def reset(self, task: Task, seed: int) -> Observation:
        """Reset the environment named by the task's `environment` field. Raises `DataError`."""
        key = str(task.fields.get("environment"))
        if key not in self._factories:
            raise DataError(
                f"task {task.id!r} has environment={key!r}; use one of {[*self._factories]}"
            )
        row = {name: value for name, value in task.fields.items() if name != "environment"}
        self._inner = self._factories[key].make()
        return await self._inner.reset(replace(task, fields=row), seed)

    async def step(self, action: Message) -> Step:
        """Apply a reply to the chosen environment."""
        assert self._inner is not None, "reset comes first"
        return await self._inner.step(action)

    async def close(self) -> None:
        """Close the chosen environment."""
        if self._inner is not None:
            await self._inner.close()


class _SkyRLEnvironment(Environment):
    """One episode of a SkyRL class, created with `env_config` and with the row as `extras`."""

    def __init__(self, make: Callable[..., Any], config: Mapping[str, Any]) -> None:
        self._make, self._config = make, OmegaConf.create(dict(config))
        self._inner: Any = None

    async def reset(self, task: Task, seed: int) -> Observation:
        """Call `init` with the task's messages, and return the messages added by it."""
        wanted = inspect.signature(self._make).parameters
        given = {"env_config": self._config, "extras": dict(task.fields)}
        self._inner = await call(self._make, **{n: v for n, v in given.items() if n in wanted})
        prompt = [message.to_dict() for message in task.messages()] if task.has_input else []
        shown, info = await call(self._inner.init, prompt)
        if list(shown[: len(prompt)]) != prompt:
            raise ValueError("init changed the task's messages; it may only append messages")
        return Observation(tuple(map(Message.from_dict, shown[len(prompt) :])), info=info or {})

    async def step(self, action: Message) -> Step:
        """Call `step` with the text of the reply."""
        out: Mapping[str, Any] = await call(self._inner.step, action.content or "")
        shown = tuple(map(Message.from_dict, out["observations"]))
        info = out.get("metadata") or {}
        return Step(Observation(shown), out["reward"], terminated=bool(out["done"]), info=info)

    async def close(self) -> None:
        """Close the environment."""
        await call(getattr(self._inner, "close", lambda: None))
