"""The reward of an attempt: the value that its agent returned or emitted, else of a reward
function.

An agent's failure earns the failure reward; an infrastructure failure has no reward; a reward that
cannot be computed makes the attempt fail, which `runner.py` records.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from typing import Any

from tutelage.agents.session import RolloutSession
from tutelage.bounded import replace_surrogates
from tutelage.errors import (
    AnswerError,
    FailureBudgetError,
    GraderError,
    RewardError,
    RewardTimeoutError,
)
from tutelage.rewards import RewardFunction, compute_reward
from tutelage.rewards.function import split_answer
from tutelage.rewards.values import to_reward
from tutelage.types import (
    EXACT,
    SUCCESS,
    Attempt,
    Failure,
    FailureCause,
    Reward,
    Rollout,
    RolloutStatus,
    Task,
)

_LONGEST_TRACE = 20_000
"""Maximum characters of a recorded traceback, kept from its end."""


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
