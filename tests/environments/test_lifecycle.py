"""One instance a rollout: opened with a seed, stepped within a limit, always closed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tutelage.agents.function import AgentFunction
from tutelage.agents.isolated import IsolatedAgent
from tutelage.environments import Observation, RolloutEnvironment, Step
from tutelage.errors import ConfigError, EnvironmentFailedError, TutelageError
from tutelage.rewards import reward
from tutelage.rollouts.models import ModelProvider
from tutelage.rollouts.runner import Runner, RunnerSettings
from tutelage.types import FailureCause, Message, Reward, Rollout, Task

from .samples import TASK, Fixed, Guess, factory, guesses, play

GO = Observation((Message("user", "go"),))
ENVIRONMENT = FailureCause.ENVIRONMENT_ERROR


def raises() -> Any:
    raise ValueError("no state")


def failure_of(rollout: Rollout, cause: FailureCause = ENVIRONMENT) -> str:
    """The message of the failure that a rollout ended with, which is of this cause."""
    failure = rollout.last.failure
    assert failure is not None
    assert failure.cause is cause
    return failure.message


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (raises, "'env' failed in reset: ValueError: no state"),
        (b"go", "the observation is a bytes; return an Observation"),
        (Observation((Message("user", "x" * 2**20),)), "has 1,048,576 characters, more than 100"),
        (Observation(GO.messages, info={"a": {1, 2}}), "info cannot be recorded (a set is not"),
        (Observation(GO.messages, actions=(1, 2)), "the actions are (1, 2); return texts"),  # type: ignore[arg-type]
    ],
)
async def test_a_bad_reset_is_a_failure_of_the_environment(first: Any, words: str) -> None:
    (rollout,) = await play(guesses, factory(lambda: Fixed(first)))
    assert words in failure_of(rollout)
    assert ENVIRONMENT.infrastructure
    assert rollout.reward is None, "no evidence about the agent"


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (raises, "failed in step: ValueError: no state"),
        ((GO, 1.0, True, False, {}), "returned a tuple, not a Step"),
        (Step(GO, float("nan")), "the reward is nan; return a finite number"),
        (Step(GO, "1.0"), "the reward is '1.0'"),  # type: ignore[arg-type]
        (Step(), "an unfinished episode needs an observation"),
    ],
)
async def test_a_bad_step_is_a_failure_of_the_environment(then: Any, words: str) -> None:
    (rollout,) = await play(guesses, factory(lambda: Fixed(None, then)))
    assert words in failure_of(rollout)


async def test_an_agent_that_catches_the_failure_does_not_hide_it() -> None:
    async def catches(task: Any, environment: Any) -> float:
        try:
            await environment.step("1")
        except EnvironmentFailedError:
            return 1.0
        return 0.0

    (rollout,) = await play(catches, factory(lambda: Fixed(None, raises)))
    assert failure_of(rollout)
    assert rollout.reward is None


async def test_no_reward_at_all_is_said() -> None:
    (rollout,) = await play(guesses, factory(Fixed))
    told = failure_of(rollout, FailureCause.REWARD_ERROR)
    assert "'env' gave no reward on task 't': return Step(reward=...)" in told


async def test_a_step_after_the_end_is_the_agents_mistake() -> None:
    async def goes_on(task: Any, environment: Any) -> None:
        for _ in range(2):
            await environment.step("1")

    (rollout,) = await play(goes_on, factory(lambda: Fixed(None, Step(GO, 0.5, True))))
    told = failure_of(rollout, FailureCause.AGENT_ERROR)
    assert "cannot step the environment 'env': it has ended" in told
    assert rollout.reward == Reward(0.5), "what was earned, and the failure reward of 0"


@pytest.mark.parametrize("kind", ["async", "blocking"])
async def test_a_step_that_hangs_ends_with_its_rollout_alone(kind: str) -> None:
    over = threading.Event()

    class Hangs(Fixed):
        async def step(self, action: Message) -> Step:
            if kind == "async":
                await asyncio.sleep(60)
            over.wait(60)
            return Step()

    (rollout,) = await play(guesses, factory(Hangs), step_timeout=0.3)
    (fine,) = await play(guesses, factory(Guess))
    over.set()
    told = "step: it took longer than 0.3 seconds; raise environment.step_timeout"
    assert told in failure_of(rollout)
    assert fine.last.failure is None, "a thread that is blocked is replaced"


@pytest.mark.parametrize("how", ["ends", "raises", "hangs", "cancelled"])
async def test_it_is_always_closed(how: str) -> None:
    Guess.opened = Guess.closed = 0

    async def agent(task: Any, environment: Any) -> None:
        await environment.step("1")
        if how == "raises":
            raise ValueError
        if how in ("hangs", "cancelled"):
            await asyncio.sleep(60)

    work = asyncio.ensure_future(play(agent, factory(Guess), timeout=0.2))
    if how == "cancelled":
        await asyncio.sleep(0.1)
        work.cancel()
    await asyncio.wait({work})
    assert Guess.opened == Guess.closed == 1


async def test_two_hundred_at_once_are_bounded_by_the_pool_and_none_is_left() -> None:
    Guess.opened = Guess.closed = Guess.most = 0
    before = set(threading.enumerate())
    tasks = [Task(f"t{i}", {"question": "?"}) for i in range(200)]
    everyone = await play(guesses, factory(Guess), tasks)
    assert Guess.opened == Guess.closed == 200
    assert Guess.most > 100
    Guess.opened = Guess.closed = Guess.most = 0
    pooled = await play(guesses, factory(Guess), tasks, pool_size=7)
    assert Guess.opened == Guess.closed == 200
    assert Guess.most == 7
    assert [r.reward for r in pooled] == [r.reward for r in everyone]
    left = {t.name for t in set(threading.enumerate()) - before}
    assert left <= {"tutelage-environments"}


async def test_code_that_is_not_async_runs_off_the_loop() -> None:
    homes: list[threading.Thread] = []

    class Sync:
        def reset(self, task: Task, seed: int) -> Observation:
            homes.append(threading.current_thread())
            return GO

        def step(self, action: Message) -> Step:
            homes.append(threading.current_thread())
            return Step(GO, 1.0, True)

        def close(self) -> None:
            homes.append(threading.current_thread())

    def sync_agent(task: Any, environment: Any) -> None:
        homes.append(threading.current_thread())
        environment.step_sync({"role": "assistant", "content": "1"})

    (rollout,) = await play(sync_agent, factory(Sync))
    assert rollout.reward == Reward(1.0)
    assert len(homes) == 4
    assert threading.main_thread() not in homes
    environment = RolloutEnvironment(factory(Sync), TASK, 0)
    await environment.open()
    with pytest.raises(TutelageError, match=r"step_sync would block the event loop"):
        environment.step_sync("1")


async def test_the_reward_function_replaces_the_sum_and_sees_the_environment() -> None:
    @reward(inline=True)
    def graded(context: dict[str, Any]) -> dict[str, float]:
        return {"reward": 0.25, "turns": float(context["Guess"].turns)}

    (rollout,) = await play(guesses, factory(Guess, "Guess"), reward=graded)
    assert rollout.reward is not None
    assert rollout.reward.value == 0.25
    assert rollout.reward.parts["turns"] in (1.0, 2.0, 3.0)
    assert rollout.reward.parts["exact"] in (0.0, 1.0)


async def test_a_failure_keeps_what_was_earned() -> None:
    async def fails(task: Any, environment: Any) -> None:
        await environment.step("9")
        await environment.step("9")
        raise ValueError

    (rollout,) = await play(fails, factory(Guess), failure_reward=-1.0)
    assert rollout.reward is not None
    assert rollout.reward.value == pytest.approx(-1.2)


async def test_agents_that_cannot_drive_it_are_refused() -> None:
    def blind(task: Any) -> float:
        return 1.0

    with pytest.raises(ConfigError, match=r"'blind' cannot play in the environment 'env': give it"):
        await play(blind, factory(Guess))
    settings = RunnerSettings("r")
    isolated = IsolatedAgent(AgentFunction(guesses))
    with pytest.raises(ConfigError, match=r"another process; use isolation='none'"):
        Runner(isolated, ModelProvider(), settings, environment=factory(Guess))
    with pytest.raises(ConfigError, match=r"'guesses' needs an environment: pass --environment"):
        Runner(AgentFunction(guesses), ModelProvider(), settings)
