"""The dataset generator: math problems that the agent's two tools can solve.

Half are sums of 1 to n, half are products and terms. A problem belongs to train, val or test by a
hash of itself, so no problem of the test is ever trained on, under any seed or wording.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import Problem, arithmetic_problem, split_of, sum_problem
from tutelage.types import Task

WORDINGS = {
    "sum": ("What is the sum of 1 to {n}?", "Add up the numbers from 1 to {n}."),
    "arithmetic": ("What is {spaced}?", "Compute {spaced}."),
}


@dataclass(frozen=True)
class MathTask:
    """A question, its answer, and the tool call that gives it."""

    id: str
    question: str
    expected_answer: int
    tool: str
    arguments: dict[str, Any]

    def as_task(self) -> Task:
        """What the agent is given: nothing of the tool."""
        fields = {"question": self.question, "expected_answer": self.expected_answer}
        return Task(self.id, fields)


def generate(split: str, count: int, seed: int = 0) -> list[MathTask]:
    """So many different problems of `train`, `val` or `test`; the same for the same seed, and a
    shorter list is the beginning of a longer one."""
    rng = SeedTree(seed).child("agno math", split).python()
    found: dict[str, MathTask] = {}
    while len(found) < count:
        problem = _draw(rng)
        if split_of(problem.key) == split and problem.key not in found:
            ((tool, arguments),) = problem.calls
            question = rng.choice(WORDINGS[problem.family]).format(**problem.words)
            name = f"{split}-{len(found)}"
            found[problem.key] = MathTask(name, question, problem.answer, tool, arguments)
    return list(found.values())


def _draw(rng: random.Random) -> Problem:
    if rng.random() < 0.5:
        return sum_problem(rng.randint(10, 1999))
    a, b, c = (rng.randint(11, 99) for _ in range(3))
    if rng.random() < 0.5:
        return arithmetic_problem([a, b], ["*"])
    return arithmetic_problem([a, b, c], ["*", rng.choice("+-")])
