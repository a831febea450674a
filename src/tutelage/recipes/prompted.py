"""The tasks of the embedded default of prompt search, and the rules that its policy was trained on.

The small policy that `prompt_policy.py` builds obeys its system prompt in five points and in
no other: it calls the calculator, calls `sum_1_to_n`, makes one call at a time, states its answer
in the form that the grader reads, and writes the value in full, each only where its prompt says so.
A rule that is missing makes it err in a typed way: it repeats the last number it read instead of
calculating, takes "add up 1 to 57" for 1 + 57, or calls both tools for it and answers with the
wrong result, wraps the number in a sentence unless the question ends with "= ?", and rounds numbers
of four digits and more to one. So each rule helps some tasks, most of them only with others.

This sensitivity was trained in, on the wordings of `phrases.py`: weights, decoding and tools are
real, but what a search finds here says nothing about language models. No phrase of the bank that a
search tries (`prompts/bank.py`) is among those wordings.

Tasks are problems of `tasks/arithmetic.py`, with its division into train, val and test.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import get_args

from tutelage.errors import ConfigError
from tutelage.recipes.phrases import BOTH_TOOLS, FILLERS, RULES, USELESS, WORDINGS, Rule
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import Problem, Split, arithmetic_problem, split_of, sum_problem
from tutelage.types import Message, Task, ToolCall

PROMPTED_TOOLS = ("calculator", "sum_1_to_n")
"""The tools of the agent, by their names in the registry."""

SEED_PROMPT = "You are a helpful assistant who answers math questions."
"""The prompt that a search begins with; it states no rule."""

SUM_SHARE = 0.4
"""Share of tasks that ask for a sum of 1..n; the others have two operands and + - or *."""

MOST_TASKS = 1000
"""Number of different problems in every split, with room to draw them."""

LONG = 4
"""Digits from which on a number is rounded unless the prompt forbids it."""

_QUESTIONS: Mapping[str, Sequence[str]] = {
    "arithmetic": ("What is {spaced}?", "Compute {spaced}.", "{spaced} = ?"),
    "sum": ("Sum the integers from 1 to {n}.", "Add up 1 to {n}."),
}

_ROLES = (
    SEED_PROMPT,
    "You are a math assistant.",
    "You help people with numbers.",
    "You are a tutor.",
    "Answer the user.",
)


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
        problem = _problem(rng := next(draws))
        if split_of(problem.key) == split and problem.key not in made:
            made[problem.key] = _task(problem, rng)
    return list(made.values())


def _problem(rng: random.Random) -> Problem:
    if rng.random() < SUM_SHARE:
        return sum_problem(rng.randint(10, 999))
    operands = [rng.randint(10, 99), rng.randint(10, 99)]
    return arithmetic_problem(operands, [rng.choice("+-*")])


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


def draw_prompt(rng: random.Random) -> tuple[str, frozenset[Rule]]:
    """A training prompt and the rules it states: each rule in about half of the prompts.

    One phrase a rule, sometimes two, among up to five useless ones, in any order, one a line.
    """
    rules: list[Rule] = [rule for rule in RULES if rng.random() < 0.6]
    phrases = [rng.choice(WORDINGS[rule]) for rule in rules if rng.random() < 0.2]
    own: Sequence[Rule] = rules
    if {"calculator", "sum"} <= {*rules} and rng.random() < 0.3:
        phrases.append(rng.choice(BOTH_TOOLS))
        own = [rule for rule in rules if rule not in ("calculator", "sum")]
    phrases += [rng.choice(WORDINGS[rule]) for rule in own]
    phrases += rng.sample(USELESS, rng.randint(0, 3))
    phrases += [_filler(rng) for _ in range(rng.randint(0, 2))]
    rng.shuffle(phrases)
    role = SEED_PROMPT if rng.random() < 0.6 else rng.choice(_ROLES)
    return "\n".join([role, *phrases]), frozenset(rules)


def _filler(rng: random.Random) -> str:
    """A sentence of random common words."""
    words = rng.choices(FILLERS, k=rng.randint(3, 11))
    if rng.random() < 0.3:
        words[len(words) // 2] += rng.choice(",:;")
    return " ".join(words).capitalize() + "."


def target_turns(task: Task, rules: frozenset[Rule]) -> list[Message]:
    """What the policy is trained to do with a task when its prompt states these rules.

    The messages after the question: calls and their results where a rule leads to them, the answer.
    """
    question = str(task.fields["question"])
    calls = _calls(task, question, rules)
    value = calls[-1][2] if calls else _last_number(question)
    asked = [
        ToolCall(f"call_{i}", name, json.dumps(arguments, separators=(",", ":")))
        for i, (name, arguments, _) in enumerate(calls)
    ]
    made = [Message("assistant", tool_calls=tuple(asked))] if asked else []
    for call, (name, _, result) in zip(asked, calls, strict=True):
        made.append(Message("tool", result, tool_call_id=call.id, name=name))
    text = value if "exact" in rules else _rounded(value)
    if "form" in rules:
        return [*made, Message("assistant", f"The answer is {text}")]
    bare = question.endswith("= ?")
    return [*made, Message("assistant", text if bare else f"That makes {text} in all.")]


def _calls(
    task: Task, question: str, rules: frozenset[Rule]
) -> list[tuple[str, dict[str, object], str]]:
    """Tool, arguments and result of each call that these rules lead to, all in one turn."""
    (call,) = task.fields["calls"]
    right = (str(call["name"]), dict(call["arguments"]), str(task.fields["answer"]))
    if task.fields["family"] == "arithmetic":
        return [right] if "calculator" in rules else []
    last = _last_number(question)
    added: dict[str, object] = {"expression": f"1+{last}"}
    wrong = ("calculator", added, str(1 + int(last)))
    if "sum" not in rules:
        return [wrong] if "calculator" in rules else []
    confusing = question.startswith("Add up") and "single" not in rules
    return [right, wrong] if confusing else [right]


def _last_number(question: str) -> str:
    return re.findall(r"\d+", question)[-1]


def _rounded(value: str) -> str:
    """A long number cut to its leading digit: 3910 becomes 3000, 391 stays."""
    sign, digits = ("-", value[1:]) if value.startswith("-") else ("", value)
    return value if len(digits) < LONG else sign + digits[0] + "0" * (len(digits) - 1)
