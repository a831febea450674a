"""The tasks of the embedded prompt search.

Problems of `tasks/arithmetic.py`, with its division into train, val and test. The embedded policy
(`artefacts/prompts`) follows five rules only if its system prompt states them: call the calculator,
call `sum_1_to_n`, make one call at a time, state the answer in the grader's form, and write the
value in full. This was trained (`benchmarks/house/prompt_recipe.py`): weights, decoding and tools
are real, but results of a search here say nothing about language models.
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
"""Tools of the agent, by name in the registry."""

SEED_PROMPT = "You are a helpful assistant who answers math questions."
"""First prompt of a search; it states no rule."""

SUM_SHARE = 0.4
"""Share of tasks that ask for a sum of 1..n; all others have two operands and + - or *."""

MOST_TASKS = 1000
"""Maximum number of tasks of a split, below the number of different problems."""

_QUESTIONS: Mapping[str, Sequence[str]] = {
    "arithmetic": ("What is {spaced}?", "Compute {spaced}.", "{spaced} = ?"),
    "sum": ("Sum the integers from 1 to {n}.", "Add up 1 to {n}."),
}


def prompted_tasks(split: str, n: int, seed: int) -> list[Task]:
    """Draw `n` tasks of a split (`train`, `val`, `test`).

    Fields: `question`, `answer` (a string), `family`, and `calls`, the one correct call, as in
    `arithmetic.make_tasks`. No problem repeats, and none is in two splits. The same arguments give
    the same list, and a smaller `n` gives a prefix of it. Raises `ConfigError` for an unknown split
    or too many tasks.
    """
    if split not in get_args(Split):
        raise ConfigError(f"unknown split {split!r}; choose one of {', '.join(get_args(Split))}")
    if not 1 <= n <= MOST_TASKS:
        raise ConfigError(f"cannot draw {n!r} tasks; use 1 to {MOST_TASKS}")
    tree = SeedTree(seed).child("prompted", split)
    tasks: dict[str, Task] = {}
    draws = (tree.child(i).python() for i in itertools.count())
    while len(tasks) < n:
        rng = next(draws)
        if rng.random() < SUM_SHARE:
            problem = sum_problem(rng.randint(10, 999))
        else:
            operands = [rng.randint(10, 99), rng.randint(10, 99)]
            problem = arithmetic_problem(operands, [rng.choice("+-*")])
        if split_of(problem.key) == split and problem.key not in tasks:
            tasks[problem.key] = _make_task(problem, rng)
    return list(tasks.values())


def _make_task(problem: Problem, rng: random.Random) -> Task:
    """Return a task for a problem, with a randomly chosen wording."""
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
