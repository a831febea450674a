"""Probes of a reward that turn a right answer into a wrong one by a word or a sign.

`not 5`, `-5`, `5!` and `10 = 5` all contain 5, and a reward that only looks for it pays for them.
`validation.py` tries these texts beside its others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tutelage.rewards.answers import read_number

Maker: TypeAlias = Callable[[int], str | None]
"""The text to try on the i-th task; None to leave it out."""
Refusal: TypeAlias = tuple[str, str, Maker, str]
"""A probe whose every text must earn less than the full reward: name, words, text, advice."""

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


def reworded(golds: Sequence[str]) -> list[Refusal]:
    """The probes, for these right answers."""

    def negated(form: str) -> Maker:
        # Words or a number; a program may be one with `not` before it as well.
        return lambda i: form.format(right=golds[i]) if _WORDS.fullmatch(golds[i]) else None

    def changed(form: str) -> Maker:
        def make(i: int) -> str | None:
            right = read_number(golds[i])
            if right is None or right.denominator != 1 or right <= 2:  # 1! is 1, and -0 is 0
                return None
            return form.format(right=right, twice=2 * right)

        return make

    wrong = "saying that it is not so is wrong"
    found = [("negated answer", wrong, negated(form), "read what leads to it") for form in _NEGATED]
    return found + [
        ("changed number", "another value is wrong", changed(form), "read the whole answer")
        for form in _CHANGED
    ]
