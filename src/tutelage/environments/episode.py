"""Episodes without a model: of an expert, of random actions, or of known actions.

They provide demonstrations, and check an environment: `check_deterministic` plays one twice.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import isawaitable
from typing import Any

from tutelage.environments.lifecycle import STEP_SECONDS, RolloutEnvironment
from tutelage.environments.protocol import EnvironmentFactory, Observation
from tutelage.seeds import SeedTree
from tutelage.types import JSON, Message, Task, ToolCall, ToolSpec

Act = Callable[[Task, Sequence[Message], Observation], Message | Awaitable[Message]]
"""`act(task, messages, observation)` returns the reply to a conversation, which is the task's
messages and everything after them; `observation` is the latest one."""
MAX_STEPS = 200
"""Steps after which an episode is cut off."""


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """A conversation in an environment, with the reward and info of each step."""

    messages: tuple[Message, ...]
    """The task's messages, observations and replies, in order."""
    rewards: tuple[float | None, ...]
    """Reward of each step."""
    infos: tuple[JSON, ...]
    """Info of the first observation, and of each step."""
    terminated: bool
    truncated: bool
    """True also for an episode that was cut off after `max_steps`."""

    @property
    def total(self) -> float:
        """Return the sum of the rewards."""
        return sum(reward for reward in self.rewards if reward is not None)


async def play_episode(
    factory: EnvironmentFactory,
    task: Task,
    seed: int,
    act: Act,
    *,
    max_steps: int = MAX_STEPS,
    step_timeout: float = STEP_SECONDS,
) -> PlayedEpisode:
    """Play one episode of a task in a new instance, with the replies of `act`.

    Raises `EnvironmentFailedError`, and what `act` raises. The instance is always closed.
    """
    environment = RolloutEnvironment(factory, task, seed, step_timeout)
    try:
        observation = await environment.open()
        infos: list[JSON] = [dict(observation.info)]
        messages = observation.begin_conversation(task)
        while not environment.ended and len(environment.turns) < max_steps:
            action = act(task, messages, environment.observation)
            reply = await action if isawaitable(action) else action
            step = await environment.step(reply)
            messages += [reply, *step.observation.messages]
            infos.append(environment.turns[-1].info)
    finally:
        await environment.close()
    rewards = tuple(turn.reward for turn in environment.turns)
    cut = environment.truncated or not environment.terminated
    return PlayedEpisode(tuple(messages), rewards, tuple(infos), environment.terminated, cut)


def random_act(factory: EnvironmentFactory, seed: int) -> Act:
    """Return an `Act` of random replies: an offered action, a call of a random tool with random
    arguments, or a word of the conversation, in this order of preference."""
    rng = SeedTree(seed).child("random action").python()

    def act(task: Task, messages: Sequence[Message], observation: Observation) -> Message:
        words = [w.strip(".,:;!?()\"'") for m in messages for w in (m.content or "").split()]
        words = [*dict.fromkeys(filter(None, words))] or ["yes"]
        if observation.actions:
            return Message("assistant", rng.choice(observation.actions))
        tools = list(observation.tools or first_tools or factory.tools)
        if not tools:
            return Message("assistant", rng.choice(words))
        first_tools[:] = tools
        tool = rng.choice(tools)
        arguments = _random_value({"type": "object", **tool.parameters}, words, rng)
        call = ToolCall(f"call_{len(messages)}", tool.name, json.dumps(arguments))
        return Message("assistant", None, (call,))

    first_tools: list[ToolSpec] = []
    return act


def _random_value(schema: Mapping[str, Any], words: Sequence[str], rng: random.Random) -> Any:
    """Draw a random value for a JSON schema; strings are words of the conversation."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return _random_value(rng.choice(schema["anyOf"]), words, rng)
    kind = schema.get("type", "string")
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _random_value(part, words, rng) for name, part in properties.items()}
    if kind == "array":
        return [_random_value(schema.get("items", {}), words, rng)]
    if kind in ("integer", "number"):
        low = int(schema.get("minimum", 0))
        return rng.randint(low, max(low, int(schema.get("maximum", low + 9))))
    if kind == "boolean":
        return rng.random() < 0.5
    return None if kind == "null" else rng.choice(words)


def expert_act(expert: Callable[[Task, Sequence[Message]], Message]) -> Act:
    """Wrap an expert function as an `Act`."""

    def act(task: Task, messages: Sequence[Message], observation: Observation) -> Message:
        return expert(task, messages)

    return act


async def check_deterministic(
    factory: EnvironmentFactory, task: Task, seed: int, step_timeout: float = STEP_SECONDS
) -> str | None:
    """Play an episode twice with equal seed and replies, and return the difference, or None.

    The replies are the expert's, else random. Raises `EnvironmentFailedError`.
    """
    expert = factory.expert
    episodes: list[PlayedEpisode] = []
    for _ in range(2):
        act = random_act(factory, seed) if expert is None else expert_act(expert)
        episodes.append(await play_episode(factory, task, seed, act, step_timeout=step_timeout))
    return describe_difference(*episodes)


def describe_difference(first: PlayedEpisode, second: PlayedEpisode) -> str | None:
    """Return a description of the first difference of two episodes, or None if they are equal."""
    for part in (f.name for f in fields(PlayedEpisode)):
        a, b = getattr(first, part), getattr(second, part)
        if a == b:
            continue
        if not isinstance(a, tuple):
            return f"{part} is {a} and {b}"
        pairs = enumerate(zip(a, b, strict=False))
        place, pair = next(((i, p) for i, p in pairs if p[0] != p[1]), (min(len(a), len(b)), None))
        if pair is None:
            return f"{len(a)} and {len(b)} {part}"
        texts = [each.content if isinstance(each, Message) else each for each in pair]
        return f"{part}[{place}] is {texts[0]!r:.120} and {texts[1]!r:.120}"
    return None
