"""Gymnasium's environments as text: `gym:ID`, and classes whose `step` returns five values.

Observations are texts, drawings of `render_mode="ansi"`, or discrete values; actions are texts or
names of discrete actions. Colours of a drawing become words, since only a colour may mark the
agent. Spaces are recognised by class name, so a class of another library needs no gymnasium.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tutelage.environments.protocol import Environment, EnvironmentFactory, Observation, Step
from tutelage.errors import ConfigError
from tutelage.tools.execute import call
from tutelage.types import Message, Task

ACTIONS = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
}
"""Action names of gymnasium's text environments, which do not name their actions."""
SEEDS = 10**6
"""Distance between the seeds of two splits, and of two runs of adjacent seeds."""
_COLOURS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson")
_COLOURED = re.compile(r"\x1b\[([34])(\d)[\d;]*m(.*?)\x1b\[0m", re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def make_factory(argument: str, kwargs: Mapping[str, Any]) -> EnvironmentFactory:
    """Return the factory of a registered environment, created with `kwargs`; its entry `actions` is
    a list of names for discrete actions.

    Raises `ConfigError` for an unknown ID, wrong arguments or spaces that cannot be text, and
    `ModuleNotFoundError` without gymnasium.
    """
    import gymnasium

    def make(**options: Any) -> Any:
        return gymnasium.make(argument, disable_env_checker=True, **options)

    return gym_factory(f"gym:{argument}", make, kwargs)


def first_seed(split: str, seed: int) -> int:
    """Return the first task seed of a split, far from the seeds of other splits and runs."""
    return (3 * seed + ("train", "val", "test").index(split)) * SEEDS % 2**31


def seeded_tasks(split: str, n: int, seed: int) -> Sequence[Task]:
    """Return `n` tasks of a split; their only field is the seed passed to `reset`."""
    first = first_seed(split, seed)
    return [Task(f"{split}-{number}", {"seed": number}) for number in range(first, first + n)]


def gym_factory(
    name: str, construct: Callable[..., Any], kwargs: Mapping[str, Any]
) -> EnvironmentFactory:
    """Return a factory of gymnasium environments created by `construct(**kwargs)`, whose
    `reset(seed)` returns two values and `step(action)` five. Raises `ConfigError`."""
    options = dict(kwargs)
    names: Sequence[str] = options.pop("actions", ())
    try:
        probe = construct(**options)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{name} cannot be created with environment.kwargs={options!r}: {reason[:300]}"
        ) from error
    modes = (getattr(probe, "metadata", None) or {}).get("render_modes") or ()
    if "ansi" in modes:
        options.setdefault("render_mode", "ansi")
    drawn = options.get("render_mode") == "ansi"
    acting = getattr(probe, "action_space", None)
    seen = None if drawn else getattr(probe, "observation_space", None)
    values = ("Discrete", "MultiDiscrete", "MultiBinary", "Tuple")
    for part, space, kinds in (("actions", acting, values[:1]), ("observations", seen, values)):
        if not _is_text(space, kinds):
            raise ConfigError(
                f"{name}: {part} of {space} cannot be text; use an environment whose {part} are "
                f'Text or {" or ".join(kinds)}, or one that supports render_mode="ansi"'
            )
    inner = getattr(probe, "unwrapped", probe)
    getattr(probe, "close", lambda: None)()
    count = int(getattr(acting, "n", 0))
    if count and not names:
        known = ACTIONS.get(re.split(r"[:/]", name)[-1].rpartition("-v")[0])
        meanings: Any = getattr(inner, "get_action_meanings", lambda: known)() or range(count)
        names = [str(each) for each in meanings]
    if count != len(names):
        raise ConfigError(f"{name} has {count} discrete actions, but actions={names!r}")
    make = partial(construct, **options)
    return EnvironmentFactory(name, lambda: _GymEnvironment(make, names, drawn), tasks=seeded_tasks)


def _is_text(space: Any, kinds: Sequence[str]) -> bool:
    """Return True if a space is None, a Text space, or of one of the named kinds."""
    if space is None:
        return True
    parents = {cls.__name__ for cls in type(space).__mro__}
    inner: Sequence[Any] = space.spaces if "Tuple" in parents else ()
    return not parents.isdisjoint({"Text", *kinds}) and all(_is_text(s, kinds) for s in inner)


class _GymEnvironment(Environment):
    """One episode of a gymnasium environment."""

    def __init__(self, make: Callable[[], Any], actions: Sequence[str], rendered: bool) -> None:
        self._make, self._names, self._drawn = make, tuple(actions), rendered
        self._inner: Any = None

    async def reset(self, task: Task, seed: int) -> Observation:
        """Reset with the task's `seed`, or with the rollout's seed if the task has none."""
        self._inner = await call(self._make)
        value, info = await call(self._inner.reset, seed=int(task.fields.get("seed", seed)))
        text = self._to_text(value)
        if self._names:
            text += f"\nReply with one of: {', '.join(self._names)}."
        return Observation((Message("user", text),), self._names, info)

    async def step(self, action: Message) -> Step:
        """Apply the action named in the reply; any other reply has no effect."""
        reply = (action.content or "").strip()
        names = [name.lower() for name in self._names]
        if names and reply.lower() not in names:
            text = f"{reply!r:.80} is no action. Reply with one of: {', '.join(self._names)}."
            known = Observation((Message("user", text),), self._names)
            return Step(known, 0.0, info={"invalid_action": True})
        start = int(getattr(self._inner.action_space, "start", 0)) if names else 0
        chosen = start + names.index(reply.lower()) if names else reply
        value, reward, terminated, truncated, info = await call(self._inner.step, chosen)
        over = bool(terminated or truncated)
        shown = Observation((Message("user", self._to_text(value)),), () if over else self._names)
        return Step(shown, reward, bool(terminated), bool(truncated), info)

    def _to_text(self, value: Any) -> str:
        """Convert an observation to text."""
        text = str(self._inner.render() if self._drawn else value)
        text = _COLOURED.sub(lambda m: f"[{_COLOURS[int(m[2])]}:{m[3]}]", text)
        return _ESCAPE.sub("", text).strip("\n")

    async def close(self) -> None:
        """Close the environment."""
        if self._inner is not None:
            await call(getattr(self._inner, "close", lambda: None))
