"""The runner: one rollout for each spec, in order, whatever happens inside; nothing is fatal."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.marks import long

from tutelage.agents.agent import Agent
from tutelage.agents.session import RolloutSession
from tutelage.engine.driver import EngineDriver
from tutelage.engine.protocol import Request
from tutelage.policy.codec import Codec
from tutelage.resources import NamedResources
from tutelage.rewards import reward
from tutelage.rollouts.models import EngineModelProvider
from tutelage.rollouts.runner import RolloutSpec, Runner, RunnerSettings
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine, tiny_engine
from tutelage.tools import ToolError
from tutelage.types import (
    ChatClient,
    FailureCause,
    Mode,
    Rollout,
    RolloutStatus,
    Sampling,
    Task,
)

SAMPLING = Sampling(max_tokens=12)


@reward(inline=True)
def exact(prediction: str, answer: str) -> float:
    return float(prediction == answer)


def specs(count: int, root: int = 0, **fields: Any) -> list[RolloutSpec]:
    return [
        RolloutSpec(
            task=Task(f"t{i}", {"question": f"q{i}", "answer": f"a{i}", **fields}),
            mode=Mode.TRAIN,
            group=f"g{i // 2}",
            index=i % 2,
            seeds=SeedTree(root).child("rollout", i),
            step=4,
        )
        for i in range(count)
    ]


class Says(Agent):
    """An agent that asks the model once, or does what `act` says."""

    schedule = "deterministic"

    def __init__(self, act: Callable[[Task, ChatClient], Any] | None = None) -> None:
        self._act = act
        self.running = self.most = 0

    async def play(self, task: Task, session: RolloutSession, resources: NamedResources) -> None:
        self.running += 1
        assert session.client is not None
        self.most = max(self.most, self.running)
        try:
            if self._act is not None:
                await self._act(task, session.client)
            call = await session.client.chat(task.messages(), sampling=SAMPLING)
            session.answer = call.reply.content
        finally:
            self.running -= 1


@pytest.fixture
def codec(tiny: Any) -> Codec:
    return tiny("qwen2").codec


async def run(
    engine: Any,
    codec: Codec,
    agent: Any,
    count: int = 4,
    *,
    grade: Any = exact,
    **settings: Any,
) -> list[Rollout]:
    limits = RunnerSettings("run", **{"backoff": 0.0, **settings})
    return await Runner(agent, EngineModelProvider(engine, codec), limits, reward=grade).run(
        specs(count)
    )


def echo(codec: Codec) -> ScriptedEngine:
    """Answers `a3` to question `q3`."""

    def answer(request: Request) -> str:
        text = codec.decode(request.prompt_ids)
        return "a" + text[text.rindex("q") + 1 :].split("<")[0]

    return ScriptedEngine(codec, answer)


# ---------------------------------------------------------------- what comes back


async def test_rollouts_come_back_in_the_order_of_their_specs(codec: Codec) -> None:
    async def late_first(task: Task, client: ChatClient) -> None:
        await asyncio.sleep(0.02 - 0.003 * int(task.id[1:]))

    done: list[str] = []
    models = EngineModelProvider(echo(codec), codec)
    runner = Runner(Says(late_first), models, RunnerSettings("run"), reward=exact)
    rollouts = await runner.run(specs(6), lambda r: done.append(r.task.id))
    assert [r.task.id for r in rollouts] == [f"t{i}" for i in range(6)]
    assert sorted(done) == [f"t{i}" for i in range(6)]
    for i, rollout in enumerate(rollouts):
        assert (rollout.group, rollout.index, rollout.step) == (f"g{i // 2}", i % 2, 4)
        assert (rollout.run_id, rollout.mode) == ("run", Mode.TRAIN)
        assert rollout.last.status is RolloutStatus.SUCCEEDED
        assert rollout.last.answer == f"a{i}"
        assert rollout.last.stop == "answer"
        assert rollout.reward is not None
        assert rollout.reward.value == 1.0
        assert len(rollout.last.calls) == 1


async def test_identifiers_come_from_the_seed_tree(codec: Codec) -> None:
    def identifiers(rollouts: list[Rollout]) -> list[str]:
        calls = [c.id for r in rollouts for c in r.last.calls]
        return [r.id for r in rollouts] + [r.last.id for r in rollouts] + calls

    first = identifiers(await run(echo(codec), codec, Says()))
    assert identifiers(await run(echo(codec), codec, Says())) == first
    assert len(set(first)) == 12
    models = EngineModelProvider(echo(codec), codec)
    runner = Runner(Says(), models, RunnerSettings("run"), reward=exact)
    assert not set(identifiers(await runner.run(specs(4, root=1)))) & set(first)


async def test_no_more_run_at_once_than_allowed(codec: Codec) -> None:
    async def linger(task: Task, client: ChatClient) -> None:
        await asyncio.sleep(0.001)

    agent = Says(linger)
    rollouts = await run(echo(codec), codec, agent, 12, concurrency=3)
    assert agent.most == 3
    assert all(r.last.answer for r in rollouts)


async def test_sessions_are_closed_whatever_happened(codec: Codec) -> None:
    async def fail_after_a_call(task: Task, client: ChatClient) -> None:
        await client.chat(task.messages(), sampling=SAMPLING)
        raise ValueError("no")

    engine = echo(codec)
    rollouts = await run(engine, codec, Says(fail_after_a_call), 3)
    assert sorted(engine.released) == sorted(f"{r.last.id}/main" for r in rollouts)


# ---------------------------------------------------------------- failures


async def test_an_agents_exception_is_recorded_with_its_traceback(codec: Codec) -> None:
    async def boom(task: Task, client: ChatClient) -> None:
        if task.id == "t1":
            await client.chat(task.messages(), sampling=SAMPLING)
            raise KeyError("which key")

    rollouts = await run(echo(codec), codec, Says(boom), failure_reward=-0.5)
    attempt = rollouts[1].last
    assert attempt.status is RolloutStatus.FAILED
    assert attempt.failure is not None
    assert attempt.failure.cause is FailureCause.AGENT_ERROR
    line = boom.__code__.co_firstlineno + 3
    assert attempt.failure.message == f"test_runner.py:{line}: KeyError: 'which key'"
    assert "in boom" in (attempt.failure.traceback or "")
    assert attempt.stop is None
    assert len(attempt.calls) == 1
    assert len(rollouts[1].attempts) == 1
    assert attempt.reward is not None
    assert attempt.reward.value == -0.5
    assert [r.last.failure is None for r in rollouts] == [True, False, True, True]


async def test_a_tools_own_failure_has_its_cause(codec: Codec) -> None:
    async def closed(task: Task, client: ChatClient) -> None:
        raise ToolError("the shop is closed")

    (rollout,) = await run(echo(codec), codec, Says(closed), 1)
    assert rollout.last.failure is not None
    assert rollout.last.failure.cause is FailureCause.TOOL_ERROR


async def test_a_context_overflow_is_the_agents_failure_and_not_retried(codec: Codec) -> None:
    engine = ScriptedEngine(codec, ["x"], max_length=3)
    (rollout,) = await run(engine, codec, Says(), 1, failure_reward=0.25)
    assert len(rollout.attempts) == 1
    assert rollout.last.failure is not None
    assert rollout.last.failure.cause is FailureCause.CONTEXT_OVERFLOW
    assert rollout.reward is not None
    assert rollout.reward.value == 0.25


DOWN = ConnectionError("the judge is down")


@pytest.mark.parametrize(
    ("value", "cause", "earned"),
    [
        (None, FailureCause.REWARD_ERROR, None),
        ("1", FailureCause.REWARD_ERROR, None),
        (math.nan, FailureCause.ANSWER_ERROR, -0.5),
        (math.inf, FailureCause.ANSWER_ERROR, -0.5),
        (ZeroDivisionError(), FailureCause.ANSWER_ERROR, -0.5),
        (ValueError("no number: \ud800" + "9" * 10_000), FailureCause.ANSWER_ERROR, -0.5),
        (RecursionError(), FailureCause.ANSWER_ERROR, -0.5),
        (DOWN, FailureCause.GRADER_ERROR, None),
        (ModuleNotFoundError("no module"), FailureCause.GRADER_ERROR, None),
    ],
)
async def test_what_a_grader_raises_on_an_answer_makes_it_wrong_its_own_trouble_does_not(
    value: Any, cause: FailureCause, earned: float | None, codec: Codec
) -> None:
    @reward("odd", inline=True)
    def odd(task: Task) -> Any:
        if task.id != "t1":
            return 0.5
        if isinstance(value, Exception):
            raise value
        return value

    rollouts = await run(echo(codec), codec, Says(), grade=odd, failure_reward=-0.5)
    attempt = rollouts[1].last
    assert attempt.status is RolloutStatus.FAILED
    assert attempt.failure is not None
    assert attempt.failure.cause is cause
    assert attempt.failure.cause.infrastructure is (earned is None)
    assert "'t1'" in attempt.failure.message
    assert len(attempt.failure.message) < 1000
    (attempt.failure.message + (attempt.failure.traceback or "")).encode()
    assert [r.reward.value if r.reward else None for r in rollouts] == [0.5, earned, 0.5, 0.5]


async def test_a_reward_that_hangs_is_no_wrong_answer_and_stalls_nobody(codec: Codec) -> None:
    async def hangs(task: Task) -> float:
        await asyncio.sleep(3600 if task.id == "t1" else 0)
        return 0.5

    work = run(echo(codec), codec, Says(), grade=reward(hangs), reward_timeout=0.5)
    rollouts = await asyncio.wait_for(work, 60)
    assert [r.reward.value if r.reward else None for r in rollouts] == [0.5, None, 0.5, 0.5]
    failure = rollouts[1].last.failure
    assert failure is not None
    assert failure.cause.value == "reward_timeout"
    assert failure.cause.infrastructure


# ---------------------------------------------------------------- over the real engine


class Turns(Agent):
    """Three calls with a tool of random duration in between."""

    schedule = "deterministic"

    async def play(self, task: Task, session: RolloutSession, resources: NamedResources) -> None:
        assert session.client is not None
        messages = list(task.messages())
        for _ in range(3):
            call = await session.client.chat(messages, sampling=SAMPLING)
            await asyncio.sleep(random.choice([0, 0.0005, 0.002]))
            messages += [call.reply, *task.messages()]
        session.answer = "done"


def without_clock(rollouts: list[Rollout]) -> list[Any]:
    return [(r.id, a.calls, a.answer, a.reward) for r in rollouts for a in r.attempts]


@pytest.mark.parametrize("concurrency", [3, *long(512)])
async def test_the_deterministic_schedule_repeats_a_run_call_for_call(
    concurrency: int, tiny: Any
) -> None:
    policy = tiny("qwen2")
    logs: list[Any] = []
    for _ in range(3):
        engine = tiny_engine(policy, slots=4)
        steps: list[Any] = []
        work = engine.step

        def step(work: Any = work, steps: list[Any] = steps, engine: Any = engine) -> Any:
            ended = work()
            steps.append((engine.prefilled_tokens, [s.token_ids for _, s in ended]))
            return ended

        engine.step = step
        rollouts = await run(
            EngineDriver(engine), policy.codec, Turns(), 9, concurrency=concurrency
        )
        logs.append((without_clock(rollouts), steps))
    assert logs[0] == logs[1] == logs[2]


async def test_the_free_schedule_completes_with_the_same_tokens(tiny: Any) -> None:
    policy = tiny("qwen2")
    said = []
    for schedule in ("deterministic", "free"):
        driver = EngineDriver(tiny_engine(policy, slots=3), schedule)
        rollouts = await run(driver, policy.codec, Turns(), 7)
        said.append([c.sampled.token_ids for r in rollouts for c in r.last.calls])
    assert said[0] == said[1]


async def test_cancelling_the_run_cancels_everything_and_frees_every_slot(tiny: Any) -> None:
    policy = tiny("qwen2")
    engine = tiny_engine(policy, slots=2, invariant=True)
    driver = EngineDriver(engine, "free")
    thinking = asyncio.Event()

    async def hang(task: Task, client: ChatClient) -> None:
        await client.chat(task.messages(), sampling=SAMPLING)
        thinking.set()
        await asyncio.sleep(3600)

    task = asyncio.create_task(run(driver, policy.codec, Says(hang), 5))
    await thinking.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not engine.is_busy
    models = EngineModelProvider(driver, policy.codec)
    runner = Runner(Says(), models, RunnerSettings("another run"), reward=exact)
    rollouts = await asyncio.wait_for(runner.run(specs(5, root=1)), 60)
    assert all(r.last.failure is None for r in rollouts)
