"""The `@reward` decorator for functions that score an attempt, and the checks of their results.

Parameters are filled by name: from the task's fields, and `prediction` (the final text),
`trajectory` (the `Attempt`), `context` (a dict of the rollout), `task`. `check` rejects parameters
that cannot be filled before a run starts; `compute_reward` rejects results that are not finite
numbers (`values.py`) and names the task. `failures.py` classifies exceptions as faults of the
answer or of the grader. `registry.py` has the built-in rewards.
"""

from __future__ import annotations

import inspect
import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

from tutelage.environments.lifecycle import current_environments
from tutelage.errors import RewardError, RewardTimeoutError
from tutelage.replies import read_thought, split_thought
from tutelage.rewards.answers import is_empty
from tutelage.rewards.failures import convert_error
from tutelage.rewards.values import to_reward
from tutelage.rewards.worker import POOL, START_SECONDS, RewardJob, RewardLocation
from tutelage.tasks.overlap import format_list
from tutelage.tools.execute import call_in_thread, call_safely
from tutelage.tools.loading import hint
from tutelage.types import EXPECTED_FIELDS, Attempt, Reward, Task

REWARD_SECONDS = 60.0
"""Default timeout of a reward in seconds; `agent.reward_timeout` overrides it."""
_UNLOADABLE: set[RewardLocation] = set()
"""Rewards that a worker process failed to load."""

logger = logging.getLogger(__name__)

RESERVED = ("prediction", "trajectory", "context", "task")
"""Parameters that are not filled from the task's fields."""


@dataclass(frozen=True, slots=True, eq=False)
class RewardFunction:
    """Wrapper of a function that scores an attempt. It is called like the function.

    `inline` runs a synchronous function on the event loop instead of in a thread; use it only for
    functions whose time is bounded and tiny.
    """

    name: str
    fn: Callable[..., Any] = field(repr=False)
    required: tuple[str, ...]
    """Parameters without a default."""
    optional: tuple[str, ...] = ()
    takes_any: bool = False
    """True if the function has `**kwargs` for the fields without a parameter of their own."""
    inline: bool = False
    one_of: tuple[str, ...] = ()
    """Optional parameters, at least one of which must be a field of the task."""
    bounded: bool = False
    """True if the function bounds its own time, so that it runs without a timeout."""
    isolation: Literal["process", "none"] = "process"
    """Where a synchronous function runs: in a worker process if one can import it, or here."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped function without checking its result. For built-in rewards the reasoning
        is removed from the prediction."""
        if self.is_builtin:
            kwargs = inspect.signature(self.fn).bind(*args, **kwargs).arguments
            args, kwargs["prediction"] = (), split_thought(kwargs["prediction"])[1]
        return self.fn(*args, **kwargs)

    @property
    def is_builtin(self) -> bool:
        """Return True for built-in rewards, which compare with a field of the task."""
        return str(getattr(self.fn, "__module__", "")).startswith("tutelage.rewards.")

    @property
    def uses_attempt(self) -> bool:
        """Return True if the function takes the prediction, the trajectory or the context."""
        return self.takes_any or bool({*self.required, *self.optional} & {*RESERVED} - {"task"})

    @property
    def task_fields(self) -> frozenset[str] | None:
        """Return the names of the task fields used by the function, or None for any field."""
        names = {*self.required, *self.optional}
        return None if self.takes_any or "task" in names else frozenset(names - {*RESERVED})


@overload
def reward(name: Callable[..., Any]) -> RewardFunction: ...
@overload
def reward(
    name: str | None = None, **settings: Any
) -> Callable[[Callable[..., Any]], RewardFunction]: ...
def reward(
    name: str | Callable[..., Any] | None = None, **settings: Any
) -> RewardFunction | Callable[[Callable[..., Any]], RewardFunction]:
    """Decorator that creates a `RewardFunction`: `@reward`, `@reward()`, `@reward("name")`.

    A sync function runs in a worker process if another process can import it (it is defined at the
    top level of a file or module other than the main program), and in a thread otherwise;
    `isolation="none"` keeps it in this process. `bounded` means that it bounds its own time. The
    function returns a bool, int or float, or a dict with `reward` and other named numbers. Raises
    `RewardError` for a signature whose parameters cannot be filled by name.
    """

    def decorate(fn: Callable[..., Any]) -> RewardFunction:
        reward_name = name if isinstance(name, str) else getattr(fn, "__name__", "reward")
        required: list[str] = []
        optional: list[str] = []
        takes_any = False
        for parameter in inspect.signature(fn).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                takes_any = True
            elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise RewardError(
                    f"reward {reward_name!r}: {str(parameter)!r} cannot be passed by name; "
                    "use ordinary parameters, named like the task's fields"
                )
            else:
                has_default = parameter.default is not parameter.empty
                (optional if has_default else required).append(parameter.name)
        names = (tuple(required), tuple(optional))
        return RewardFunction(reward_name, fn, *names, takes_any, **settings)

    return decorate(name) if callable(name) else decorate


def check(function: RewardFunction, dataset: Sequence[Task]) -> None:
    """Raise `RewardError` if a task does not provide all parameters of the reward.

    Also raised if a parameter is both a field of the task and one of `RESERVED`, and if a built-in
    reward compares with a field that is null or empty. For a user's own reward, which may handle
    empty fields, a warning is logged instead.
    """
    problems: dict[str, None] = {}
    for task in dataset:
        _check_task(function, task)
        one_of, checked = function.one_of, [*function.required]
        if function.task_fields is None and not function.is_builtin:
            one_of = EXPECTED_FIELDS
        if all(is_empty(task.fields.get(name)) for name in one_of):
            checked += one_of
        where = task.place or f"task {task.id!r}"
        for name in checked:
            if name in task.fields and is_empty(task.fields[name]):
                problems[f"{where}: field {name!r} is {task.fields[name]!r:.60}"] = None
        if problems and function.is_builtin:
            raise RewardError(
                f"{next(iter(problems))}, but the reward {function.name!r} requires it; add the "
                "expected answer, or remove the row"
            )
    if problems:
        logger.warning(
            "the reward %r may lack an expected answer: %s", function.name, format_list([*problems])
        )


def _check_task(function: RewardFunction, task: Task) -> None:
    fields = ", ".join(map(repr, task.fields))
    where = task.place and f"{task.place}: "
    for parameter in function.required:
        if parameter not in task.fields and parameter not in RESERVED:
            raise RewardError(
                f"{where}reward {function.name!r} needs {parameter!r}, which task {task.id!r} does "
                f"not have ({task.title[:60]!r}); its fields are {fields}, and "
                f"{', '.join(RESERVED)} are always available"
                + hint(parameter, [*task.fields, *RESERVED])
            )
    if function.one_of and not any(name in task.fields for name in function.one_of):
        raise RewardError(
            f"{where}reward {function.name!r} needs {' or '.join(map(repr, function.one_of))}, but "
            f"task {task.id!r} has neither; its fields are {fields}"
        )
    for parameter in function.required + function.optional:
        if parameter in task.fields and parameter in RESERVED:
            raise RewardError(
                f"reward {function.name!r}: {parameter!r} is both a field of task {task.id!r} and "
                f"an argument of every reward; rename the field, or accept `task` and read "
                f"`task.fields[{parameter!r}]`"
            )


def split_answer(attempt: Attempt) -> Attempt:
    """Move the reasoning at the start of an attempt's `answer` to its `thought`.

    It is the thought of the call whose reply is the answer, as marked by the template of its
    model; else the text marked by `<think>`; else the thought of the last call.
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
        thought = last.thought or read_thought(last.reply.extra)[0]
    return replace(attempt, answer=answer, thought=thought.strip()) if thought else attempt


async def compute_reward(
    function: RewardFunction,
    task: Task,
    attempt: Attempt,
    context: Mapping[str, Any] | None = None,
    *,
    timeout: float | None = REWARD_SECONDS,
) -> Reward:
    """Compute the reward of `attempt`. The parameter `context` of the reward function receives the
    rollout's open environments by name and the entries of `context`.

    Raises `RewardError`, which names the task, if the function fails or returns no finite number:
    `AnswerError` if the text of the model caused it, `GraderError` if the grader could not run, and
    its subclass `RewardTimeoutError` if it took more than `timeout` seconds.
    """
    _check_task(function, task)
    attempt = split_answer(attempt)
    values = {
        "prediction": attempt.answer or "",
        "trajectory": attempt,
        "context": {**current_environments(), **(context or {})},
        "task": task,
    }
    available = {**task.fields, **values}
    names = function.required + function.optional
    arguments = {key: available[key] for key in names if key in available}
    if function.takes_any:
        arguments = {**available, **arguments}

    location, payload = None, None  # for a worker process; None if graded in this process
    local = function.inline or function.bounded or function.isolation == "none"
    if not local and not inspect.iscoroutinefunction(function.fn):
        location = RewardLocation.locate(function.fn)
    if location is not None and location not in _UNLOADABLE:
        with suppress(Exception):  # unpicklable arguments, such as environments, stay here
            payload = pickle.dumps(arguments)
    # In this process: on the event loop, or in a thread, which is abandoned on a timeout.
    limit = None if function.bounded or function.inline else timeout
    try:
        if location is not None and payload is not None:
            job = RewardJob(location, payload, function.name, task.id, timeout)
            try:
                return await call_in_thread(lambda: POOL.grade(job))
            except ImportError as error:
                _UNLOADABLE.add(location)
                logger.warning(
                    "the reward %r cannot be loaded in a separate process (%s), so it runs in a "
                    "thread, which cannot be stopped",
                    function.name,
                    error,
                )
        value, error = await call_safely(
            function.fn, arguments, label="reward", inline=function.inline, timeout=limit
        )
    except TimeoutError:
        raise RewardTimeoutError(
            f"reward {function.name!r} on task {task.id!r} timed out after "
            f"{timeout or START_SECONDS:g} seconds; increase agent.reward_timeout"
        ) from None
    if error is not None:
        raise convert_error(error, function.name, task.id) from error
    return to_reward(value, function.name, task.id)
