"""The generated tasks: right answers, disjoint splits, the same list for the same seed."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.marks import long

from tutelage.errors import ConfigError
from tutelage.tasks import Dataset
from tutelage.tasks.arithmetic import (
    PRICES,
    arithmetic_problem,
    demonstrations,
    make_tasks,
    plural,
    split_of,
)
from tutelage.tools import execute_tool_calls, resolve_tools
from tutelage.types import Task

TOOLS = resolve_tools(["calculator", "sum_1_to_n", "lookup"])


def content(task: Task) -> tuple[str, ...]:
    """What a question is about, read from its text: numbers, operators and item, no wording."""
    question = str(task.fields["question"])
    numbers = tuple(re.findall(r"\d+", question))
    operators = tuple(re.findall(r"[-+*]", question))
    if task.fields["family"] == "arithmetic" and len(numbers) == 2 and operators[0] in "+*":
        numbers = tuple(sorted(numbers))
    item = tuple(plural(i) for i in PRICES if f" {plural(i)}" in question)
    return (str(task.fields["family"]), *numbers, *operators, *item)


@pytest.mark.parametrize("level", ["hard", *long("default")])
@given(seeds=st.tuples(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40)))
@settings(max_examples=3, deadline=None)
def test_no_problem_is_in_two_splits_under_any_wording_or_seed(
    level: str, seeds: tuple[int, int, int]
) -> None:
    drawn = [
        {content(t) for t in make_tasks(level, split, 600, seed)}
        for split, seed in zip(("train", "val", "test"), seeds, strict=True)
    ]
    assert not drawn[0] & drawn[1]
    assert not drawn[0] & drawn[2]
    assert not drawn[1] & drawn[2]


def test_levels_do_not_leak_into_each_other() -> None:
    trained = {content(t) for t in make_tasks("hard", "train", 3000, 0)}
    assert not trained & {content(t) for t in make_tasks("default", "test", 1000, 0)}


def test_commuted_operands_are_one_problem() -> None:
    for a, b in [(17, 23), (40, 90), (11, 12)]:
        for operator in "+*":
            one, other = (arithmetic_problem(p, [operator]) for p in ((a, b), (b, a)))
            assert split_of(one.key) == split_of(other.key)
    assert arithmetic_problem([2, 3], ["-"]).key != arithmetic_problem([3, 2], ["-"]).key


@pytest.mark.parametrize("level", ["default", "hard"])
async def test_gold_calls_give_the_answers_and_the_demonstrations_are_true(level: str) -> None:
    for task in make_tasks(level, "train", 150, 5):
        messages = demonstrations(task, guess=False, rng=random.Random(0))
        gold = [(c["name"], c["arguments"]) for c in task.fields["calls"]]
        made = [c for m in messages for c in m.tool_calls]
        assert [(c.name, json.loads(c.arguments)) for c in made] == gold
        results = await execute_tool_calls(made, TOOLS)
        observed = [(m.tool_call_id, m.content) for m in messages if m.role == "tool"]
        assert observed == [(r.call_id, r.text) for r in results]
        assert [r.error for r in results] == [None] * len(results)
        assert results[-1].text == task.fields["answer"] == messages[-1].content


@given(
    operands=st.lists(st.integers(0, 99), min_size=1, max_size=5),
    data=st.data(),
)
def test_answers_follow_precedence(operands: list[int], data: st.DataObject) -> None:
    operators = [data.draw(st.sampled_from("+-*")) for _ in operands[1:]]
    problem = arithmetic_problem(operands, operators) if operators else None
    if problem is not None:
        assert str(problem.answer) == TOOLS["calculator"](problem.words["tight"])


def test_the_same_seed_gives_the_same_tasks_and_a_shorter_list_is_a_prefix() -> None:
    tasks = make_tasks("default", "val", 300, 9)
    assert tasks[:100] == make_tasks("default", "val", 100, 9)
    assert tasks != make_tasks("default", "val", 300, 10)
    # Ids stay unique although few held-out sums exist.
    assert len(Dataset(tasks)) == 300


def test_a_guess_is_one_plain_number_without_tools() -> None:
    task = Task("t", {"question": "q", "answer": "-12", "family": "arithmetic", "calls": []})
    guesses = [demonstrations(task, guess=True, rng=random.Random(i)) for i in range(200)]
    assert all(len(g) == 1 and not g[0].tool_calls for g in guesses)
    numbers = [int(str(g[0].content)) for g in guesses]
    assert all(-99 <= n <= -10 for n in numbers)
    assert len(set(numbers)) > 30


@pytest.mark.parametrize(
    ("level", "split", "n"), [("easy", "train", 1), ("hard", "dev", 1), ("hard", "val", 0)]
)
def test_unknown_names_are_refused(level: str, split: str, n: int) -> None:
    with pytest.raises(ConfigError):
        make_tasks(level, split, n, 0)
