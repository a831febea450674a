"""The lifecycle of environments in a rollout: opened, stepped within a time limit, always closed.

`rollout_environments` is the scope of a rollout. It holds the states of tool classes, opened when
an agent binds their tools, and the run's environment, opened by the runner. If a caller has already
entered it, as a runner does around agent and reward, the same environments stay open until the
reward is computed. On exit all are closed, in reverse order of opening.

A `RolloutEnvironment` is one instance of a run's environment. Its methods run on a separate event
loop thread, and plain functions in a thread each, so blocking code stops no other rollout.
Everything that an instance returns is checked here. Each fault is an `EnvironmentFailedError`,
which the runner records as the infrastructure failure `environment_error`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from tutelage.bounded import replace_surrogates
from tutelage.environments.protocol import Environment, EnvironmentFactory, Observation, Step
from tutelage.environments.tool_classes import ToolEnvironment
from tutelage.errors import EnvironmentFailedError, TutelageError
from tutelage.tools.execute import call_safely
from tutelage.tools.tool import Tool, ToolClass, ToolError
from tutelage.types import JSON, Message, Task

OPEN_SECONDS = 120.0
"""Time limit in seconds for opening an environment, and for closing the state of a tool class."""
STEP_SECONDS = 30.0
"""Time limit in seconds of a step, and of closing, unless `environment.step_timeout` is set."""
MAX_CHARS = 100_000
"""Maximum characters of an observation, and of an info as JSON."""
LARGEST = 1e9
"""Maximum absolute value of a reward."""

logger = logging.getLogger(__name__)


class _LoopThread:
    """An event loop in a daemon thread, on which environments run."""

    latest: _LoopThread | None = None

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        name = "tutelage-environments"
        threading.Thread(target=self.loop.run_forever, name=name, daemon=True).start()

    @classmethod
    def current(cls) -> _LoopThread:
        """Return the thread for new instances, starting it at the first use."""
        cls.latest = cls.latest or cls()
        return cls.latest

    def abandon(self) -> None:
        """Use another thread for new instances, because this one is blocked."""
        if _LoopThread.latest is self:
            _LoopThread.latest = None


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """The reward and info of one step, and the id of the model call that it belongs to."""

    reward: float | None
    info: JSON
    call_id: str | None
    """None for a step made by an agent's code."""
    started: float
    """Start of the step, in seconds since 1970."""


class RolloutEnvironment:
    """The environment of one rollout, with a record of its steps.

    An agent's code calls `await step(reply)`, or `step_sync(reply)` if it is not async, until
    `ended` is True. The rewards of the steps are recorded and add up to the rollout's return.
    """

    def __init__(
        self, factory: EnvironmentFactory, task: Task, seed: int, step_timeout: float = STEP_SECONDS
    ) -> None:
        self.name, self.task, self.seed = factory.name, task, seed
        self.observation = Observation()
        """The latest observation."""
        self.terminated = self.truncated = False
        self.turns: list[TurnRecord] = []
        self.info: JSON = {}
        """Info of the first observation, updated with the info of the last step."""
        self.failure: EnvironmentFailedError | None = None
        """The first failure; no step is possible after it."""
        self._factory, self._step_timeout = factory, step_timeout
        self._instance: Environment | None = None
        self._caller_loop: asyncio.AbstractEventLoop | None = None
        self._thread = _LoopThread.current()
        self._busy = False

    @property
    def ended(self) -> bool:
        """Return True if the episode is over."""
        return self.terminated or self.truncated

    @property
    def state(self) -> Any:
        """Return the user's environment object, which reward functions get in their `context`."""
        instance: Any = self._instance
        return instance.state if isinstance(instance, ToolEnvironment) else instance

    @property
    def total(self) -> float | None:
        """Return the sum of the rewards of all turns, or None if no turn has a reward."""
        rewards = [turn.reward for turn in self.turns if turn.reward is not None]
        return sum(rewards) if rewards else None

    async def open(self) -> Observation:
        """Create the instance and reset it. Raises `EnvironmentFailedError`."""
        self._caller_loop = asyncio.get_running_loop()
        self._instance = await self._call("creation", OPEN_SECONDS, self._factory.make)
        reset = cast("Environment", self._instance).reset
        first = await self._call("reset", OPEN_SECONDS, reset, self.task, self.seed)
        self.observation = self._check_observation(first, "reset")
        self.info = dict(self.observation.info)
        if not self.observation.messages and not self.task.has_input:
            raise self._record_error("reset", "there is no message, and the task has no question")
        return self.observation

    async def step(
        self, action: Message | str | Mapping[str, Any], call_id: str | None = None
    ) -> Step:
        """Apply a reply with all its tool calls, and return the resulting step.

        `action` is a message, its text, or a message in OpenAI's form. Raises
        `EnvironmentFailedError`, and `TutelageError` for a step after the end of the episode or
        during another step.
        """
        if self.failure is not None:
            raise self.failure
        if self._instance is None or self.ended or self._busy:
            raise TutelageError(
                f"cannot step the environment {self.name!r}: it has ended, is closed, or runs "
                "another step; await each step, and stop when `environment.ended` is True"
            )
        if isinstance(action, str):
            action = Message("assistant", action)
        elif not isinstance(action, Message):
            action = Message.from_dict(action)
        self._busy, started = True, time.time()
        try:
            step = self._check_step(
                await self._call("step", self._step_timeout, self._instance.step, action)
            )
        finally:
            self._busy = False
        self.observation, self.info = step.observation, self.info | dict(step.info)
        self.terminated, self.truncated = step.terminated, step.truncated
        info = {**step.observation.info, **step.info}
        self.turns.append(TurnRecord(step.reward, info, call_id, started))
        return step

    def step_sync(self, action: Message | str | Mapping[str, Any]) -> Step:
        """Apply a reply from synchronous code in another thread; see `step`."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            assert self._caller_loop is not None, "it is open"
            return asyncio.run_coroutine_threadsafe(self.step(action), self._caller_loop).result()
        raise TutelageError("step_sync would block the event loop; use `await environment.step`")

    async def close(self) -> None:
        """Close the instance and log any failure, so that the finished rollout is kept."""
        instance, self._instance = self._instance, None
        if instance is None:
            return
        try:
            await self._call("close", self._step_timeout, instance.close)
        except EnvironmentFailedError:
            logger.warning("the environment %r failed to close", self.name, exc_info=True)

    async def _call(self, phase: str, timeout: float, fn: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the environment on its own thread, with a time limit."""
        call = call_safely(partial(fn, *args), {}, label=phase, inline=False, timeout=timeout)
        work = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._thread.loop))
        try:
            # The margin is for cancelling; only a loop that is blocked needs more.
            value, error = await asyncio.wait_for(work, timeout + 2.0)
        except TimeoutError as late:
            if work.cancelled():
                self._thread.abandon()
            way = "raise environment.step_timeout" if phase == "step" else "it may hang"
            raise self._record_error(
                phase,
                f"it took longer than {timeout:g} seconds; {way}, or lower environment.pool_size",
            ) from late
        if error is not None:
            raise self._record_error(phase, f"{type(error).__name__}: {error}"[:500]) from error
        return value

    def _record_error(self, phase: str, reason: str) -> EnvironmentFailedError:
        """Create an error with the environment's name, and store the first error as `failure`."""
        error = EnvironmentFailedError(f"the environment {self.name!r} failed in {phase}: {reason}")
        self.failure = self.failure or error
        return error

    def _check_step(self, value: Any) -> Step:
        """Validate the return value of `step`. Raises `EnvironmentFailedError`."""
        if not isinstance(value, Step):
            raise self._record_error("step", f"it returned a {type(value).__name__}, not a Step")
        reward, info = value.reward, self._convert_info(value.info, "step")
        if reward is not None:
            try:
                reward = math.nan if isinstance(reward, str) else float(reward)
            except (TypeError, ValueError, OverflowError):
                reward = math.nan
            if not abs(reward) <= LARGEST:
                raise self._record_error(
                    "step",
                    f"the reward is {value.reward!r:.80}; return a finite number from -{LARGEST:g} "
                    f"to {LARGEST:g}, or None if there is none per turn",
                )
        observation = self._check_observation(value.observation, "step")
        ended = bool(value.terminated), bool(value.truncated)
        if not observation.messages and not any(ended):
            raise self._record_error("step", "an unfinished episode needs an observation")
        return Step(observation, reward, *ended, info)

    def _check_observation(self, value: Any, phase: str) -> Observation:
        """Validate an observation. Raises `EnvironmentFailedError`."""
        if not isinstance(value, Observation):
            kind = type(value).__name__
            raise self._record_error(phase, f"the observation is a {kind}; return an Observation")
        length, messages = 0, list[Message]()
        for message in cast("tuple[Any, ...]", value.messages):
            content: Any = message.content if isinstance(message, Message) else message
            if not (isinstance(message, Message) and (content is None or isinstance(content, str))):
                raise self._record_error(
                    phase,
                    f"an observation holds {content!r:.80}, a {type(content).__name__}; return "
                    "Message objects whose content is text",
                )
            length += len(content or "")
            messages.append(replace(message, content=replace_surrogates(content)))
        if length > MAX_CHARS:
            raise self._record_error(
                phase,
                f"the observation has {length:,} characters, more than {MAX_CHARS:,}; shorten it",
            )
        actions = tuple(value.actions)
        if not all(isinstance(each, str) and each for each in cast("tuple[Any, ...]", actions)):
            raise self._record_error(phase, f"the actions are {actions!r:.80}; return texts")
        actions = tuple(dict.fromkeys(actions))
        return replace(
            value,
            messages=tuple(messages),
            actions=actions,
            info=self._convert_info(value.info, phase),
        )

    def _convert_info(self, value: Any, phase: str) -> JSON:
        """Convert an info dictionary to JSON values, including NumPy arrays and scalars."""

        def to_json(value: Any) -> Any:
            if hasattr(value, "tolist"):
                return value.tolist()
            raise TypeError(f"a {type(value).__name__} is not JSON")

        try:
            text = json.dumps({**value}, default=to_json, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._record_error(
                phase, f"the info cannot be recorded ({error}); return a dict of JSON values"
            ) from error
        if len(text) > MAX_CHARS:
            raise self._record_error(
                phase, f"the info has {len(text):,} characters as JSON, more than {MAX_CHARS:,}"
            )
        return json.loads(text)


class RolloutEnvironments:
    """A rollout's environments: the run's environment and the states of tool classes."""

    def __init__(self, task: Task, seed: int, stack: AsyncExitStack) -> None:
        self.opened: dict[str, Any] = {}
        """States of the opened environments by name; rewards receive them as `context`."""
        self.observed: list[Message] = []
        """Messages that tool classes returned when opened; the agent sees them after its task."""
        self._task, self._seed, self._stack = task, seed, stack
        self._states: dict[ToolClass, Any] = {}

    async def open(
        self, factory: EnvironmentFactory, step_timeout: float = STEP_SECONDS
    ) -> RolloutEnvironment:
        """Open an instance for this rollout. Raises `EnvironmentFailedError`."""
        environment = RolloutEnvironment(factory, self._task, self._seed, step_timeout)
        self._stack.push_async_callback(environment.close)
        await environment.open()
        self.opened[factory.name] = environment.state
        return environment

    async def bind(self, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        """Create the state of each tool class once, and return the bound tools by name.

        Errors of an environment's `reset` propagate; raises `ToolError` on a timeout."""
        bound: dict[str, Tool] = {}
        for name, tool in tools.items():
            owner = tool.environment
            if owner is not None and owner not in self._states:
                environment, limit = ToolEnvironment(owner), asyncio.timeout(OPEN_SECONDS)
                try:
                    async with limit:
                        observation = await environment.reset(self._task, self._seed)
                except TimeoutError as error:
                    if not limit.expired():
                        raise
                    raise ToolError(
                        f"the environment {owner.name!r} did not open within "
                        f"{OPEN_SECONDS:g} seconds"
                    ) from error
                self.observed += observation.messages
                self._stack.push_async_callback(_close_state, environment)
                self._states[owner] = self.opened[owner.name] = environment.state
            bound[name] = tool if owner is None else tool.bind(self._states[owner])
        return bound


async def _close_state(environment: ToolEnvironment) -> None:
    """Close the state of a tool class and log any failure, so that the rollout is kept."""
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            await environment.close()
    except Exception:
        logger.warning("the environment %r failed to close", environment.name, exc_info=True)


_current: ContextVar[RolloutEnvironments | None] = ContextVar("tutelage_environments", default=None)


@asynccontextmanager
async def rollout_environments(task: Task, seed: int = 0) -> AsyncGenerator[RolloutEnvironments]:
    """Enter the scope of a rollout's environments, or reuse the enclosing scope if there is one.

    `seed` is passed to each environment's `reset`."""
    outer = _current.get()
    if outer is not None:
        yield outer
        return
    async with AsyncExitStack() as stack:
        environments = RolloutEnvironments(task, seed, stack)
        token = _current.set(environments)
        try:
            yield environments
        finally:
            _current.reset(token)


def current_environments() -> Mapping[str, Any]:
    """Return the open environments of the current rollout, by name."""
    environments = _current.get()
    return {} if environments is None else environments.opened
