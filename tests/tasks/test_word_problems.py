"""Word problems: each template asks for what its answer says, and the test's words are its own."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import pytest

from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.environments import rollout_environments
from tutelage.rewards import resolve_reward
from tutelage.rollouts.models import EngineModelProvider
from tutelage.rollouts.runner import RolloutSpec, Runner, RunnerSettings
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import Split, demonstrations
from tutelage.tasks.word_problems import KINDS, LEVELS, make_word_problems
from tutelage.testing import ScriptedEngine
from tutelage.tools import execute_tool_calls, resolve_tools
from tutelage.types import Mode, Sampling, Task, ToolCall

WORDS: Mapping[str, Any] = {
    name: json.loads(files("tutelage.tasks.word_problems").joinpath(f"{name}.json").read_text())
    for name in ("seen", "unseen")
}
TOOLS = ("calculator", "price_list")
PLACES = {
    "share": {"total", "count"},
    "groups": {"count", "each"},
    "exchange": {"start", "gone", "more"},
    "shop": {"count"},
    "bag": {"count", "bag"},
    "pages": {"total", "each", "count"},
    "change": {"count", "paid"},
}


def expected(kind: str, n: Mapping[str, int], price: int) -> int:
    """The answer, by what the kind is about and not by the calls of a task."""
    match kind:
        case "share":
            each, rest = divmod(n["total"], n["count"])
            assert rest == 0
            return each
        case "groups":
            return sum(n["each"] for _ in range(n["count"]))
        case "exchange":
            return n["start"] + n["more"] - n["gone"]
        case "shop" | "bag":
            return sum(price for _ in range(n["count"])) + n.get("bag", 0)
        case "pages":
            return n["total"] - sum(n["each"] for _ in range(n["count"]))
        case _:
            return n["paid"] - sum(price for _ in range(n["count"]))


@cache
def pattern(template: str, words: str, kind: str) -> re.Pattern[str]:
    """What a template of a kind makes of the names and items of one of the two files."""
    choices = {"name": WORDS[words]["names"], "items": [many for _, many in WORDS[words]["items"]]}
    text = re.escape(template)
    for place in ("name", "items", *PLACES[kind]):
        inside = "|".join(choices[place]) if place in choices else r"\d+"
        text = text.replace(rf"\{{{place}\}}", f"(?P<{place}>{inside})", 1)
        text = text.replace(rf"\{{{place}\}}", f"(?P={place})")
    return re.compile(text)


def read(split: str, task: Task) -> tuple[str, dict[str, str]]:
    """The template of a task and what stands in its places, read from the question."""
    kind, words = str(task.fields["family"]), "unseen" if split == "test" else "seen"
    templates = task.fields["template"] if split == "test" else "seen"
    for template in WORDS[templates]["templates"][kind]:
        if found := pattern(template, words, kind).fullmatch(str(task.fields["question"])):
            return template, found.groupdict()
    raise AssertionError(f"no template of {kind} makes {task.fields['question']!r}")


@pytest.fixture(scope="module")
def drawn() -> Mapping[str, Sequence[Task]]:
    """Enough tasks that each template occurs."""
    numbers: dict[Split, tuple[int, int]] = {
        "train": (1800, 3),
        "val": (1200, 3),
        "test": (2700, 0),
    }
    return {split: make_word_problems(split, n, seed) for split, (n, seed) in numbers.items()}


@pytest.mark.full
def test_each_template_asks_for_its_answer_with_numbers_of_two_and_three_digits(
    drawn: Mapping[str, Sequence[Task]],
) -> None:
    met: dict[str, set[str]] = {}
    for split, tasks in drawn.items():
        singular = {
            many: one for one, many in WORDS["unseen" if split == "test" else "seen"]["items"]
        }
        for task in tasks:
            kind = str(task.fields["family"])
            template, places = read(split, task)
            met.setdefault(f"{split} {task.fields['template']} {kind}", set()).add(template)
            numbers = {place: int(places[place]) for place in PLACES[kind]}
            assert all(10 <= n <= 999 for n in numbers.values()), task
            prices = task.fields.get("prices", {})
            assert all(10 <= price <= 99 for price in prices.values()), task
            assert bool(prices) == (kind in {"shop", "bag", "change"})
            price = prices[singular[places["items"]]] if prices else 0
            answer = expected(kind, numbers, price)
            assert answer > 0
            assert str(answer) == task.fields["answer"], task
    assert set(KINDS) == set(PLACES)
    for kind in KINDS:
        seen, unseen = (set(WORDS[words]["templates"][kind]) for words in ("seen", "unseen"))
        trained, held_out = met[f"train seen {kind}"], met[f"val unseen {kind}"]
        assert not trained & held_out
        assert trained | held_out == seen
        assert trained == met[f"test seen {kind}"] >= met[f"val seen {kind}"]
        assert met[f"test unseen {kind}"] == unseen
    assert len(met) == 5 * len(KINDS)


@pytest.mark.full
def test_validation_has_names_and_items_of_its_own(drawn: Mapping[str, Sequence[Task]]) -> None:
    met: dict[str, dict[str, set[str]]] = {"name": {}, "items": {}}
    for split in ("train", "val"):
        for task in drawn[split]:
            for place, word in read(split, task)[1].items():
                if place in met:
                    met[place].setdefault(split, set()).add(word)
    for place, of in met.items():
        assert not of["train"] & of["val"], place
        assert len(of["train"]) > len(of["val"]) > 20, place


def test_words_of_the_test_are_not_in_training() -> None:
    seen, unseen = WORDS["seen"], WORDS["unseen"]
    assert not {*seen["names"]} & {*unseen["names"]}
    assert not {word for item in seen["items"] for word in item} & {
        word for item in unseen["items"] for word in item
    }
    for kind in KINDS:
        ours, others = ([wording(t) for t in w["templates"][kind]] for w in (seen, unseen))
        assert len({*ours}) == len(ours), kind
        assert not {*ours} & {*others}, kind
    assert min(len(seen[what]) for what in ("names", "items")) >= 20


def wording(template: str) -> str:
    """A template without case, punctuation and the names of its places."""
    return " ".join(re.findall(r"[a-z_]+", re.sub(r"\{\w+\}", "_", template.lower())))


def test_no_problem_is_in_two_splits(drawn: Mapping[str, Sequence[Task]]) -> None:
    met = {
        split: {
            (t.fields["family"], t.fields["calls"][-1]["arguments"]["expression"]) for t in tasks
        }
        for split, tasks in drawn.items()
    }
    assert not met["train"] & met["test"]
    assert not met["train"] & met["val"]
    assert not met["val"] & met["test"]


@pytest.mark.parametrize(("level", "number", "of_each"), [("default", 100, 9), ("full", 200, 10)])
def test_a_third_of_the_test_has_unseen_templates_in_equal_numbers_of_each_kind(
    level: str, number: int, of_each: int
) -> None:
    tasks = make_word_problems("test", number, 1, LEVELS[level])
    unseen = Counter(str(t.fields["family"]) for t in tasks if t.fields["template"] == "unseen")
    assert unseen == dict.fromkeys(LEVELS[level], of_each)
    assert len({t.id for t in tasks}) == len({t.fields["question"] for t in tasks}) == number


def test_a_price_is_that_of_the_tasks_own_list_which_differs_between_tasks(
    drawn: Mapping[str, Sequence[Task]],
) -> None:
    singular = {many: one for one, many in WORDS["seen"]["items"]}
    by_item: dict[str, list[int]] = {}
    for task in drawn["train"]:
        looked_up = [c for c in task.fields["calls"] if c["name"] == "lookup"]
        assert len(looked_up) == ("prices" in task.fields)
        for call in looked_up:
            prices = task.fields["prices"]
            assert len(prices) == 4
            assert str(prices[singular[call["arguments"]["item"]]]) == call["result"]
            for item, price in prices.items():
                by_item.setdefault(item, []).append(price)
    assert all(len({*met}) > 1 for met in by_item.values() if len(met) >= 4)
    assert max(map(len, by_item.values())) >= 4


@pytest.mark.parametrize("split", ["train", "test"])
async def test_demonstrations_play_to_the_full_reward(tiny: Any, split: Split) -> None:
    codec, tools = tiny("qwen2").codec, resolve_tools(TOOLS)
    agent = ToolCallingAgent(tools, Sampling(max_tokens=200))
    for task in make_word_problems(split, len(KINDS), 1):
        messages = demonstrations(task, guess=False, rng=random.Random(0))
        said = [
            f'<tool_call>{{"name": "{c.name}", "arguments": {c.arguments}}}</tool_call>'
            for m in messages
            for c in m.tool_calls
        ]
        models = EngineModelProvider(ScriptedEngine(codec, [*said, task.fields["answer"]]), codec)
        runner = Runner(agent, models, RunnerSettings("r"), reward=resolve_reward("math"))
        (rollout,) = await runner.run([RolloutSpec(task, Mode.TRAIN, "g", 0, SeedTree(0))])
        assert rollout.reward is not None
        assert rollout.reward.value == 1.0, task
        results = [m.content for m in rollout.last.calls[-1].messages if m.role == "tool"]
        assert results == [m.content for m in messages if m.role == "tool"]


@pytest.mark.parametrize(
    ("item", "prices", "told"),
    [
        ("lamp", {"lamp": 23, "Desk Clock": 41}, "23"),
        (" desk  CLOCK ", {"lamp": 23, "Desk Clock": 41}, "41"),
        ("lamp", {"Lamps": 23}, "23"),
        ("knives", {"knife": 7, "loaf": 8}, "7"),
        ("lmaps", {"lamp": 23}, "Error: no item 'lmaps'; did you mean 'lamp'?"),
        ("pen", {"lamp": 23}, "Error: no item 'pen'"),
        ("pen", {}, "Error: no item 'pen'; there is no price list here"),
    ],
)
async def test_the_price_list_answers_with_the_prices_of_its_task_alone(
    item: str, prices: Mapping[str, int], told: str
) -> None:
    fields = {"prices": prices} if prices else {}
    async with rollout_environments(Task("t", {"question": "q", **fields})) as environments:
        call = ToolCall("1", "lookup", json.dumps({"item": item}))
        (result,) = await execute_tool_calls(
            [call], await environments.bind(resolve_tools(["price_list"]))
        )
        assert result.text == told
        assert (result.error is None) == told.isdecimal()


def test_the_same_seed_gives_the_same_tasks_in_another_process() -> None:
    code = (
        "import hashlib; from tutelage.tasks.word_problems import make_word_problems as make\n"
        "tasks = make('train', 40, 5) + make('test', 40, 5)\n"
        "print(hashlib.sha256(repr(tasks).encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    other = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    tasks = make_word_problems("train", 40, 5) + make_word_problems("test", 40, 5)
    assert other.strip() == hashlib.sha256(repr(tasks).encode()).hexdigest()
    assert make_word_problems("train", 15, 5) == make_word_problems("train", 40, 5)[:15]
    assert make_word_problems("train", 15, 6) != make_word_problems("train", 15, 5)
