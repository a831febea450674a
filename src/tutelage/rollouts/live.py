"""The runner for any agent: hundreds of rollouts at once, whatever the agents do to themselves.

Each attempt gets its own models (`models.py`), its own identity in context variables, a trace, and
a deadline in its own time (`agents/own_time.py`): waiting for models costs it nothing. What an
agent returns or emits is its reward; what it raises, and why, stays with its attempt. Nothing that
one agent does ends another's rollout or the run: one that hangs is cancelled and, when it will not
go, left behind with its models shut. The built-in agents, whose schedule is a function of the seed,
are run by `runner.py`, which this module shares its limits and retries with.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from tutelage.agents.context import RolloutContext, enter
from tutelage.agents.isolated import AgentRaisedError
from tutelage.agents.own_time import done_within
from tutelage.agents.program import Program
from tutelage.errors import ContextOverflowError, EngineError, RewardError
from tutelage.resources import NamedResources
from tutelage.rewards import RewardFunction, compute_reward
from tutelage.rewards.values import to_reward
from tutelage.rollouts.marks import trained
from tutelage.rollouts.models import Models, Seat
from tutelage.rollouts.runner import (
    RunnerSettings,
    Spec,
    limit_of,
    not_graded,
    play_all,
    with_retries,
)
from tutelage.tools.tool import ToolError
from tutelage.tracing import Identity, SpanRecord, trace_attempt
from tutelage.types import (
    Attempt,
    Failure,
    FailureCause,
    Reward,
    Rollout,
    RolloutStatus,
)

GRACE_SECONDS = 1.0
"""How long a cancelled agent may clean up before it is left behind."""

OnSpans = Callable[[Rollout, Sequence[SpanRecord]], None]


@dataclass(slots=True)
class _Play:
    """What came of playing an attempt."""

    value: Any = None
    failure: Failure | None = None
    reward: Reward | None = None
    graded: bool = False


class LiveRunner:
    """Runs specs with one program and the models of a run.

    `reward` grades what returns no reward of its own. `on_spans` gets the spans that an attempt's
    code opened; without it none are collected.
    """

    def __init__(
        self,
        program: Program,
        models: Models,
        resources: NamedResources,
        settings: RunnerSettings,
        *,
        reward: RewardFunction | None = None,
        policy: str | None = None,
        on_spans: OnSpans | None = None,
    ) -> None:
        self._program = program
        self._models, self._resources = models, resources
        self._settings = settings
        self._reward, self._policy, self._on_spans = reward, policy, on_spans

    async def run(
        self, specs: Sequence[Spec], on_done: Callable[[Rollout], None] | None = None
    ) -> list[Rollout]:
        """Run all specs and return their rollouts in order; cancelling cancels them all."""
        return await play_all(
            specs, self._rollout, self._settings.concurrency, nullcontext, on_done
        )

    async def _rollout(self, order: int, spec: Spec) -> Rollout:
        traces: list[SpanRecord] = []
        rollout = await with_retries(
            spec,
            self._settings,
            lambda number: self._attempt(order, spec, number, traces),
        )
        if self._on_spans is not None:
            self._on_spans(rollout, traces)
        return rollout

    async def _attempt(
        self, order: int, spec: Spec, number: int, traces: list[SpanRecord]
    ) -> Attempt:
        seeds = spec.seeds.child("attempt", number)
        rollout_id, attempt_id = spec.seeds.id("roll"), seeds.id("att")
        started, start = time.time(), time.perf_counter()
        try:
            seat = self._models.open(rollout_id, attempt_id, seeds, order)
        except EngineError as error:
            failure = Failure(FailureCause.ENGINE_ERROR, str(error), traceback.format_exc())
            return Attempt(attempt_id, number, RolloutStatus.FAILED, failure=failure)
        limit, expired = limit_of(spec, self._settings)
        context = self._context(spec, seat, rollout_id, attempt_id, number, limit)
        try:
            identity = Identity(self._settings.run_id, rollout_id, attempt_id)
            collect = self._on_spans is not None
            with trace_attempt(identity) if collect else nullcontext() as trace:
                play = await self._play(context, seat, expired)
        except BaseException:
            await asyncio.shield(seat.close())
            raise
        context.closed = True
        calls = await seat.close()
        records = () if trace is None else trace.records
        traces += records
        attempt = Attempt(
            id=attempt_id,
            index=number,
            status=RolloutStatus.SUCCEEDED if play.failure is None else RolloutStatus.FAILED,
            calls=tuple(trained(calls, context.marked, records)),
            tool_results=tuple(context.tool_results),
            answer=context.answer,
            reward=play.reward,
            failure=play.failure,
            stop=context.stop if play.failure is None else None,
            seconds=time.perf_counter() - start,
            started=started,
        )
        return attempt if play.graded else await self._grade(spec, attempt, context, play.value)

    def _context(
        self,
        spec: Spec,
        seat: Seat,
        rollout_id: str,
        attempt_id: str,
        number: int,
        limit: float,
    ) -> RolloutContext:
        return RolloutContext(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            attempt=number,
            task_record=spec.task,
            mode=spec.mode,
            step=spec.step,
            resources=self._resources.replaced(seat.resources),
            limit=limit,
            policy=self._policy,
            env=seat.env,
            own_time=seat.own_time,
        )

    async def _play(self, context: RolloutContext, seat: Seat, expired: Failure) -> _Play:
        """Play until the agent ends or its time is up; only cancellation of the run is raised."""
        # A task of its own, so that what the agent sets in its context stays there.
        task = asyncio.create_task(_guarded(self._program, context))
        try:
            done = await done_within(task, context.own_time, context.limit)
        except asyncio.CancelledError:
            context.cancelled = context.closed = True
            await _cancel(task)
            raise
        if not done:
            context.cancelled = context.closed = True
            await _cancel(task)
            if task.done():
                return _Play(failure=expired)
            told = f"{expired.message}, and would not end: it was left behind, its models shut"
            return _Play(failure=replace(expired, message=told))
        if task.cancelled():
            message = "CancelledError: the agent cancelled itself"
            return _Play(failure=Failure(FailureCause.AGENT_ERROR, message))
        play = task.result()
        if play.failure is not None:
            play.failure = _with_engine(play.failure, seat.failure)
        elif (lost := seat.lost) is not None:
            # Many frameworks make the error of a model an answer, which is none.
            play.failure = Failure(FailureCause.ENGINE_ERROR, f"{lost} (the agent went on without)")
        elif type(play.value) is float and isfinite(play.value) and not context.emitted:
            play.reward, play.graded = Reward(play.value), True  # as most agents do
        return play

    async def _grade(
        self, spec: Spec, attempt: Attempt, context: RolloutContext, value: Any
    ) -> Attempt:
        """The attempt with its reward; one that cannot be had makes it fail."""
        if attempt.failure is not None:
            if attempt.failure.cause.infrastructure:
                return attempt
            return replace(attempt, reward=Reward(self._settings.failure_reward))
        try:
            return await self._graded(spec, attempt, context, value)
        except RewardError as error:
            return not_graded(attempt, error, self._settings.failure_reward)

    async def _graded(
        self, spec: Spec, attempt: Attempt, context: RolloutContext, value: Any
    ) -> Attempt:
        named = dict(context.emitted)
        if isinstance(value, str):
            attempt = replace(attempt, answer=value if attempt.answer is None else attempt.answer)
            if self._reward is not None:
                value = None
        if value is None and "reward" not in named and self._reward is not None:
            found = await compute_reward(
                self._reward, spec.task, attempt, timeout=self._settings.reward_timeout
            )
            parts = {**_numbers(named, self._program.name, spec.task.id), **found.parts}
            return replace(attempt, reward=Reward(found.value, parts))
        if isinstance(value, dict):
            value = {**named, **value}
        elif value is not None and named:
            value = {**named, "reward": value}
        elif value is None and named:
            value = named
        elif value is None:
            raise RewardError(
                f"agent {self._program.name!r} gave no reward on task {spec.task.id!r}: return a "
                "number, call emit_reward(...), or give the Trainer a reward function"
            )
        return replace(attempt, reward=to_reward(value, self._program.name, spec.task.id))


def _numbers(named: dict[str, Any], agent: str, task_id: str) -> dict[str, float]:
    """Emitted parts without a final reward, checked."""
    return dict(to_reward({**named, "reward": 0.0}, agent, task_id).parts)


async def _guarded(program: Program, context: RolloutContext) -> _Play:
    """Play, and make what the agent raises a failure: SystemExit would stop the event loop."""
    enter(context)
    try:
        return _Play(value=await program.play(context))
    except AgentRaisedError as error:
        failure = Failure(FailureCause.AGENT_ERROR, str(error), error.trace)
    except ContextOverflowError as error:
        failure = Failure(FailureCause.CONTEXT_OVERFLOW, str(error), traceback.format_exc())
    except EngineError as error:
        failure = Failure(FailureCause.ENGINE_ERROR, str(error), traceback.format_exc())
    except (Exception, SystemExit) as error:
        cause = FailureCause.TOOL_ERROR if isinstance(error, ToolError) else None
        message = f"{type(error).__name__}: {error}"
        failure = Failure(cause or FailureCause.AGENT_ERROR, message, traceback.format_exc())
    return _Play(failure=failure)


def _with_engine(failure: Failure, engine: EngineError | None) -> Failure:
    """The failure, or what lay behind it: over HTTP an engine's failure reaches the agent as an
    exception of its client, which is not the agent's fault."""
    if engine is None or failure.cause is not FailureCause.AGENT_ERROR:
        return failure
    overflow = isinstance(engine, ContextOverflowError)
    cause = FailureCause.CONTEXT_OVERFLOW if overflow else FailureCause.ENGINE_ERROR
    return Failure(cause, f"{engine} (the agent: {failure.message})", failure.traceback)


async def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancel, and wait a little for the agent's own clean-up."""
    task.cancel()
    await asyncio.wait({task}, timeout=GRACE_SECONDS)
    # Its late end is of no interest, but asyncio would warn of an exception nobody looked at.
    task.add_done_callback(lambda t: t.cancelled() or t.exception())
