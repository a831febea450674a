"""Environments of the tests, and rollouts in them without a model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from tutelage import tool
from tutelage.agents.function import AgentFunction
from tutelage.environments import Environment, EnvironmentFactory, Observation, Step
from tutelage.rollouts.models import ModelProvider
from tutelage.rollouts.runner import RolloutSpec, Runner, RunnerSettings
from tutelage.seeds import SeedTree
from tutelage.types import Message, Mode, Rollout, Task

DIGITS = tuple("12345")
TASK = Task("t", {"question": "Guess my number."})


class Guess:
    """A number from 1 to 5 to guess in three turns; each wrong guess costs a tenth."""

    opened = closed = most = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        Guess.opened += 1
        Guess.most = max(Guess.most, Guess.opened - Guess.closed)
        self.number, self.turns = random.Random(seed).choice(DIGITS), 0
        return Observation((Message("user", "From 1 to 5."),), info={"start": True})

    async def step(self, action: Message) -> Step:
        self.turns += 1
        right = action.content == self.number
        message = Message("user", "yes" if right else "no")
        reward = 1.0 if right else -0.1
        info = {"turn": self.turns, "success": right}
        return Step(Observation((message,)), reward, right, self.turns >= 3 and not right, info)

    async def close(self) -> None:
        Guess.closed += 1


class Counter:
    """A tool class with a reward for each pen and an end."""

    def __init__(self, task: Task, most: int = 3) -> None:
        self.bought, self.most = 0, most

    def reset(self, task: Task, seed: int) -> str:
        return f"Buy {self.most} pens."

    @tool(inline=True)
    def buy(self, count: int) -> str:
        """Buy pens."""
        self.bought += count
        return f"{self.bought} bought"

    def reward(self) -> float:
        return self.bought / 10

    def done(self) -> bool:
        return self.bought >= self.most

    def close(self) -> None: ...


class Fixed(Environment):
    """Answers with what it is made with."""

    def __init__(self, first: Any = None, then: Any = None) -> None:
        self.first = Observation((Message("user", "go"),)) if first is None else first
        self.then = Step(terminated=True) if then is None else then

    async def reset(self, task: Task, seed: int) -> Observation:
        return self.first() if callable(self.first) else self.first

    async def step(self, action: Message) -> Step:
        return self.then() if callable(self.then) else self.then

    async def close(self) -> None: ...


def factory(make: Callable[[], Any], name: str = "env") -> EnvironmentFactory:
    return EnvironmentFactory(name, make)


async def play(
    agent: Any, environment: EnvironmentFactory, tasks: Sequence[Task] = (TASK,), **settings: Any
) -> list[Rollout]:
    """Rollouts of a function in an environment, without a model."""
    given = {name: settings.pop(name) for name in ("reward",) if name in settings}
    runner = Runner(
        AgentFunction(agent),
        ModelProvider(),
        RunnerSettings("r", **settings),
        environment=environment,
        **given,
    )
    specs = [RolloutSpec(t, Mode.TRAIN, t.id, i, SeedTree(0).child(i)) for i, t in enumerate(tasks)]
    return await runner.run(specs)


async def guesses(task: Any, environment: Any) -> None:
    """An agent that counts upwards."""
    for digit in DIGITS:
        if not environment.ended:
            await environment.step(digit)
