"""The reward grader: reads the answer in a reply and compares it with the expected one.

It reads `answer is X`, `result: X`, or a reply that is a number alone. The exact number earns 1.0;
one within 10 % earns from 1.0 falling to 0.5; anything else 0.0. The reading and the arithmetic are
`tutelage.rewards`' own, since a pattern that reads `12 or 13` as 13 is what a model learns first.
Partial credit hides mistakes: n*n/2 for the sum of 1 to n is within 10 %. So `exact` is always
logged beside the reward.
"""

from __future__ import annotations

from dataclasses import dataclass

from tutelage.rewards.answers import find_number
from tutelage.rewards.builtin import numeric_partial_credit


@dataclass(frozen=True)
class Grade:
    """What a reply earns."""

    reward: float
    exact: float
    feedback: str
    """For whoever rewrites the prompt."""


def grade(response: str, expected: float | str) -> Grade:
    """Grade a reply."""
    parts = numeric_partial_credit(response, str(expected))
    reward, exact = parts["reward"], parts["exact"]
    if exact:
        return Grade(reward, exact, "right")
    if find_number(response) is None:
        told = "no answer can be read in the reply; it should say: the answer is X"
    else:
        told = f"the answer is not {expected}" + (", but within 10 % of it" if reward else "")
    return Grade(reward, exact, told)
