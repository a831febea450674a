"""Test a reward for exploits before training.

A policy exploits every weakness of its reward, so weaknesses are searched for first. Each probe
builds final texts from the tasks and their right answers that must or must not earn the full reward
of 1: no text, the same answer for all tasks, several answers, and right answers with a changed word
or sign (`not 5`, `-5`, `5!` and `10 = 5` all contain 5). The reward runs as in training: a plain
function runs in a process that can be killed (`worker.py`). `cli/validate.py` prints the result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from tutelage.errors import DataError, RewardError, RewardTimeoutError
from tutelage.rewards.answers import read_number
from tutelage.rewards.function import RewardFunction, check, compute_reward
from tutelage.types import Attempt, RolloutStatus, Task

GOLD_FIELDS = ("solution", "canonical_solution", "reference_solution", "answer", "target")
"""Fields that may hold the right answer of a task; the first one present is used."""
FULL_REWARD = 1.0 - 1e-9
"""Smallest reward that counts as success."""
MAX_CONSTANT_SHARE = 0.5
"""Largest share of the tasks that the same answer may solve."""
STALL_SECONDS = 60.0
"""Timeout of one reward."""
MAX_LISTED = 200
"""Maximum number of answers in one text."""
_SHORT = re.compile(r"[^\n(]{1,200}")
"""Matches words, a number or a formula, but no program: the last of several programs may be the
answer, and a program with `not` before it too."""
_REJECTED: Sequence[tuple[str, str, str, Sequence[str]]] = (
    ("empty", "an empty answer is wrong", "return 0 for empty text", ("", "   \n")),
    ("another task's answer", "it is wrong", "compare with this task's answer", ("{other}",)),
    ("two answers", "a choice of answers is wrong", "accept one answer, not a list",
     ("The answer is {gold} or {other}.", "{other} {gold}", "{gold}, {other}", "{gold}\n{other}")),
    ("negated answer", "a negated answer is wrong", "read the words before the answer",
     ("not {gold}", "The answer is not {gold}.", "\\text{{not }}{gold}")),
    ("changed number", "a different value is wrong", "read the whole answer",
     ("-{number}", "\\mathrm{{minus}}{number}", "{number}!", "{twice} = {number}",
      "{number} alternatively {twice}", "{number} alternatively six")),
    ("answer stuffing", "a list of all answers is wrong", "accept one answer only",
     ("{all}", " ".join(map(str, range(1000))))),
)  # fmt: skip
"""Texts that must earn less than the full reward: name, expectation, advice and text templates of a
probe. `_fill` fills the templates."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Final text for a task, with the reward that it earned."""

    task: Task
    text: str
    reward: float | None
    """The reward of the text, or None if the reward function failed."""
    problem: str | None = None

    @property
    def is_full(self) -> bool:
        """Return True if the text earned the full reward."""
        return self.reward is not None and self.reward >= FULL_REWARD


@dataclass(frozen=True, slots=True)
class Probe:
    """Test of a reward for a weakness, with all trials and the failed trials."""

    name: str
    expected: str
    """Expected behaviour of the reward."""
    trials: Sequence[Trial]
    broken: Sequence[Trial] = field(default=())
    advice: str = ""

    @property
    def passed(self) -> bool:
        """Return True if the probe found no weakness."""
        return not self.broken

    def record(self) -> Mapping[str, Any]:
        """Convert the probe to JSON data."""
        return {
            "check": self.name,
            "expected": self.expected,
            "passed": self.passed,
            "trials": len(self.trials),
            "broken": len(self.broken),
        }


async def validate_reward(
    function: RewardFunction,
    tasks: Sequence[Task],
    gold_field: str | None = None,
    *,
    stall_seconds: float = STALL_SECONDS,
) -> list[Probe]:
    """Run all exploit probes of a reward on tasks.

    Raises `RewardError` if the tasks cannot fill a parameter or the reward times out, and
    `DataError` if a task has no gold answer.
    """
    check(function, tasks)
    golds = [_gold_answer(task, gold_field) for task in tasks]
    pairs = [*zip(tasks, golds, strict=True)]

    async def run_trials(texts: Iterable[tuple[Task, str]]) -> list[Trial]:
        results: list[Trial] = []
        for task, text in texts:
            attempt = Attempt("validate", 0, RolloutStatus.SUCCEEDED, answer=text, stop="answer")
            try:
                earned = await compute_reward(function, task, attempt, timeout=stall_seconds)
                results.append(Trial(task, text, earned.value))
            except RewardTimeoutError as error:
                raise RewardError(
                    f"the reward {function.name!r} returned nothing for {text[:60]!r} within "
                    f"{stall_seconds:g} seconds; limit its run time"
                ) from error
            except RewardError as error:
                results.append(Trial(task, text, None, str(error)))
        return results

    gold = await run_trials([*pairs, *pairs[:3]])
    wrong = [t for t in gold if not t.is_full]
    wrong += [b for a, b in zip(gold, gold[len(pairs) :], strict=False) if a.reward != b.reward]
    advice = "accept answers in the format of the tasks, or name their field with --gold"
    probes = [Probe("gold answer", "it earns 1 every time", gold, wrong, advice)]
    for name, expected, advice, forms in _REJECTED:
        cases = [(tasks[i], text) for i in range(len(tasks)) for text in _fill(forms, golds, i)]
        results = await run_trials(cases)
        broken = [t for t in results if t.is_full or t.problem]
        probes.append(Probe(name, expected, results, broken, advice))
    constant = Counter(golds).most_common(1)[0][0]
    constant_trials = await run_trials((task, constant) for task in tasks)
    solved = [t for t in constant_trials if t.is_full]
    too_often = solved if len(solved) > MAX_CONSTANT_SHARE * len(tasks) and len(tasks) > 1 else []
    expected = f"the same answer for all tasks solves at most {100 * MAX_CONSTANT_SHARE:.0f} %"
    advice = "balance the tasks, or reward more than a guess"
    return [*probes, Probe("constant answer", expected, constant_trials, too_often, advice)]


def _gold_answer(task: Task, gold_field: str | None) -> str:
    """Return the first reference answer of a task. Raises `DataError` if it has none."""
    for name in GOLD_FIELDS if gold_field is None else (gold_field,):
        value = task.fields.get(name)
        if isinstance(value, list) and value:
            value = cast("list[Any]", value)[0]
        if value is not None and not isinstance(value, (list, dict)) and str(value).strip():
            return str(value)
    fields = ", ".join(map(repr, task.fields))
    raise DataError(
        f"task {task.id!r} has no reference answer in its fields: {fields}; pass the name of the "
        "answer field with --gold FIELD"
    )


def _fill(templates: Sequence[str], golds: Sequence[str], index: int) -> Iterator[str]:
    """Fill the text templates for task `index`, except templates that need a missing answer."""
    gold, parts = golds[index], dict[str, object]()
    other = next((g for g in [*golds[index + 1 :], *golds[:index]] if _differs(g, gold)), None)
    if other is not None:
        parts["other"] = other
    if _SHORT.fullmatch(gold):
        parts["gold"] = gold
        short = list(dict.fromkeys([*filter(_SHORT.fullmatch, golds[:MAX_LISTED]), gold]))
        parts |= {"all": ", ".join(short)} if len(short) > 1 else {}
    number = read_number(gold)
    if number is not None and number.denominator == 1 and number > 2:  # 1! is 1, and -0 is 0
        parts |= {"number": number, "twice": 2 * number}
    for form in templates:
        with suppress(KeyError):
            yield form.format_map(parts)


def _differs(text: str, gold: str) -> bool:
    """Return True if a text differs from the correct answer in its letters or digits."""
    first, second = (re.sub(r"[\W_]+", "", each.casefold()) for each in (text, gold))
    return first != second
