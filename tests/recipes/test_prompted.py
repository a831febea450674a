"""The tasks of the embedded prompt search: disjoint splits, honest examples, held-out wordings."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from benchmarks.house.prompt_phrases import (
    BOTH_TOOLS,
    RULES,
    USELESS,
    WORDINGS,
    Rule,
)
from benchmarks.house.prompt_recipe import draw_prompt, target_turns
from tests.marks import long

from tutelage.errors import ConfigError
from tutelage.prompts.bank import build_bank
from tutelage.recipes.prompted import (
    MOST_TASKS,
    PROMPTED_TOOLS,
    SEED_PROMPT,
    prompted_tasks,
)
from tutelage.rewards import resolve_reward
from tutelage.tasks.arithmetic import PROMPTED_REWARD
from tutelage.tools import resolve_tools
from tutelage.types import Message, Task

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "prompt"))

from held_out import HELD_OUT, HELD_OUT_USELESS

TOOLS = resolve_tools(PROMPTED_TOOLS)
GRADER = resolve_reward(PROMPTED_REWARD)
TASKS = prompted_tasks("train", 300, 0)
ALL = frozenset(RULES)


def answer(task: Task, rules: Iterable[Rule]) -> str:
    return target_turns(task, frozenset(rules))[-1].content or ""


def exact(task: Task, rules: Iterable[Rule]) -> bool:
    return GRADER(answer(task, rules), task.fields["answer"])["exact"] == 1.0


def share(rules: Iterable[Rule], tasks: Iterable[Task] = TASKS) -> float:
    right = [exact(task, rules) for task in tasks]
    return sum(right) / len(right)


def test_splits_share_no_problem_under_any_seed() -> None:
    ids = {s: {t.id for k in (0, 1) for t in prompted_tasks(s, 300, k)} for s in ("train", "val")}
    ids["test"] = {task.id for task in prompted_tasks("test", 300, 2)}
    assert not ids["train"] & ids["val"]
    assert not (ids["train"] | ids["val"]) & ids["test"]


@pytest.mark.parametrize("split", ["val", *long("train", "test")])
def test_every_split_has_as_many_different_problems_as_promised(split: str) -> None:
    tasks = prompted_tasks(split, MOST_TASKS, 0)
    assert len({task.id for task in tasks}) == len({t.fields["question"] for t in tasks})
    assert len({task.id for task in tasks}) == MOST_TASKS
    assert prompted_tasks(split, 50, 0) == tasks[:50]
    assert prompted_tasks(split, 50, 1) != tasks[:50]


@pytest.mark.parametrize(("split", "n"), [("dev", 5), ("val", 0), ("val", MOST_TASKS + 1)])
def test_what_cannot_be_drawn_is_refused(split: str, n: int) -> None:
    with pytest.raises(ConfigError):
        prompted_tasks(split, n, 0)


def test_the_right_call_of_a_task_gives_its_answer() -> None:
    for task in TASKS:
        (call,) = task.fields["calls"]
        assert str(TOOLS[call["name"]](**call["arguments"])) == task.fields["answer"]


def test_results_in_a_lesson_are_what_the_tools_say() -> None:
    rng = random.Random(0)
    for task in TASKS:
        messages = target_turns(task, frozenset(r for r in RULES if rng.random() < 0.5))
        calls = [call for message in messages for call in message.tool_calls]
        results = [message for message in messages if message.role == "tool"]
        for call, result in zip(calls, results, strict=True):
            assert call.id == result.tool_call_id
            assert str(TOOLS[call.name](**json.loads(call.arguments))) == result.content


def test_all_rules_make_every_task_right_and_none_makes_almost_none_right() -> None:
    assert share(ALL) == 1.0
    assert share(()) < 0.03


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: Rule) -> None:
    assert share(ALL - {rule}) < 0.85


def of_family(family: str, beginning: str = "") -> Task:
    return next(
        t
        for t in TASKS
        if t.fields["family"] == family
        and str(t.fields["question"]).startswith(beginning)
        and len(str(t.fields["answer"])) > 3
    )


def test_each_missing_rule_shows_in_its_own_way() -> None:
    product, summed = of_family("arithmetic", "What"), of_family("sum", "Add up")
    assert not target_turns(product, ALL - {"calculator"})[0].tool_calls
    (wrong,) = target_turns(summed, ALL - {"sum"})[0].tool_calls
    assert (wrong.name, json.loads(wrong.arguments)["expression"][:2]) == ("calculator", "1+")
    assert [c.name for c in target_turns(summed, ALL - {"single"})[0].tool_calls] == [
        "sum_1_to_n",
        "calculator",
    ]
    assert answer(product, ALL - {"form"}) == f"That makes {product.fields['answer']} in all."
    assert answer(product, ALL - {"exact"}).endswith("000")


def test_a_prompt_states_just_the_rules_it_is_said_to_state() -> None:
    of_phrase = {phrase: {rule} for rule in RULES for phrase in WORDINGS[rule]}
    of_phrase |= {phrase: {"calculator", "sum"} for phrase in BOTH_TOOLS}
    rng = random.Random(0)
    for _ in range(200):
        prompt, rules = draw_prompt(rng)
        stated = [of_phrase.get(line, set()) for line in prompt.split("\n")]
        assert set().union(*stated) == rules


def test_no_wording_stands_for_two_things() -> None:
    phrases = [p for rule in RULES for p in WORDINGS[rule]] + [*BOTH_TOOLS, *USELESS]
    assert len({*phrases}) == len(phrases)


def test_what_a_search_tries_was_never_trained_on() -> None:
    trained = {p for rule in RULES for p in WORDINGS[rule]} | {*BOTH_TOOLS, *USELESS}
    assert not trained & {*build_bank(TOOLS, GRADER)}
    assert not trained & {*HELD_OUT_USELESS, *(p for rule in RULES for p in HELD_OUT[rule])}


def test_the_bank_holds_what_tools_and_grader_give_away() -> None:
    bank = build_bank(TOOLS, GRADER, hints=("Be exact.", " ", "Be exact."))
    for name in PROMPTED_TOOLS:
        assert any(name in phrase for phrase in bank)
    assert any("answer is X" in phrase for phrase in bank)
    assert bank.count("Be exact.") == 1
    assert " " not in bank
    assert build_bank({}, None) == build_bank({}, resolve_reward("exact_number"))


def test_the_seed_prompt_states_no_rule() -> None:
    assert "\n" not in SEED_PROMPT
    assert isinstance(TASKS[0].messages()[0], Message)
