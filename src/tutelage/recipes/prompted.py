"""The tasks of the embedded default of prompt search.

Problems of `tasks/arithmetic.py`, with its division into train, val and test. The policy that comes
with the package (`artefacts/prompts`) obeys its system prompt in five points and in no other: it
calls the calculator, calls `sum_1_to_n`, makes one call at a time, states its answer in the form
that the grader reads, and writes the value in full, each only where its prompt says so. This
sensitivity was trained in (`benchmarks/house/prompt_recipe.py`): weights, decoding and tools are
real, but what a search finds here says nothing about language models.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Mapping, Sequence
from typing import get_args

from tutelage.errors import ConfigError
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import Problem, Split, arithmetic_problem, split_of, sum_problem
from tutelage.types import Task

PROMPTED_TOOLS = ("calculator", "sum_1_to_n")
"""The tools of the agent, by their names in the registry."""

SEED_PROMPT = "You are a helpful assistant who answers math questions."
"""The prompt that a search begins with; it states no rule."""

SUM_SHARE = 0.4
"""Share of tasks that ask for a sum of 1..n; the others have two operands and + - or *."""

MOST_TASKS = 1000
"""Number of different problems in every split, with room to draw them."""

_QUESTIONS: Mapping[str, Sequence[str]] = {
    "arithmetic": ("What is {spaced}?", "Compute {spaced}.", "{spaced} = ?"),
    "sum": ("Sum the integers from 1 to {n}.", "Add up 1 to {n}."),
}


def prompted_tasks(split: str, n: int, seed: int) -> list[Task]:
    """Draw `n` tasks of a split (`train`, `val`, `test`).

    Fields: `question`, `answer` (a string), `family`, and `calls`, the one right call, as in
    `arithmetic.make_tasks`. No problem repeats, and none is in two splits. The same arguments give
    the same list, a shorter list is the beginning of a longer one. Raises `ConfigError` for an
    unknown split or too many tasks.
    """
    if split not in get_args(Split):
        raise ConfigError(f"unknown split {split!r}; choose one of {', '.join(get_args(Split))}")
    if not 1 <= n <= MOST_TASKS:
        raise ConfigError(f"cannot draw {n!r} tasks; use 1 to {MOST_TASKS}")
    tree = SeedTree(seed).child("prompted", split)
    made: dict[str, Task] = {}
    draws = (tree.child(i).python() for i in itertools.count())
    while len(made) < n:
        rng = next(draws)
        if rng.random() < SUM_SHARE:
            problem = sum_problem(rng.randint(10, 999))
        else:
            operands = [rng.randint(10, 99), rng.randint(10, 99)]
            problem = arithmetic_problem(operands, [rng.choice("+-*")])
        if split_of(problem.key) == split and problem.key not in made:
            made[problem.key] = _task(problem, rng)
    return list(made.values())


def _task(problem: Problem, rng: random.Random) -> Task:
    question = rng.choice(_QUESTIONS[problem.family]).format(**problem.words)
    ((name, arguments),) = problem.calls
    digest = hashlib.blake2b(problem.key.encode(), digest_size=6).hexdigest()
    fields = {
        "question": question,
        "answer": str(problem.answer),
        "family": problem.family,
        "calls": [{"name": name, "arguments": arguments}],
    }
    return Task(f"{problem.family}-{digest}", fields)
