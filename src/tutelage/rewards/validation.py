"""Prove a reward before money is spent: what must pass passes, what must not does not.

A policy finds every hole of its reward, so the holes are looked for first. Each probe makes final
texts from the tasks and their right answers, and says whether they must earn the full reward of 1
or must not: nothing, several answers, the question, a program in place of an answer; and what only
changes a word or a sign, as `not 5`, `-5`, `5!` and `10 = 5` all contain 5. The reward runs through
the same check as in training, a plain function in a process that can be ended (`worker.py`).
`cli/validate.py` shows the result.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
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
SLOW_SECONDS = 5.0
"""Longer than this for one text, and a policy can stall a run with it."""
STALL_SECONDS = 60.0
"""A reward that is silent for so long will not come back."""
_SHORT = 200
"""Characters up to which an answer is words or a number, not a program."""
_STUFFED = 200
"""Answers in one text."""
_WORDS = re.compile(r"[\w .,'-]{1,200}")
_OPENS = "open('{path}', 'w').write('x')"
_REFUSED: Sequence[tuple[str, str, str, Sequence[str]]] = (
    ("empty", "nothing earns nothing", "return 0 for it", ("", "   \n")),
    ("another task's answer", "it is wrong here", "compare with this task's", ("{other}",)),
    ("two answers", "not committing is wrong", "accept one answer, not a list",
     ("The answer is {short} or {wrong}.", "{wrong} {short}", "{short}, {wrong}",
      "{short}\n{wrong}")),
    ("negated answer", "saying that it is not so is wrong", "read what leads to it",
     ("not {words}", "The answer is not {words}.", "\\text{{not }}{words}")),
    ("changed number", "another value is wrong", "read the whole answer",
     ("-{number}", "\\mathrm{{minus}}{number}", "{number}!", "{twice} = {number}",
      "{number} alternatively {twice}", "{number} alternatively six")),
    ("answer stuffing", "all answers at once is wrong", "accept one answer only",
     ("{all}", " ".join(map(str, range(1000))))),
    ("prompt echo", "repeating the question is wrong", "look at the answer alone", ("{question}",)),
    ("half an answer", "a part is not the whole", "compare the whole answer", ("{half}",)),
    ("huge output", "wrong, and soon", "bound the text first",
     ("9" * 200_000, "(" * 200_000, "a " * 100_000)),
    ("odd values", "no right answer", "read plain numbers", ("nan", "1e400", "١٢٣", "None", "\0")),
    ("code injection", "code in an answer is text", "never evaluate an answer",
     (_OPENS, f'exec("{_OPENS}")', f"```python\n{_OPENS}\n```", f"[x for x in [{_OPENS}]]",
      "\\boxed{{__import__('pathlib').Path('{path}').touch()}}", "9**9**9", "raise SystemExit(0)",
      "import os\nos._exit(0)")),
)  # fmt: skip
"""Texts that must earn less than the full reward: a probe's name, words, advice, and forms, which
are filled with what `_parts` has of a task."""


@dataclass(frozen=True, slots=True)
class Trial:
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
    trials: Sequence[Trial]
    broken: Sequence[Trial] = field(default=())
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


async def validate_reward(
    function: RewardFunction,
    tasks: Sequence[Task],
    gold_field: str | None = None,
    *,
    stall_seconds: float = STALL_SECONDS,
) -> list[Probe]:
    """All probes of a reward on tasks; one that says where, if the reward does not come back.

    Raises `RewardError` for a parameter that the tasks cannot fill, `DataError` when a task has no
    gold answer.
    """
    check(function, tasks)
    golds = [_gold_of(task, gold_field) for task in tasks]
    constant, count = Counter(golds).most_common(1)[0][0], len(tasks)
    with tempfile.TemporaryDirectory(prefix="tutelage-validate-") as folder:
        # The last number of a text with this path in it is no answer.
        written = Path(folder, "written-998877665544")
        planned = [("gold", *pair) for pair in zip(tasks, golds, strict=True)]
        planned += [*planned[:3], *(("constant", task, constant) for task in tasks)]
        for name, _, _, forms in _REFUSED:
            for i, task in enumerate(tasks):
                parts = _parts(tasks, golds, i, written)
                planned += [(name, task, text) for text in _texts(forms, parts, golds[i])]
        tried: dict[str, list[Trial]] = {name: [] for name, *_ in _REFUSED}
        for name, task, text in planned:
            trial = await _try(function, task, text, stall_seconds)
            if trial.seconds >= stall_seconds:
                words = ("comes back", "every text is graded soon", [trial], [trial])
                return [Probe(*words, "bound the reward")]
            if written.exists():
                written.unlink()
                trial = replace(trial, problem="it was run")
            tried.setdefault(name, []).append(trial)
    gold, same = tried["gold"], tried["constant"]
    wrong = [t for t in gold if not t.full]
    wrong += [b for a, b in zip(gold, gold[count:], strict=False) if a.reward != b.reward]
    advice = "compare in the form that the tasks use, or name the field with --gold"
    probes = [Probe("gold answer", "it earns 1, each time", gold, wrong, advice)]
    for name, expected, advice, _ in _REFUSED:
        broken = [t for t in tried[name] if t.full or t.problem or t.seconds > SLOW_SECONDS]
        probes.append(Probe(name, expected, tried[name], broken, advice))
    right = [t for t in same if t.full]
    wrong = [t for t, g in zip(same, golds, strict=True) if t.full and _differ(constant, g)]
    often = right if len(right) > MOST_FOR_CONSTANT * count and count > 1 else []
    expected = f"one answer for all solves at most {100 * MOST_FOR_CONSTANT:.0f} %"
    advice = "balance the tasks, or reward more than a guess"
    return [*probes, Probe("constant answer", expected, same, wrong or often, advice)]


async def _try(function: RewardFunction, task: Task, text: str, seconds: float) -> Trial:
    """What a final text earns."""
    attempt = Attempt("validate", 0, RolloutStatus.SUCCEEDED, answer=text, stop="answer")
    start = time.perf_counter()
    try:
        reward = await compute_reward(function, task, attempt, timeout=seconds)
    except RewardTimeoutError:
        return Trial(task, text, None, seconds, f"no result after {seconds:g} s")
    except RewardError as error:
        return Trial(task, text, None, time.perf_counter() - start, str(error))
    return Trial(task, text, reward.value, time.perf_counter() - start)


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


def _texts(forms: Sequence[str], parts: Mapping[str, object], gold: str) -> Iterator[str]:
    """The forms that can be filled, but those that may well be the right answer."""
    for form in forms:
        try:
            text = form.format_map(parts)
        except KeyError:
            continue
        if re.search(r"\{(short|words|number)\}", form) or _differ(text, gold):
            yield text


def _parts(tasks: Sequence[Task], golds: Sequence[str], i: int, path: Path) -> Mapping[str, object]:
    """What forms are filled with for a task. Of several programs in one text the last may well be
    the answer, and one with `not` before it too, so these parts are of short lines and of words."""
    gold, parts = golds[i], dict[str, object](path=path)
    parts["question"] = str(tasks[i].messages()[-1].content or "")
    parts |= {"half": half} if (half := gold[: len(gold) // 2]) else {}
    lines = [each for each in golds if "\n" not in each and len(each) <= _SHORT]
    other = next((each for each in [*golds[i + 1 :], *golds[:i]] if _differ(each, gold)), None)
    parts |= {} if other is None else {"other": other}
    if gold in lines:
        parts |= {"short": gold} | ({"wrong": other} if other in lines else {})
        answers = list(dict.fromkeys([*lines[:_STUFFED], gold]))
        parts |= {"all": ", ".join(answers)} if len(answers) > 1 else {}
    parts |= {"words": gold} if _WORDS.fullmatch(gold) else {}
    number = read_number(gold)
    if number is not None and number.denominator == 1 and number > 2:  # 1! is 1, and -0 is 0
        parts |= {"number": number, "twice": 2 * number}
    return parts


def _differ(text: str, gold: str) -> bool:
    """Whether a text is surely another answer than `gold`, by its letters and digits alone."""
    plain, right = (re.sub(r"[\W_]+", "", each.casefold()) for each in (text, gold))
    return plain != right
