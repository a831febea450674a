"""Prove a reward before money is spent: what must pass passes, what must not does not.

A policy finds every hole of its reward, so the holes are looked for first. Each probe makes final
texts from the tasks and their right answers, and says whether they must earn the full reward of 1
or must not: nothing, one answer for all, several answers, and what only changes a word or a sign,
as `not 5`, `-5`, `5!` and `10 = 5` all contain 5. The reward runs through the same check as in
training, a plain function in a process that can be ended (`worker.py`). `cli/validate.py` shows the
result.
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
"""Where the right answer is looked for: the first of these that a task has."""
FULL = 1.0 - 1e-9
"""A reward that counts as success."""
MOST_FOR_CONSTANT = 0.5
"""Share of the tasks that one and the same answer may solve."""
STALL_SECONDS = 60.0
"""A reward that is silent for so long will not come back."""
_LISTED = 200
"""Answers in one text."""
_SHORT = re.compile(r"[^\n(]{1,200}")
"""Words, a number or a formula. Of several programs the last may be the answer, and one with `not`
before it too."""
_REFUSED: Sequence[tuple[str, str, str, Sequence[str]]] = (
    ("empty", "nothing earns nothing", "return 0 for it", ("", "   \n")),
    ("another task's answer", "it is wrong here", "compare with this task's", ("{other}",)),
    ("two answers", "not committing is wrong", "accept one answer, not a list",
     ("The answer is {gold} or {other}.", "{other} {gold}", "{gold}, {other}", "{gold}\n{other}")),
    ("negated answer", "saying that it is not so is wrong", "read what leads to it",
     ("not {gold}", "The answer is not {gold}.", "\\text{{not }}{gold}")),
    ("changed number", "another value is wrong", "read the whole answer",
     ("-{number}", "\\mathrm{{minus}}{number}", "{number}!", "{twice} = {number}",
      "{number} alternatively {twice}", "{number} alternatively six")),
    ("answer stuffing", "all answers at once is wrong", "accept one answer only",
     ("{all}", " ".join(map(str, range(1000))))),
)  # fmt: skip
"""Texts that must earn less than the full reward: a probe's name, words, advice, and forms, which
are filled with what `_texts` has of a task."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One final text for one task, and what it earned."""

    task: Task
    text: str
    reward: float | None
    """None when the reward failed."""
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
    trials: Sequence[Trial]
    broken: Sequence[Trial] = field(default=())
    advice: str = ""

    @property
    def passed(self) -> bool:
        """Whether the reward did what it should."""
        return not self.broken

    def record(self) -> Mapping[str, Any]:
        """The probe as JSON data."""
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
    """All probes of a reward on tasks.

    Raises `RewardError` for a parameter that the tasks cannot fill and for a reward that does not
    come back, `DataError` when a task has no gold answer.
    """
    check(function, tasks)
    golds = [_gold_of(task, gold_field) for task in tasks]
    pairs = [*zip(tasks, golds, strict=True)]

    async def trials(texts: Iterable[tuple[Task, str]]) -> list[Trial]:
        found: list[Trial] = []
        for task, text in texts:
            attempt = Attempt("validate", 0, RolloutStatus.SUCCEEDED, answer=text, stop="answer")
            try:
                earned = await compute_reward(function, task, attempt, timeout=stall_seconds)
                found.append(Trial(task, text, earned.value))
            except RewardTimeoutError as error:
                raise RewardError(
                    f"the reward {function.name!r} gives no result for {text[:60]!r} within "
                    f"{stall_seconds:g} seconds; bound its time"
                ) from error
            except RewardError as error:
                found.append(Trial(task, text, None, str(error)))
        return found

    gold = await trials([*pairs, *pairs[:3]])
    wrong = [t for t in gold if not t.full]
    wrong += [b for a, b in zip(gold, gold[len(pairs) :], strict=False) if a.reward != b.reward]
    advice = "compare in the form that the tasks use, or name the field with --gold"
    probes = [Probe("gold answer", "it earns 1, each time", gold, wrong, advice)]
    for name, expected, advice, forms in _REFUSED:
        made = [(tasks[i], text) for i in range(len(tasks)) for text in _texts(forms, golds, i)]
        found = await trials(made)
        broken = [t for t in found if t.full or t.problem]
        probes.append(Probe(name, expected, found, broken, advice))
    constant = Counter(golds).most_common(1)[0][0]
    same = await trials((task, constant) for task in tasks)
    right = [t for t in same if t.full]
    often = right if len(right) > MOST_FOR_CONSTANT * len(tasks) and len(tasks) > 1 else []
    expected = f"one answer for all solves at most {100 * MOST_FOR_CONSTANT:.0f} %"
    advice = "balance the tasks, or reward more than a guess"
    return [*probes, Probe("constant answer", expected, same, often, advice)]


def _gold_of(task: Task, gold_field: str | None) -> str:
    """The right answer of a task as text; of a list, the first. Raises `DataError` without one."""
    for name in GOLD_FIELDS if gold_field is None else (gold_field,):
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


def _texts(forms: Sequence[str], golds: Sequence[str], i: int) -> Iterator[str]:
    """The forms that can be filled with a task's answer and those of other tasks."""
    gold, parts = golds[i], dict[str, object]()
    other = next((each for each in [*golds[i + 1 :], *golds[:i]] if _differ(each, gold)), None)
    if other is not None:
        parts["other"] = other
    if _SHORT.fullmatch(gold):
        parts["gold"] = gold
        short = list(dict.fromkeys([*filter(_SHORT.fullmatch, golds[:_LISTED]), gold]))
        parts |= {"all": ", ".join(short)} if len(short) > 1 else {}
    number = read_number(gold)
    if number is not None and number.denominator == 1 and number > 2:  # 1! is 1, and -0 is 0
        parts |= {"number": number, "twice": 2 * number}
    for form in forms:
        with suppress(KeyError):
            yield form.format_map(parts)


def _differ(text: str, gold: str) -> bool:
    """Whether a text is surely another answer than `gold`, by its letters and digits alone."""
    plain, right = (re.sub(r"[\W_]+", "", each.casefold()) for each in (text, gold))
    return plain != right
