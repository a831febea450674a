"""The runner of the built-in agents: many rollouts at once in one event loop, none fatal.

Every rollout is a coroutine inside the engine's schedule. No clock ends it: it is bounded by its
turns and tokens, and each of its tools by a timeout of its own, so a busy machine changes no
result. An infrastructure failure is retried with backoff in a new attempt; an agent's failure is
recorded with its cause and traceback and earns the failure reward. What comes back is always one
`Rollout` for each `Spec`, in order. The engine's schedule is `engine/driver.py`; what becomes of
the calls is `rows.py`; agents of the user's, which have deadlines, are run by `live.py`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from time import perf_counter, time
from typing import Protocol

from tutelage.agents.tool_calling import Outcome
from tutelage.engine.chat import ChatSession
from tutelage.engine.protocol import Engine
from tutelage.errors import (
    AnswerError,
    ContextOverflowError,
    EngineError,
    GraderError,
    RewardError,
    RewardTimeoutError,
)
from tutelage.policy.codec import Codec
from tutelage.rewards import RewardFunction, compute_reward
from tutelage.rewards.function import REWARD_SECONDS
from tutelage.seeds import SeedTree
from tutelage.tools.environments import rollout_environments
from tutelage.tools.tool import ToolError
from tutelage.types import (
    Attempt,
    ChatClient,
    Failure,
    FailureCause,
    Mode,
    Reward,
    Rollout,
    RolloutStatus,
    Task,
)

_LONGEST_TRACE = 20_000
"""Characters of a traceback that are kept, from its end."""


class Agent(Protocol):
    """Something that plays a task with a chat client and writes down how it went."""

    async def run(self, task: Task, client: ChatClient, outcome: Outcome) -> None:
        """Play `task`; raising is an agent error."""
        ...


@dataclass(frozen=True, slots=True)
class Spec:
    """One rollout to run. Its identifiers and its samples come from `seeds`."""

    task: Task
    mode: Mode
    group: str
    index: int
    seeds: SeedTree
    step: int = 0
    label: str = ""


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """Limits of a rollout: seconds, attempts at infrastructure failures, rollouts at once."""

    run_id: str
    timeout: float = 60.0
    """Seconds of its own time that an agent of the user's has; the built-in agents are bounded by
    their turns and tokens instead, so that no clock decides what they earn."""
    attempts: int = 3
    backoff: float = 0.1
    concurrency: int = 512
    failure_reward: float = 0.0
    """What a rollout earns that failed for the agent's own reasons."""
    reward_timeout: float | None = REWARD_SECONDS
    """Seconds that a reward of the user's may take for one rollout."""
    group_deadline: float | None = None
    """Like `timeout`, in training: a rollout that takes longer is left out of its group."""


def limit_of(spec: Spec, settings: RunnerSettings) -> tuple[float, Failure]:
    """Seconds of its own time that an attempt of an agent of the user's has, and what it failed of
    when they are over: its own timeout, or its training group's, which closes without it."""
    group = settings.group_deadline
    if group is not None and group < settings.timeout and spec.mode is Mode.TRAIN:
        told = f"its group closed without it after {group:g} seconds of its own time"
        return group, Failure(FailureCause.CANCELLED, told)
    told = f"it was stopped after {settings.timeout:g} seconds of its own time"
    return settings.timeout, Failure(FailureCause.TIMEOUT, told)


async def play_all(
    specs: Sequence[Spec],
    play: Callable[[int, Spec], Awaitable[Rollout]],
    concurrency: int,
    participant: Callable[[], AbstractAsyncContextManager[None]],
    on_done: Callable[[Rollout], None] | None,
) -> list[Rollout]:
    """Play all specs, at most `concurrency` at once, each inside a `participant()`; in order."""
    gate = asyncio.Semaphore(concurrency)

    async def one(order: int, spec: Spec) -> Rollout:
        await gate.acquire()
        async with participant():
            try:
                rollout = await play(order, spec)
            finally:
                gate.release()
            # Who waits at the gate begins before this rollout leaves the schedule: else what
            # the engine does next would depend on which of two tools came back first.
            await asyncio.sleep(0)
        if on_done is not None:
            on_done(rollout)
        return rollout

    # Held until every rollout has begun, so that groups are admitted together.
    async with asyncio.TaskGroup() as group, participant():
        tasks = [group.create_task(one(i, spec)) for i, spec in enumerate(specs)]
        await asyncio.sleep(0)
    return [task.result() for task in tasks]


async def with_retries(
    spec: Spec, settings: RunnerSettings, attempt: Callable[[int], Awaitable[Attempt]]
) -> Rollout:
    """A rollout of as many attempts as it takes: what an engine lost is tried again, a little
    later each time and not all at the same moment."""
    attempts: list[Attempt] = []
    while True:
        attempts.append(await attempt(len(attempts)))
        failure = attempts[-1].failure
        transient = failure is not None and failure.cause is FailureCause.ENGINE_ERROR
        if not transient or len(attempts) >= settings.attempts:
            break
        jitter = 0.5 + spec.seeds.child("retry", len(attempts)).python().random()
        await asyncio.sleep(settings.backoff * 2 ** (len(attempts) - 1) * jitter)
    return Rollout(
        id=spec.seeds.id("roll"),
        run_id=settings.run_id,
        task=spec.task,
        mode=spec.mode,
        step=spec.step,
        group=spec.group,
        index=spec.index,
        attempts=tuple(attempts),
        label=spec.label,
    )


def not_graded(attempt: Attempt, error: RewardError, failure_reward: float) -> Attempt:
    """The attempt as failed: wrong where what the model wrote is to blame, else without reward."""
    if isinstance(error, AnswerError):
        cause, earned = FailureCause.ANSWER_ERROR, Reward(failure_reward)
    elif isinstance(error, RewardTimeoutError):
        cause, earned = FailureCause.REWARD_TIMEOUT, None
    else:
        broken = isinstance(error, GraderError)
        cause, earned = FailureCause.GRADER_ERROR if broken else FailureCause.REWARD_ERROR, None
    # A traceback quotes the exception, which may quote all that the model wrote.
    trace = "".join(traceback.format_exception(error))[-_LONGEST_TRACE:]
    trace = trace.encode("utf-8", "backslashreplace").decode()
    failure = Failure(cause, str(error), trace)
    return replace(attempt, status=RolloutStatus.FAILED, failure=failure, stop=None, reward=earned)


class Runner:
    """Runs specs with one agent, one engine and one reward."""

    def __init__(
        self,
        driver: Engine,
        codec: Codec,
        reward: RewardFunction,
        settings: RunnerSettings,
    ) -> None:
        self._driver, self._codec, self._reward = driver, codec, reward
        self._settings = settings
        self._grading: dict[str, float] = {}
        """When the rewards under way were asked for, by attempt."""

    async def run(
        self,
        specs: Sequence[Spec],
        agent: Agent,
        on_done: Callable[[Rollout], None] | None = None,
    ) -> list[Rollout]:
        """Run all specs; `on_done` sees each rollout as it ends. Cancelling cancels them all."""

        async def one(order: int, spec: Spec) -> Rollout:
            async def attempt(number: int) -> Attempt:
                # Around agent and reward, so that both see the same environments.
                async with rollout_environments(spec.task):
                    return await self._attempt(order, spec, agent, number)

            return await with_retries(spec, self._settings, attempt)

        return await play_all(
            specs, one, self._settings.concurrency, self._driver.participant, on_done
        )

    async def _attempt(self, order: int, spec: Spec, agent: Agent, number: int) -> Attempt:
        seeds = spec.seeds.child("attempt", number)
        attempt_id = seeds.id("att")
        session = ChatSession(self._driver, self._codec, seeds=seeds, name=attempt_id, order=order)
        outcome, started, start = Outcome(), time(), perf_counter()
        try:
            failure = await self._play(spec, agent, session, outcome)
        finally:
            session.close()
        attempt = Attempt(
            id=attempt_id,
            index=number,
            status=RolloutStatus.SUCCEEDED if failure is None else RolloutStatus.FAILED,
            calls=tuple(session.calls),
            tool_results=tuple(outcome.tool_results),
            answer=outcome.answer,
            failure=failure,
            stop=outcome.stop if failure is None else None,
            started=started,
            seconds=perf_counter() - start,
        )
        return await self._grade(spec.task, attempt)

    async def _play(
        self, spec: Spec, agent: Agent, client: ChatSession, outcome: Outcome
    ) -> Failure | None:
        try:
            await agent.run(spec.task, client, outcome)
        except ContextOverflowError as error:
            return Failure(FailureCause.CONTEXT_OVERFLOW, str(error))
        except EngineError as error:
            return Failure(FailureCause.ENGINE_ERROR, str(error), traceback.format_exc())
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the run is being stopped, not this agent by itself
            cause = FailureCause.TOOL_ERROR if isinstance(error, ToolError) else None
            message = f"{type(error).__name__}: {error}"
            return Failure(cause or FailureCause.AGENT_ERROR, message, traceback.format_exc())
        return None

    async def _grade(self, task: Task, attempt: Attempt) -> Attempt:
        """The attempt with its reward; a reward that fails makes the attempt fail."""
        if attempt.failure is not None:
            if attempt.failure.cause.infrastructure:
                return attempt
            return replace(attempt, reward=Reward(self._settings.failure_reward))
        self._grading[attempt.id] = perf_counter()
        limit = self._settings.reward_timeout
        try:
            found = await compute_reward(self._reward, task, attempt, timeout=limit)
            return replace(attempt, reward=found)
        except RewardError as error:
            return not_graded(attempt, error, self._settings.failure_reward)
        finally:
            del self._grading[attempt.id]

    def grading_for(self) -> float:
        """Seconds that the longest reward under way has taken so far."""
        return perf_counter() - min(self._grading.values(), default=perf_counter())
