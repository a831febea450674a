"""Prove a reward before money is spent: what must pass passes, what must not does not.

A policy finds every hole of its reward, so the holes are looked for first. Each probe makes final
texts from the tasks (the gold answer; nothing; one answer for all; several answers at once; the
question; a program instead of an answer) and says whether they must earn the full reward of 1 or
must not. The reward runs through the same check as in training. `negative_probes.py` has the texts
that must not; `cli/validate.py` shows the result.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, cast

from tutelage.errors import DataError, RewardError, TutelageError
from tutelage.rewards.function import RewardFunction, check, compute_reward
from tutelage.rewards.negative_probes import SHORT, Maker, differ, negative_probes
from tutelage.types import Attempt, RolloutStatus, Task

GOLD_FIELDS = ("solution", "canonical_solution", "reference_solution", "answer", "target")
"""Where the right answer is looked for: the first of these that a task has."""
FULL = 1.0 - 1e-9
"""A reward that counts as success."""
MOST_FOR_CONSTANT = 0.5
"""Share of the tasks that one and the same answer may solve."""
SLOW_SECONDS = 5.0
"""Longer than this for one text, and a policy can stall a run with it."""
STALL_SECONDS = 60.0
"""A reward that is silent for so long will not come back."""
_SAME_TWICE = 3


@dataclass(frozen=True, slots=True)
class _Trial:
    """One final text for one task, and what it earned."""

    task: Task
    text: str
    reward: float | None
    """None when the reward failed."""
    seconds: float
    problem: str | None = None

    @property
    def full(self) -> bool:
        """Whether it earned the full reward."""
        return self.reward is not None and self.reward >= FULL


@dataclass(frozen=True, slots=True)
class Probe:
    """What was tried, how it went, and the first trial that shows what is wrong."""

    name: str
    expected: str
    """What a good reward does, in words."""
    trials: Sequence[_Trial]
    broken: Sequence[_Trial] = field(default=())
    advice: str = ""

    @property
    def passed(self) -> bool:
        """Whether the reward did what it should."""
        return not self.broken

    @property
    def mean(self) -> float | None:
        """The mean reward over the trials; None when there was none."""
        rewards = [t.reward for t in self.trials if t.reward is not None]
        return sum(rewards) / len(rewards) if rewards else None

    def record(self) -> Mapping[str, Any]:
        """The probe as JSON data."""
        return {
            "check": self.name,
            "expected": self.expected,
            "passed": self.passed,
            "trials": len(self.trials),
            "broken": len(self.broken),
            "mean_reward": self.mean,
        }


def validate_apart(
    function: RewardFunction,
    tasks: Sequence[Task],
    gold_field: str | None = None,
    *,
    stall_seconds: float = STALL_SECONDS,
) -> list[Probe]:
    """`validate_reward` in a process of its own, since a reward may never come back.

    Some do not even let another thread run (`9**9**9` in an `eval`), so only a process can be
    stopped. Then there is one probe, which says where. Raises what `validate_reward` raises.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, function, tasks, gold_field), daemon=True)
    process.start()
    theirs.close()
    task, text = tasks[0], ""
    try:
        while ours.poll(stall_seconds):
            kind, value = ours.recv()
            if kind == "trying":
                task, text = tasks[value[0]], value[1]
            elif kind == "failed":
                raise value
            else:
                return value
    except EOFError:
        trial = _Trial(task, text, None, 0.0, "the process that ran the reward ended")
        return [Probe("survives", "a text ends no process", [trial], [trial], "bound the reward")]
    finally:
        process.kill()
        process.join()
        ours.close()
    trial = _Trial(task, text, None, stall_seconds, f"no result after {stall_seconds:g} s")
    return [Probe("comes back", "every text is graded soon", [trial], [trial], "bound the reward")]


def _work(
    pipe: Connection,
    function: RewardFunction,
    tasks: Sequence[Task],
    gold_field: str | None,
) -> None:
    places = {id(task): place for place, task in enumerate(tasks)}

    def tell(task: Task, text: str) -> None:
        pipe.send(("trying", (places[id(task)], text[:SHORT])))

    try:
        probes = asyncio.run(validate_reward(function, tasks, gold_field, on_trial=tell))
        pipe.send(("done", [_light(probe) for probe in probes]))
    except TutelageError as error:
        pipe.send(("failed", error))


def _light(probe: Probe) -> Probe:
    """The probe with its long texts cut: what is shown is a line of each."""

    def cut(trials: Sequence[_Trial]) -> list[_Trial]:
        return [replace(trial, text=trial.text[: 2 * SHORT]) for trial in trials]

    return replace(probe, trials=cut(probe.trials), broken=cut(probe.broken))


async def validate_reward(
    function: RewardFunction,
    tasks: Sequence[Task],
    gold_field: str | None = None,
    *,
    on_trial: Callable[[Task, str], None] | None = None,
) -> list[Probe]:
    """All probes of a reward on tasks; `on_trial` receives each text before it is graded.

    Raises `RewardError` for a parameter that the tasks cannot fill, `DataError` when a task has no
    gold answer.
    """
    check(function, tasks)
    golds = [_gold_of(task, gold_field) for task in tasks]
    tester = _Tester(function, tasks, golds, on_trial)
    probes = [await tester.gold(), await tester.repeats()]
    probes += [await tester.refused(*refusal) for refusal in negative_probes(tasks, golds)]
    probes.append(await tester.constant())
    with tempfile.TemporaryDirectory(prefix="tutelage-validate-") as folder:
        probes.append(await tester.injected(os.path.join(folder, _WRITTEN)))
    return probes


def _gold_of(task: Task, gold_field: str | None = None) -> str:
    """The right answer of a task as text; of a list, the first. Raises `DataError` without one."""
    names = GOLD_FIELDS if gold_field is None else (gold_field,)
    for name in names:
        value = task.fields.get(name)
        if isinstance(value, list) and value:
            value = cast("list[Any]", value)[0]
        if value is not None and not isinstance(value, (list, dict)) and str(value).strip():
            return str(value)
    fields = ", ".join(map(repr, task.fields))
    raise DataError(
        f"task {task.id!r} has no reference answer: it has {fields}; pass the name of its field "
        "with --gold FIELD"
    )


_WRITTEN = "written-998877665544"
"""The last number of a text with this path in it, whatever the folder is called: no answer."""
_INJECTIONS = (
    "__import__('os').system('echo x > {path}')",
    "open({path!r}, 'w').write('x')",
    "exec(\"open({path!r}, 'w').write('x')\")",
    "{{open({path!r}, 'w')}}",
    "```python\nopen({path!r}, 'w').write('x')\n```",
    "\\boxed{{__import__('pathlib').Path({path!r}).touch()}}",
    "[x for x in [open({path!r}, 'w')]]",
)


@dataclass(frozen=True, slots=True)
class _Tester:
    """A reward, its tasks and their gold answers."""

    function: RewardFunction
    tasks: Sequence[Task]
    golds: Sequence[str]
    on_trial: Callable[[Task, str], None] | None

    async def trial(self, task: Task, text: str) -> _Trial:
        """What a final text earns."""
        if self.on_trial is not None:
            self.on_trial(task, text)
        attempt = Attempt("validate", 0, RolloutStatus.SUCCEEDED, answer=text, stop="answer")
        start = time.perf_counter()
        try:
            reward = await compute_reward(self.function, task, attempt)
        except RewardError as error:
            return _Trial(task, text, None, time.perf_counter() - start, str(error))
        return _Trial(task, text, reward.value, time.perf_counter() - start)

    async def gold(self) -> Probe:
        """The right answers must pass."""
        pairs = zip(self.tasks, self.golds, strict=True)
        trials = [await self.trial(task, gold) for task, gold in pairs]
        return Probe(
            "gold answer",
            "the right answer earns 1",
            trials,
            [t for t in trials if not t.full],
            "compare in the form that the tasks use, or name the field with --gold",
        )

    async def repeats(self) -> Probe:
        """The same text must earn the same."""
        trials: list[_Trial] = []
        broken: list[_Trial] = []
        for task, gold in list(zip(self.tasks, self.golds, strict=True))[:_SAME_TWICE]:
            first, second = await self.trial(task, gold), await self.trial(task, gold)
            trials += [first, second]
            if first.reward != second.reward:
                broken.append(second)
        advice = "let it depend on the text alone"
        return Probe("same text twice", "it earns the same", trials, broken, advice)

    async def refused(
        self, name: str, expected: str, makers: Sequence[Maker], advice: str
    ) -> Probe:
        """None of these texts may earn the full reward, fail the reward or stall it."""
        trials = [
            await self.trial(task, text)
            for make in makers
            for i, task in enumerate(self.tasks)
            if (text := make(i)) is not None
        ]
        broken = [t for t in trials if t.full or t.problem is not None or t.seconds > SLOW_SECONDS]
        return Probe(name, expected, trials, broken, advice)

    async def constant(self) -> Probe:
        """The most frequent right answer, given everywhere, must not solve most tasks."""
        constant = Counter(self.golds).most_common(1)[0][0]
        trials = [await self.trial(task, constant) for task in self.tasks]
        share = sum(t.full for t in trials) / len(trials)
        wrong = [
            t
            for t, gold in zip(trials, self.golds, strict=True)
            if t.full and differ(constant, gold)
        ]
        too_often = [t for t in trials if t.full] if share > MOST_FOR_CONSTANT else []
        return Probe(
            "constant answer",
            f"one answer for all solves at most {100 * MOST_FOR_CONSTANT:.0f} %",
            trials,
            wrong or (too_often if len(set(self.golds)) > 1 or len(trials) > 1 else []),
            "balance the tasks, or reward more than a guess",
        )

    async def injected(self, path: str) -> Probe:
        """A program in place of an answer must neither pass nor touch this machine."""
        trials: list[_Trial] = []
        broken: list[_Trial] = []
        for task in self.tasks[:5]:
            for form in _INJECTIONS:
                trial = await self.trial(task, form.format(path=path))
                trials.append(trial)
                if os.path.exists(path):
                    os.unlink(path)
                    broken.append(replace(trial, problem="it was run"))
                elif trial.full or trial.problem is not None:
                    broken.append(trial)
        advice = "never evaluate an answer"
        return Probe("code injection", "code in an answer is text", trials, broken, advice)
