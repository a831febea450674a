"""`@reward`: a function that says what an attempt earned, and the check of its result.

Parameters are filled by name: from the task's fields, and `prediction` (the final text),
`trajectory` (the `Attempt`), `context` (a dict of the rollout), `task`. `check` refuses, before
anything runs, a parameter that cannot be filled; `compute_reward` refuses, with the task's id,
anything that is not a finite number (`values.py`). `failures.py` says whose fault an exception is:
the answer's, or the grader's own. Built-in rewards are found through `registry.py`.
"""

from __future__ import annotations

import inspect
import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, Unpack, overload

from tutelage.errors import RewardError, RewardTimeoutError
from tutelage.replies import split_thought, thought_of
from tutelage.rewards.answers import is_empty
from tutelage.rewards.failures import failure_of
from tutelage.rewards.values import to_reward
from tutelage.rewards.worker import POOL, START_SECONDS, RewardJob, RewardLocation
from tutelage.tasks.overlap import listed
from tutelage.tools.environments import current_environments
from tutelage.tools.execute import call_in_thread, call_safely
from tutelage.tools.loading import hint
from tutelage.types import EXPECTED_FIELDS, Attempt, Reward, Task

REWARD_SECONDS = 60.0
"""How long a reward may take unless `agent.reward_timeout` says otherwise."""
_UNLOADABLE: set[RewardLocation] = set()
"""Rewards that no worker process could load."""

logger = logging.getLogger(__name__)

GIVEN = ("prediction", "trajectory", "context", "task")
"""The parameters that do not come from the task's fields."""


@dataclass(frozen=True, slots=True, eq=False)
class RewardFunction:
    """A function that scores an attempt; still callable as the function it wraps.

    `inline` runs a synchronous function on the event loop instead of in a thread, which is only
    right where its time is bounded and tiny.
    """

    name: str
    fn: Callable[..., Any] = field(repr=False)
    required: tuple[str, ...]
    """Parameters without a default."""
    optional: tuple[str, ...] = ()
    takes_any: bool = False
    """Whether it has `**kwargs`, which receive all fields that no parameter names."""
    inline: bool = False
    one_of: tuple[str, ...] = ()
    """Optional parameters of which the task must fill one."""
    bounded: bool = False
    """Whether it bounds its own time, so that no timeout is put on it."""
    isolation: Literal["process", "none"] = "process"
    """Where a synchronous function runs: in a worker process if one can find it, or here."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself; its result is not checked. A built-in reward is given the
        prediction without its thought here too."""
        if self.builtin:
            kwargs = inspect.signature(self.fn).bind(*args, **kwargs).arguments
            args, kwargs["prediction"] = (), split_thought(kwargs["prediction"])[1]
        return self.fn(*args, **kwargs)

    @property
    def builtin(self) -> bool:
        """True for the graders of this package, which compare with what a field holds."""
        return str(getattr(self.fn, "__module__", "")).startswith("tutelage.rewards.")

    @property
    def sees_attempt(self) -> bool:
        """Whether it is given anything of what the agent did."""
        return self.takes_any or bool({*self.required, *self.optional} & {*GIVEN} - {"task"})

    @property
    def fields_read(self) -> frozenset[str] | None:
        """The fields of a task that it reads; None where it may read any."""
        named = {*self.required, *self.optional}
        return None if self.takes_any or "task" in named else frozenset(named - {*GIVEN})


class RewardSettings(TypedDict, total=False):
    """What `@reward` takes beside a name; see the fields of `RewardFunction`."""

    inline: bool
    bounded: bool
    isolation: Literal["process", "none"]


@overload
def reward(name: Callable[..., Any]) -> RewardFunction: ...
@overload
def reward(
    name: str | None = None, **settings: Unpack[RewardSettings]
) -> Callable[[Callable[..., Any]], RewardFunction]: ...
def reward(
    name: str | Callable[..., Any] | None = None, **settings: Unpack[RewardSettings]
) -> RewardFunction | Callable[[Callable[..., Any]], RewardFunction]:
    """Make a sync or async function a `RewardFunction`: `@reward`, `@reward()`, `@reward("name")`.

    A sync function runs in a worker process where another process can find it (it stands at the
    top of a file or module that was not itself started), and in a thread otherwise; `isolation` is
    `none` for one that should not leave this process. `bounded` says that it bounds its own time.
    It returns a bool, int or float, or a dict with `reward` and other named numbers. Raises
    `RewardError` for a signature whose parameters cannot be filled by name.
    """

    def decorate(fn: Callable[..., Any]) -> RewardFunction:
        given = name if isinstance(name, str) else getattr(fn, "__name__", "reward")
        required: list[str] = []
        optional: list[str] = []
        takes_any = False
        for parameter in inspect.signature(fn).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                takes_any = True
            elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise RewardError(
                    f"reward {given!r}: {str(parameter)!r} cannot be passed by name; "
                    "use ordinary parameters, named like the task's fields"
                )
            else:
                has_default = parameter.default is not parameter.empty
                (optional if has_default else required).append(parameter.name)
        named = (tuple(required), tuple(optional))
        return RewardFunction(given, fn, *named, takes_any, **settings)

    return decorate(name) if callable(name) else decorate


def check(function: RewardFunction, dataset: Sequence[Task]) -> None:
    """Raise `RewardError` when a parameter of the reward cannot be filled for some task.

    Also when a parameter could mean two things: a field of the task, or one of `GIVEN`; and when a
    built-in reward compares with a field that is null or empty. A user's own reward may know what
    to make of that, so it is a warning.
    """
    found: dict[str, None] = {}
    for task in dataset:
        _check_task(function, task)
        one_of, needed = function.one_of, [*function.required]
        if function.fields_read is None and not function.builtin:
            one_of = EXPECTED_FIELDS
        if all(is_empty(task.fields.get(name)) for name in one_of):
            needed += one_of
        where = task.place or f"task {task.id!r}"
        for name in needed:
            if name in task.fields and is_empty(task.fields[name]):
                found[f"{where}: field {name!r} is {task.fields[name]!r:.60}"] = None
        if found and function.builtin:
            raise RewardError(
                f"{next(iter(found))}, but the reward {function.name!r} compares with it; add the "
                "expected answer, or leave the row out"
            )
    if found:
        logger.warning(
            "the reward %r may lack an expected answer: %s", function.name, listed([*found])
        )


def _check_task(function: RewardFunction, task: Task) -> None:
    fields = ", ".join(map(repr, task.fields))
    where = task.place and f"{task.place}: "
    for parameter in function.required:
        if parameter not in task.fields and parameter not in GIVEN:
            raise RewardError(
                f"{where}reward {function.name!r} needs {parameter!r}, which task {task.id!r} does "
                f"not have ({task.title[:60]!r}); its fields are {fields}, and {', '.join(GIVEN)} "
                "are always available" + hint(parameter, [*task.fields, *GIVEN])
            )
    if function.one_of and not any(name in task.fields for name in function.one_of):
        raise RewardError(
            f"{where}reward {function.name!r} needs {' or '.join(map(repr, function.one_of))}, but "
            f"task {task.id!r} has neither; its fields are {fields}"
        )
    for parameter in function.required + function.optional:
        if parameter in task.fields and parameter in GIVEN:
            raise RewardError(
                f"reward {function.name!r}: {parameter!r} is both a field of task {task.id!r} and "
                f"an argument of every reward; rename the field, or accept `task` and read "
                f"`task.fields[{parameter!r}]`"
            )


def split_answer(attempt: Attempt) -> Attempt:
    """Move the thought that an attempt's `answer` begins with to its `thought`.

    It is the thought of the call whose reply the answer is, by the marks of its model's template;
    else what `<think>` marks. Beside an answer without one stands the thought of the last call.
    """
    if attempt.answer is None or attempt.thought:
        return attempt
    text = attempt.answer.strip()
    for call in reversed(attempt.calls):
        thought = call.thought.strip()
        begins = thought or (call.reply.content or "").strip()
        if begins and text.startswith(begins):
            answer = text[len(thought) :].lstrip() if thought else attempt.answer
            break
    else:
        thought, answer = split_thought(attempt.answer)
    if not thought and attempt.calls:
        last = attempt.calls[-1]
        thought = last.thought or thought_of(last.reply.extra)[0]
    return replace(attempt, answer=answer, thought=thought.strip()) if thought else attempt


async def compute_reward(
    function: RewardFunction,
    task: Task,
    attempt: Attempt,
    context: Mapping[str, Any] | None = None,
    *,
    timeout: float | None = REWARD_SECONDS,
) -> Reward:
    """What `attempt` earned. What the reward sees as `context`: the environments of the rollout by
    name, where they are still open, and what is given here.

    Raises `RewardError`, naming the task, when the function fails or returns no finite number:
    `AnswerError` where what the model wrote is to blame, `GraderError` where the grader could not
    run, of which `RewardTimeoutError` is one that took more than `timeout` seconds.
    """
    _check_task(function, task)
    attempt = split_answer(attempt)
    values = {
        "prediction": attempt.answer or "",
        "trajectory": attempt,
        "context": {**current_environments(), **(context or {})},
        "task": task,
    }
    known = {**task.fields, **values}
    named = function.required + function.optional
    arguments = {key: known[key] for key in named if key in known}
    if function.takes_any:
        arguments = {**known, **arguments}

    place, packed = None, None  # of a worker process; None where it is graded in this one
    here = function.inline or function.bounded or function.isolation == "none"
    if not here and not inspect.iscoroutinefunction(function.fn):
        place = RewardLocation.of(function.fn)
    if place is not None and place not in _UNLOADABLE:
        with suppress(Exception):  # what cannot be sent, as an environment, is graded here
            packed = pickle.dumps(arguments)
    # In this process: on the event loop, or in a thread, which is left behind when it is late.
    limit = None if function.bounded or function.inline else timeout
    try:
        if place is not None and packed is not None:
            job = RewardJob(place, packed, function.name, task.id, timeout)
            try:
                return await call_in_thread(lambda: POOL.grade(job))
            except ImportError as error:
                _UNLOADABLE.add(place)
                logger.warning(
                    "the reward %r cannot be loaded in a separate process (%s), so it runs in a "
                    "thread, which cannot be stopped",
                    function.name,
                    error,
                )
        value, error = await call_safely(
            function.fn, arguments, what="reward", inline=function.inline, seconds=limit
        )
    except TimeoutError:
        raise RewardTimeoutError(
            f"reward {function.name!r} on task {task.id!r} timed out after "
            f"{timeout or START_SECONDS:g} seconds; raise agent.reward_timeout"
        ) from None
    if error is not None:
        raise failure_of(error, function.name, task.id) from error
    return to_reward(value, function.name, task.id)
