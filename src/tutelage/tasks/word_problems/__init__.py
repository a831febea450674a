"""Word problems in plain English with a calculator and a price list, and their gold calls.

The tasks of `tutelage train word-problems`. A *problem* is of one of seven kinds and has numbers
and items; a template makes a question of it. Training and validation draw from `seen.json`,
validation from a part of it that training does not have: its names, its items, and for every third
task its templates. The test is made in the same way with `unseen.json`, written independently by
another author. Numbers are divided into train, val and test by a hash of the problem without its
names and items. Prices are only in the task, so that no price can be answered from memory.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from tutelage.errors import ConfigError
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import Split, split_of
from tutelage.types import Task

_T = TypeVar("_T")

UNSEEN_EVERY = 3
"""Every UNSEEN_EVERY-th validation and test task has an unseen template."""
HELD_OUT_EVERY = 5
"""Every HELD_OUT_EVERY-th name, item and template of `seen.json` is held out from training."""
LISTED = 4
"""Number of items on the price list of a task."""


_Vocabulary = tuple[list[str], list[tuple[str, str]], dict[str, list[str]]]
"""Parts of questions: names, (singular, plural) of items, and templates by kind."""


@dataclass(frozen=True, slots=True)
class _Problem:
    """Numbers of a problem by placeholder, the expression of its answer, and an optional price."""

    numbers: Mapping[str, int]
    expression: str
    answer: int
    price: int | None = None


def _draw_problem(kind: str, rng: random.Random) -> _Problem:
    """Draw the numbers of a problem of one of `KINDS`."""
    if kind == "share":
        count, each = rng.randint(11, 40), rng.randint(11, 24)
        total = count * each
        return _Problem({"total": total, "count": count}, f"{total}/{count}", each)
    if kind == "groups":
        count, each = rng.randint(11, 48), rng.randint(11, 98)
        return _Problem({"count": count, "each": each}, f"{count}*{each}", count * each)
    if kind == "exchange":
        start, gone, more = rng.randint(100, 899), rng.randint(11, 99), rng.randint(11, 99)
        numbers = {"start": start, "gone": gone, "more": more}
        return _Problem(numbers, f"{start}-{gone}+{more}", start - gone + more)
    if kind == "shop":
        count, price = rng.randint(11, 40), rng.randint(11, 60)
        return _Problem({"count": count}, f"{count}*{price}", count * price, price)
    if kind == "bag":
        count, price, bag = rng.randint(11, 40), rng.randint(11, 60), rng.randint(11, 99)
        numbers = {"count": count, "bag": bag}
        return _Problem(numbers, f"{count}*{price}+{bag}", count * price + bag, price)
    if kind == "pages":
        count, each, left = rng.randint(10, 18), rng.randint(11, 45), rng.randint(11, 180)
        total = count * each + left
        numbers = {"total": total, "each": each, "count": count}
        return _Problem(numbers, f"{total}-{each}*{count}", left)
    count, price, left = rng.randint(10, 20), rng.randint(11, 40), rng.randint(11, 180)
    paid = count * price + left
    numbers = {"count": count, "paid": paid}
    return _Problem(numbers, f"{paid}-{count}*{price}", left, price)


KINDS = ("share", "groups", "exchange", "shop", "bag", "pages", "change")
"""Kinds of problems: equal shares, equal groups, a loss and a gain, a price, a price and another
amount, the rest after equal parts, and change."""
LEVELS: Mapping[str, tuple[str, ...]] = {
    "default": ("share", "groups", "shop", "pages"),
    "full": KINDS,
}
"""The kinds of each level; `default` has those that are learned fastest."""
_OFTEN = "shop change share"
_FEW = "shop share shop pages shop groups shop share shop pages shop groups shop share shop pages"
_ALL = f"{_OFTEN} exchange bag {_OFTEN} groups {_OFTEN} exchange pages shop bag"
DEMONSTRATED: Mapping[str, tuple[str, ...]] = {
    "default": tuple(_FEW.split()),
    "full": tuple(_ALL.split()),
}
"""Order of the kinds in demonstrations, by level: prices and divisions are more frequent, since
reinforcement learning otherwise forgets to look prices up."""


def make_word_problems(split: Split, n: int, seed: int, kinds: Sequence[str] = KINDS) -> list[Task]:
    """Draw `n` tasks of a split, with alternating kinds. The same arguments give the same list, and
    a smaller `n` gives its beginning.

    Fields: `question`, `answer` (a string), `family` (the kind), `template` (`seen` or `unseen`),
    `calls` (the gold calls as `{"name", "arguments", "result"}`), and `prices` by item if the kind
    needs them. Raises `ConfigError` for fewer than one task.
    """
    if n < 1:
        raise ConfigError(f"invalid number of tasks {n!r}: must be at least 1")
    tree = SeedTree(seed).child("word problems", split, *(() if kinds == KINDS else kinds))
    # The kinds change with every task and the templates with every round of them, so that each
    # kind has its share of unseen templates.
    return [_make_task(split, index, kinds, tree.child(index).python()) for index in range(n)]


def _make_task(split: Split, index: int, kinds: Sequence[str], rng: random.Random) -> Task:
    """Draw the task with a given index."""
    turn, place = divmod(index, len(kinds))
    kind, unseen = kinds[place], split != "train" and turn % UNSEEN_EVERY == 0
    names, items, templates = _load_vocabulary(split)
    if not unseen:
        templates = _load_vocabulary("train")[2]
    problem = _draw_problem(kind, rng)
    while split_of(f"{kind}:{problem.expression}") != split:
        problem = _draw_problem(kind, rng)
    listed = rng.sample(items, LISTED)
    item, plural = listed[0]
    question = rng.choice(templates[kind]).format(
        name=rng.choice(names), items=plural, **problem.numbers
    )
    calls = [_gold_call("calculator", problem.answer, expression=problem.expression)]
    fields: dict[str, Any] = {
        "question": question,
        "answer": str(problem.answer),
        "family": kind,
        "template": "unseen" if unseen else "seen",
        "calls": calls,
    }
    if problem.price is not None:
        calls.insert(0, _gold_call("lookup", problem.price, item=plural))
        prices = [(name, rng.randint(11, 60)) for name, _ in listed[1:]]
        fields["prices"] = dict(sorted([(item, problem.price), *prices]))
    digest = hashlib.blake2b(question.encode(), digest_size=6).hexdigest()
    return Task(f"{kind}-{index}-{digest}", fields)


def _gold_call(name: str, result: int, **arguments: str) -> dict[str, Any]:
    """Return a reference tool call with its result."""
    return {"name": name, "arguments": arguments, "result": str(result)}


@cache
def _load_vocabulary(split: Split) -> _Vocabulary:
    """Load the vocabulary of a split."""
    name = "unseen.json" if split == "test" else "seen.json"
    read = json.loads(files(__name__).joinpath(name).read_text(encoding="utf-8"))
    items = [(one, many) for one, many in read["items"]]
    if split == "test":
        return read["names"], items, read["templates"]
    held_out = split == "val"
    templates = {kind: _select(those, held_out) for kind, those in read["templates"].items()}
    return _select(read["names"], held_out), _select(items, held_out), templates


def _select(items: Sequence[_T], held_out: bool) -> list[_T]:
    """Return the items held out from training, or all other items."""
    return [x for i, x in enumerate(items) if (i % HELD_OUT_EVERY == 0) is held_out]
