"""Texts that must not earn the full reward, made from the tasks and their right answers.

A policy writes all of these sooner or later: nothing, several answers, the question, a program that
leaves; and what only changes a word or a sign: `not 5`, `-5`, `5!` and `10 = 5` all contain 5, and
a reward that only looks for it pays for them. `validation.py` tries them all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tutelage.rewards.answers import read_number
from tutelage.types import Task

Maker: TypeAlias = Callable[[int], str | None]
"""The text to try on the i-th task; None to leave it out."""
_Refusal: TypeAlias = tuple[str, str, Sequence[Maker], str]
"""A probe whose every text must earn less than the full reward: name, words, texts, advice."""

SHORT = 200
"""Characters up to which an answer is words or a number, not a program."""
_LONG = 200_000
_STUFFED = 200
"""Answers in one text."""
_BOTH = (
    "The answer is {right} or {wrong}.",
    "{wrong} {right}",
    "{right}, {wrong}",
    "{right}\n{wrong}",
)
_NEGATED = ("not {right}", "The answer is not {right}.", "\\text{{not }}{right}")
_CHANGED = (
    "-{right}",
    "\\mathrm{{minus}}{right}",
    "{right}!",
    "{twice} = {right}",
    "{right} alternatively {twice}",
    "{right} alternatively six",
)
_WORDS = re.compile(r"[\w .,'-]{1,200}")
_HUGE = ("9" * _LONG, "(" * _LONG, "a " * (_LONG // 2), "[" * _LONG + "]" * _LONG)
_ODD = (
    "9**9**9", "nan", "inf", "-inf", "1e400", "١٢٣", "None", "True", "\x00", "0/0", "{}", "[]",
)  # fmt: skip
_EXITS = (
    "import sys\nsys.exit(0)",
    "import os\nos._exit(0)",
    "class A:\n    def __eq__(self, other): return True\n"
    "    def __getattr__(self, name): return self\n"
    "    def __call__(self, *a, **k): return self\n"
    "import builtins\nbuiltins.__getattr__ = lambda name: A()",
    "raise SystemExit(0)",
    "quit()",
)


def negative_probes(tasks: Sequence[Task], golds: Sequence[str]) -> list[_Refusal]:
    """The probes, for these right answers."""
    texts = _Texts(tasks, golds)
    numbers = texts.fixed(" ".join(map(str, range(1000))))

    def fixed(*made: str) -> list[Maker]:
        return [texts.fixed(text) for text in made]

    return [
        ("empty", "nothing earns nothing", fixed("", "   \n"), "return 0 for it"),
        ("another task's answer", "it is wrong here", [texts.other], "compare with this task's"),
        ("two answers", "not committing is wrong", [*map(texts.both, _BOTH)],
         "accept one answer, not a list"),
        ("negated answer", "saying that it is not so is wrong", [*map(texts.negated, _NEGATED)],
         "read what leads to it"),
        ("changed number", "another value is wrong", [*map(texts.changed, _CHANGED)],
         "read the whole answer"),
        ("answer stuffing", "all answers at once is wrong", [texts.all], "accept one answer only"),
        ("number stuffing", "all numbers at once is wrong", [numbers], "as above"),
        ("prompt echo", "repeating the question is wrong", [texts.question],
         "look at the answer alone"),
        ("half an answer", "a part is not the whole", [texts.half], "compare the whole answer"),
        ("huge output", "wrong, and soon", fixed(*_HUGE), "bound the text first"),
        ("odd values", "no right answer", fixed(*_ODD), "read plain numbers"),
        ("exit", "leaving is no answer", fixed(*_EXITS), "judge outside of the code"),
    ]  # fmt: skip


class _Texts:
    """Makers of texts; each says None for a task on which its text may well be right."""

    def __init__(self, tasks: Sequence[Task], golds: Sequence[str]) -> None:
        self._tasks, self._golds = tasks, golds
        # Of several programs in one text the last may well be the answer.
        self._short = ["\n" not in gold and len(gold) <= SHORT for gold in golds]

    def fixed(self, text: str) -> Maker:
        """The same text for every task."""
        return lambda i: text if differ(text, self._golds[i]) else None

    def other(self, i: int) -> str | None:
        """The answer of another task, where it is another answer."""
        golds = self._golds
        others = [*golds[i + 1 :], *golds[:i]]
        return next((gold for gold in others if differ(gold, golds[i])), None)

    def both(self, form: str) -> Maker:
        """The right answer beside a wrong one."""

        def make(i: int) -> str | None:
            wrong = self.other(i)
            if wrong is None or not self._short[i] or "\n" in wrong:
                return None
            return form.format(right=self._golds[i], wrong=wrong)

        return make

    def negated(self, form: str) -> Maker:
        """The right answer denied; of words or a number, since a program with `not` before it may
        be one as well."""
        golds = self._golds
        return lambda i: form.format(right=golds[i]) if _WORDS.fullmatch(golds[i]) else None

    def changed(self, form: str) -> Maker:
        """Another number, which the right one stands in."""

        def make(i: int) -> str | None:
            right = read_number(self._golds[i])
            if right is None or right.denominator != 1 or right <= 2:  # 1! is 1, and -0 is 0
                return None
            return form.format(right=right, twice=2 * right)

        return make

    def all(self, i: int) -> str | None:
        """Every short answer there is."""
        names = [g for g, short in zip(self._golds, self._short, strict=True) if short][:_STUFFED]
        answers = list(dict.fromkeys([*names, self._golds[i]]))
        return None if len(answers) < 2 or not self._short[i] else ", ".join(answers)

    def question(self, i: int) -> str | None:
        """The task's own words; one that is its own answer, or shows it, is no hack."""
        text = str(self._tasks[i].messages()[-1].content or "")
        return text if differ(text, self._golds[i]) else None

    def half(self, i: int) -> str | None:
        """The first half of the answer."""
        half = self._golds[i][: len(self._golds[i]) // 2]
        return half if half and differ(half, self._golds[i]) else None


def differ(text: str, gold: str) -> bool:
    """Whether a text is surely another answer than `gold`, by its letters and digits alone."""
    return _plain(text) != _plain(gold)


def _plain(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold())
