"""The runner: many concurrent rollouts of any agent in one event loop; no failure is fatal.

Each attempt has its own models (`models.py`), session, environments, and optional trace. The value
that an agent returns or emits is its reward, else a reward function grades it; an exception is
recorded with its attempt. An infrastructure failure is retried with backoff in a new attempt; an
agent's failure earns the failure reward. The result is always one `Rollout` for each `RolloutSpec`,
in order. A built-in agent is awaited inside the engine's schedule (`engine/driver.py`) without a
deadline, so a busy machine changes no result. A user's agent is a separate task with a deadline in
its own time (`engine/stopwatch.py`): on timeout it is cancelled, or abandoned with its models
closed.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import inf
from time import perf_counter, time
from typing import Any
from weakref import WeakKeyDictionary

from tutelage.agents.agent import Agent, AgentFailedError
from tutelage.agents.function import ENVIRONMENT, AgentFunction
from tutelage.agents.session import RolloutSession, enter_rollout
from tutelage.bounded import replace_surrogates
from tutelage.environments import EnvironmentFactory, rollout_environments
from tutelage.environments.lifecycle import STEP_SECONDS, TurnRecord
from tutelage.errors import (
    AnswerError,
    ConfigError,
    ContextOverflowError,
    EngineError,
    EnvironmentFailedError,
    FailureBudgetError,
    GraderError,
    RewardError,
    RewardTimeoutError,
)
from tutelage.resources import MAIN_AGENT, NamedResources
from tutelage.rewards import RewardFunction, compute_reward
from tutelage.rewards.failures import exception_text
from tutelage.rewards.function import REWARD_SECONDS, split_answer
from tutelage.rewards.values import to_reward
from tutelage.rollouts.models import ModelProvider
from tutelage.seeds import SeedTree
from tutelage.tools.execute import cancel_and_wait
from tutelage.tools.tool import ToolError
from tutelage.tracing import names
from tutelage.tracing.records import Identity, SpanRecord
from tutelage.types import (
    EXACT,
    SUCCESS,
    Attempt,
    Call,
    Failure,
    FailureCause,
    Mode,
    Reward,
    Rollout,
    RolloutStatus,
    Task,
)

OnSpans = Callable[[Rollout, Sequence[SpanRecord]], None]


_NO_CALLS = "your agent never called llm.endpoint or llm.chat; allowed by agent.allow_no_calls=true"
_LONGEST_TRACE = 20_000
"""Maximum characters of a recorded traceback, kept from its end."""
AT_ONCE = 512
"""Default number of concurrent rollouts."""


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """Specification of one rollout. Its ids and samples are drawn from `seeds`."""

    task: Task
    mode: Mode
    group: str
    index: int
    seeds: SeedTree
    step: int = 0
    label: str = ""


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """Limits of a rollout: time limits, attempts, concurrency."""

    run_id: str
    timeout: float = 60.0
    """Time limit of a user's agent in seconds of its own time; the built-in agents are limited by
    turns and tokens only, so that no clock changes their rewards."""
    attempts: int = 3
    backoff: float = 0.1
    concurrency: int = AT_ONCE
    failure_reward: float = 0.0
    """Reward of a rollout that failed because of the agent."""
    reward_timeout: float | None = REWARD_SECONDS
    """Time limit of a user's reward per rollout, in seconds."""
    allow_no_calls: bool = True
    """True if a training rollout may end without a model call; else its agent has failed."""
    pool_size: int = AT_ONCE
    """Maximum number of open instances of the run's environment."""
    step_timeout: float = STEP_SECONDS
    """Time limit of a step of the run's environment, in seconds."""
    group_deadline: float | None = None
    """Time limit in training like `timeout`, after which a rollout is left out of its group."""

    def limit(self, mode: Mode) -> tuple[float, Failure]:
        """Return the time limit of an attempt in seconds, and the failure at that limit.

        It is the timeout of the agent, or the deadline of the training group.
        """
        group = self.group_deadline
        if group is not None and group < self.timeout and mode is Mode.TRAIN:
            message = f"its group closed without it after {group:g} seconds of its own time"
            return group, Failure(FailureCause.CANCELLED, message)
        message = f"it was stopped after {self.timeout:g} seconds of its own time"
        return self.timeout, Failure(FailureCause.TIMEOUT, message)


class Runner:
    """Runner of rollouts with one agent and the models of a run.

    `reward` grades rollouts whose agent returns no reward; `environment` creates one instance for
    each rollout; `policy` names the resource of the policy. `on_spans` receives the spans of a
    rollout's code; without it none are collected. `on_session` receives the session of each attempt
    before it is played.
    """

    def __init__(
        self,
        agent: Agent,
        models: ModelProvider,
        settings: RunnerSettings,
        *,
        reward: RewardFunction | None = None,
        environment: EnvironmentFactory | None = None,
        resources: NamedResources | None = None,
        policy: str | None = None,
        on_spans: OnSpans | None = None,
        on_session: Callable[[RolloutSession], None] | None = None,
    ) -> None:
        """Create a runner. Raises `ConfigError` if the agent does not fit the environment."""
        self._agent, self._models, self._settings = agent, models, settings
        self._environment = environment
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )
        if environment is not None and (refusal := agent.environment_refusal()):
            raise ConfigError(
                f"agent {agent.name!r} cannot play in the environment {environment.name!r}: "
                f"{refusal}"
            )
        needed = isinstance(agent, AgentFunction) and ENVIRONMENT in agent.required
        if environment is None and needed and ENVIRONMENT not in (resources or ()):
            raise ConfigError(
                f"agent {agent.name!r} needs an environment: pass --environment NAME (in Python "
                "Trainer(environment=...))"
            )
        self._policy, self._on_spans, self._on_session = policy, on_spans, on_session
        self._resources = resources or NamedResources()
        self.grader = Grader(agent.name, reward, settings.failure_reward, settings.reward_timeout)

    async def run(
        self, specs: Sequence[RolloutSpec], on_done: Callable[[Rollout], None] | None = None
    ) -> list[Rollout]:
        """Run all specs and return the rollouts in order; `on_done` receives each rollout.

        A `FailureBudgetError` raised by `on_done` cancels all rollouts.
        """
        gate = asyncio.Semaphore(self._settings.concurrency)
        tasks: list[asyncio.Task[Rollout]] = []
        try:
            # Held until every rollout has begun, so that groups are admitted together.
            async with asyncio.TaskGroup() as group, self._models.participant():
                for order, spec in enumerate(specs):
                    tasks.append(group.create_task(self._run_rollout(order, spec, gate, on_done)))
                await asyncio.sleep(0)
        except* FailureBudgetError as stopped:
            raise stopped.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _run_rollout(
        self,
        order: int,
        spec: RolloutSpec,
        gate: asyncio.Semaphore,
        on_done: Callable[[Rollout], None] | None,
    ) -> Rollout:
        """Run attempts with randomised backoff until one does not fail with an engine error."""
        attempts: list[Attempt] = []
        spans: list[SpanRecord] = []
        pool = None
        await gate.acquire()
        if self._environment is not None:
            new = asyncio.Semaphore(self._settings.pool_size)
            pool = self._pools.setdefault(asyncio.get_running_loop(), new)
            await pool.acquire()
        async with self._models.participant():
            try:
                while True:
                    attempts.append(await self._run_attempt(order, spec, len(attempts), spans))
                    failure = attempts[-1].failure
                    lost = failure is not None and failure.cause is FailureCause.ENGINE_ERROR
                    if not lost or len(attempts) >= self._settings.attempts:
                        break
                    jitter = 0.5 + spec.seeds.child("retry", len(attempts)).python().random()
                    pause = self._settings.backoff * 2 ** (len(attempts) - 1) * jitter
                    await asyncio.sleep(pause)
            finally:
                gate.release()
                if pool is not None:
                    pool.release()
            rollout = Rollout(
                id=spec.seeds.id("roll", self._settings.run_id),
                run_id=self._settings.run_id,
                task=spec.task,
                mode=spec.mode,
                step=spec.step,
                group=spec.group,
                index=spec.index,
                attempts=tuple(attempts),
                label=spec.label,
            )
            if self._on_spans is not None:
                self._on_spans(rollout, spans)
            # Who waits at the gate begins before this rollout leaves the schedule: else what
            # the engine does next would depend on which of two tools came back first.
            await asyncio.sleep(0)
        if on_done is not None:
            on_done(rollout)
        return rollout

    async def _run_attempt(
        self, order: int, spec: RolloutSpec, number: int, spans: list[SpanRecord]
    ) -> Attempt:
        """Play and grade one attempt; its spans are appended to `spans`."""
        seeds = spec.seeds.child("attempt", number)
        rollout_id, attempt_id = spec.seeds.id("roll", self._settings.run_id), seeds.id("att")
        started, start = time(), perf_counter()
        try:
            models = self._models.open(rollout_id, attempt_id, seeds, order)
        except EngineError as error:
            failure = Failure(FailureCause.ENGINE_ERROR, str(error), traceback.format_exc())
            return Attempt(attempt_id, number, RolloutStatus.FAILED, failure=failure)
        limit, expired = self._settings.limit(spec.mode)
        timed = self._agent.schedule != "deterministic"
        session = RolloutSession(
            task_record=spec.task,
            client=models.client,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            attempt=number,
            mode=spec.mode,
            step=spec.step,
            resources=self._resources.replaced(models.resources),
            limit=limit if timed else inf,
            policy=self._policy,
            env=models.env(spec.mode),
            own_time=models.own_time,
            posted=models.posted,
        )
        if self._on_session is not None:
            self._on_session(session)
        tracing: Any = nullcontext()
        if self._on_spans is not None:
            from tutelage.tracing.live import trace_attempt  # with OpenTelemetry

            tracing = trace_attempt(Identity(self._settings.run_id, rollout_id, attempt_id))
        # Around agent and reward, so that both see the same environments.
        scope = rollout_environments(spec.task, seeds.child("environment").value())
        async with scope as environments:
            trace = value = failed = None
            try:
                if self._environment is not None:
                    opened = environments.open(self._environment, self._settings.step_timeout)
                    session.environment = await opened
                with tracing as trace:
                    if timed:
                        value = await self._play_with_deadline(session, expired)
                    else:
                        with _record_failure(session):
                            value = await self._agent.play(spec.task, session, session.resources)
                    failed = session.failure
            except EnvironmentFailedError as error:  # it could not be opened
                failed = Failure(FailureCause.ENVIRONMENT_ERROR, str(error), traceback.format_exc())
            except BaseException:
                await asyncio.shield(models.close(finish=False))
                raise
            session.closed = True
            calls = await models.close()
            records = () if trace is None else trace.records
            spans += records
            failure = _engine_failure(failed, models.failure, models.lost)
            environment, trained = (
                session.environment,
                _mark_trained_calls(calls, session.marked, records),
            )
            if environment is not None:
                trained = _add_turn_rewards(trained, environment.turns)
                if environment.failure is not None and failed is None:
                    failure = Failure(FailureCause.ENVIRONMENT_ERROR, str(environment.failure))
            allowed = self._settings.allow_no_calls or spec.mode is not Mode.TRAIN
            if failure is None and session.stop == "answer" and not (calls or allowed):
                failure = Failure(FailureCause.NO_CALLS, _NO_CALLS)
            attempt = Attempt(
                id=attempt_id,
                index=number,
                status=RolloutStatus.SUCCEEDED if failure is None else RolloutStatus.FAILED,
                calls=tuple(trained),
                tool_results=tuple(session.tool_results),
                answer=replace_surrogates(session.answer),
                failure=failure,
                stop=session.stop if failure is None else None,
                seconds=perf_counter() - start,
                started=started,
                info=None if environment is None else environment.info,
            )
            return await self.grader.grade(spec.task, attempt, session, value)

    async def _play_with_deadline(self, session: RolloutSession, timeout: Failure) -> Any:
        """Play until the agent returns or reaches its time limit. Only cancellation is raised."""

        async def play() -> Any:
            with _record_failure(session):
                return await self._agent.play(session.task_record, session, session.resources)

        # A task of its own, so that what the agent sets in its context stays there.
        task = asyncio.create_task(play())
        try:
            done = await session.own_time.wait_for(task, session.limit)
        except asyncio.CancelledError:
            session.cancelled = session.closed = True
            await cancel_and_wait(task)
            raise
        if done and not task.cancelled():
            return task.result()
        if done:
            message = "CancelledError: the agent cancelled itself"
            session.failure = Failure(FailureCause.AGENT_ERROR, message)
            return None
        session.cancelled = session.closed = True
        await cancel_and_wait(task)
        left = "" if task.done() else ", and did not end: it was abandoned with its models closed"
        session.failure = replace(timeout, message=timeout.message + left)
        return None


@contextmanager
def _record_failure(session: RolloutSession) -> Generator[None]:
    """Convert exceptions of the agent in the block, including SystemExit, to a failure."""
    enter_rollout(session)
    try:
        yield
    except AgentFailedError as error:
        session.failure = Failure(FailureCause.AGENT_ERROR, str(error), error.trace)
    except (KeyboardInterrupt, GeneratorExit, FailureBudgetError):
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # the run is being stopped, not this agent by itself
        cause, message = FailureCause.AGENT_ERROR, exception_text(error)
        if isinstance(error, EngineError):
            overflow = isinstance(error, ContextOverflowError)
            cause = FailureCause.CONTEXT_OVERFLOW if overflow else FailureCause.ENGINE_ERROR
            message = str(error)
        elif isinstance(error, EnvironmentFailedError):
            cause, message = FailureCause.ENVIRONMENT_ERROR, str(error)
        elif isinstance(error, ToolError):
            cause = FailureCause.TOOL_ERROR
        session.failure = Failure(cause, message, traceback.format_exc())


def _engine_failure(
    failure: Failure | None, engine_error: EngineError | None, lost_error: EngineError | None
) -> Failure | None:
    """Return the engine failure that caused a failure of the agent, or the failure itself.

    Over HTTP an engine failure reaches the agent as a client exception, and some frameworks return
    the error of a model as an answer.
    """
    if failure is None:
        words = f"{lost_error} (the agent went on without)"
        return None if lost_error is None else Failure(FailureCause.ENGINE_ERROR, words)
    if engine_error is None or failure.cause is not FailureCause.AGENT_ERROR:
        return failure
    overflow = isinstance(engine_error, ContextOverflowError)
    cause = FailureCause.CONTEXT_OVERFLOW if overflow else FailureCause.ENGINE_ERROR
    return Failure(cause, f"{engine_error} (the agent: {failure.message})", failure.traceback)


def _add_turn_rewards(calls: Sequence[Call], turns: Sequence[TurnRecord]) -> list[Call]:
    """Add the rewards and infos of turns to their calls.

    A turn of an agent's own code belongs to the last call sent before it, preferably a trained one;
    a turn before all calls belongs to the first.
    """
    out = list(calls)
    for turn in turns:
        own = [i for i, call in enumerate(out) if call.id == turn.call_id]
        before = own or [i for i, call in enumerate(out) if call.started <= turn.started]
        trained = [i for i in before if out[i].policy is not None]
        place = max(trained or before or range(min(1, len(out))), default=None)
        if place is not None:
            call = out[place]
            rewards = [each for each in (call.reward, turn.reward) if each is not None]
            reward = sum(rewards) if rewards else None
            out[place] = replace(call, reward=reward, info={**(call.info or {}), **turn.info})
    return out


# ---------------------------------------------------------------- marked agents


def _mark_trained_calls(
    calls: Sequence[Call], agents: Collection[str], spans: Sequence[SpanRecord]
) -> list[Call]:
    """Return the calls, with policy None for calls of agents that are not in `agents`.

    The agent of a call is its explicit name (`rollout.agent(...)`, a key, a path), else the agent
    named by a framework's spans: the span of the call is a descendant of the agent's span, and
    names the response id of the gateway. If the spans name no response, it is the only agent whose
    span covers the complete call.
    """
    if not agents:
        return list(calls)
    out: list[Call] = []
    for call in calls:
        if call.agent == MAIN_AGENT and call.agent not in agents:
            call = replace(call, agent=_find_span_agent(call, spans) or call.agent)
        out.append(call if call.agent in agents else replace(call, policy=None))
    return out


def _find_span_agent(call: Call, spans: Sequence[SpanRecord]) -> str | None:
    """Return the agent of a call according to the spans of the attempt, or None."""
    by_id = {span.span_id: span for span in spans}

    def ancestors(span: SpanRecord) -> list[SpanRecord]:
        """Return a span and its ancestors, nearest first."""
        out = [span]
        while (above := by_id.get(out[-1].parent_id or "")) is not None and above not in out:
            out.append(above)
        return out

    named = {
        s.span_id: str(s.attributes[names.AGENT]) for s in spans if s.attributes.get(names.AGENT)
    }
    response = [s for s in spans if s.attributes.get(names.RESPONSE_ID) == call.id]
    if response:
        return next((named[s.span_id] for s in ancestors(response[-1]) if s.span_id in named), None)
    began = call.started * 1e9
    ended = began + call.seconds * 1e9
    agents = [span for span in spans if span.span_id in named]
    around = [s for s in agents if s.start_ns <= began and ended <= s.end_ns]
    outer = {above.span_id for s in around for above in ancestors(s)[1:]}
    inner = {named[s.span_id] for s in around if s.span_id not in outer}
    return inner.pop() if len(inner) == 1 else None


# ---------------------------------------------------------------- rewards


@dataclass(slots=True)
class Grader:
    """Grader for the attempts of one agent."""

    agent: str
    """Name of the agent."""
    reward: RewardFunction | None
    failure_reward: float
    timeout: float | None
    """Time limit of `reward`, in seconds."""

    async def grade(
        self, task: Task, attempt: Attempt, session: RolloutSession, value: Any
    ) -> Attempt:
        """Return the attempt with its reward, or as a failure if computing the reward fails."""
        if isinstance(value, str) and attempt.answer is None:
            attempt = replace(attempt, answer=replace_surrogates(value))
        attempt = split_answer(attempt)
        if attempt.failure is not None:
            if attempt.failure.cause.infrastructure:
                return attempt
            # What the turns earned before it is kept.
            earned = session.environment and session.environment.total
            return replace(attempt, reward=Reward((earned or 0.0) + self.failure_reward))
        try:
            reward = self._read_reward(task, attempt, session, value)
            if reward is None and self.reward is not None:
                # What was emitted without a final reward is checked first.
                emitted = to_reward({**dict(session.rewards), "reward": 0.0}, self.agent, task.id)
                reward = await compute_reward(self.reward, task, attempt, timeout=self.timeout)
                reward = Reward(reward.value, {**emitted.parts, **reward.parts})
        except RewardError as error:
            return _record_reward_error(attempt, error, self.failure_reward)
        environment = session.environment
        if reward is not None and attempt.info is not None and environment is not None:
            # An episode that its agent left before the end did not succeed.
            success = attempt.info.get(SUCCESS, None if environment.ended else False)
            if success is not None:
                parts = {**reward.parts, EXACT: float(bool(success))}
                reward = replace(reward, parts=parts)
        return replace(attempt, reward=reward)

    def _read_reward(
        self, task: Task, attempt: Attempt, session: RolloutSession, value: Any
    ) -> Reward | None:
        """Return the reward that the agent or its environment gave, or None if the reward function
        is to compute it. Raises `RewardError` if the reward is missing."""
        named, agent = dict(session.rewards), self.agent
        if isinstance(value, str):
            value = None
        if value is None and "reward" not in named and self.reward is not None:
            # A built-in agent without an answer says what stopped it.
            read = {*self.reward.required, *self.reward.optional}
            spoke = not attempt.calls or bool(attempt.calls[-1].reply.content)
            needed = "prediction" in read and not read & {"trajectory", "context"}
            if needed and spoke and attempt.answer is None and session.stop == "answer":
                raise RewardError(
                    f"agent {agent!r} returned None on task {task.id!r}, so the reward "
                    f"{self.reward.name!r} has no text to grade; return the reply's content, '' if "
                    "there is no answer, or a number"
                )
            return None
        if isinstance(value, dict) or (value is None and named):
            value = {**named, **(value or {})}
        elif value is not None and named:
            value = {**named, "reward": value}
        elif value is None and session.environment is not None:
            value = session.environment.total
            if value is None and session.environment.ended:
                raise RewardError(
                    f"the environment {session.environment.name!r} gave no reward on task "
                    f"{task.id!r}: return Step(reward=...), or pass a reward function"
                )
            value = value or 0.0
        elif value is None:
            raise RewardError(
                f"agent {agent!r} returned no reward on task {task.id!r}; return a number, call "
                "emit_reward(...), or pass a reward for the returned text: --reward NAME or "
                "FILE.py:function (in Python Trainer(reward=...))"
            )
        return to_reward(value, agent, task.id)


def check_text_is_graded(rollout: Rollout, reward: RewardFunction | None) -> None:
    """Raise `FailureBudgetError` if the first rollout returned a text but no reward grades it."""
    failure = rollout.last.failure
    if reward is not None or failure is None or rollout.last.answer is None:
        return
    if failure.cause is FailureCause.REWARD_ERROR:
        raise FailureBudgetError(f"{failure.message}; then start again (with another --output)")


def _record_reward_error(attempt: Attempt, error: RewardError, failure_reward: float) -> Attempt:
    """Return a failed attempt, with the failure reward if the model's output caused the error."""
    causes: dict[type[RewardError], FailureCause] = {
        AnswerError: FailureCause.ANSWER_ERROR,
        RewardTimeoutError: FailureCause.REWARD_TIMEOUT,
        GraderError: FailureCause.GRADER_ERROR,
        RewardError: FailureCause.REWARD_ERROR,
    }
    cause = next(cause for kind, cause in causes.items() if isinstance(error, kind))
    earned = Reward(failure_reward) if cause is FailureCause.ANSWER_ERROR else None
    # A traceback quotes the exception, which may quote all that the model wrote.
    trace = "".join(traceback.format_exception(error))[-_LONGEST_TRACE:]
    trace = trace.encode("utf-8", "backslashreplace").decode()
    failure = Failure(cause, str(error), trace)
    return replace(attempt, status=RolloutStatus.FAILED, failure=failure, stop=None, reward=earned)
