"""Word problems in plain English with a calculator and a price list, and their gold calls.

The tasks of `tutelage train word-problems`. A *problem* is of one of seven kinds and is what is
asked (numbers, items); a template makes a question of it. Training and validation draw from
`seen.json`, validation from a part of it that training does not have: its names, its items, and for
every third task its templates. So is the test made with `unseen.json`, whose author had not read
the other. Numbers are divided into train, val and test by a hash of the problem without its names
and items. Prices stand in the task alone, so that no price can be answered from memory.
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
"""Of the validation and test tasks, every which one has an unseen template."""
HELD_OUT_EVERY = 5
"""Of the names, items and templates of `seen.json`, every which one is held out from training."""
LISTED = 4
"""Items on the price list of a task."""


@dataclass(frozen=True, slots=True)
class _Words:
    """What questions are made of: names, (singular, plural) of items, and templates by kind."""

    names: list[str]
    items: list[tuple[str, str]]
    templates: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class _Problem:
    """The numbers by placeholder, the expression that gives the answer, and the price if any."""

    numbers: Mapping[str, int]
    expression: str
    answer: int
    price: int | None = None


def _share(rng: random.Random) -> _Problem:
    count, each = rng.randint(11, 40), rng.randint(11, 24)
    total = count * each
    return _Problem({"total": total, "count": count}, f"{total}/{count}", each)


def _groups(rng: random.Random) -> _Problem:
    count, each = rng.randint(11, 48), rng.randint(11, 98)
    return _Problem({"count": count, "each": each}, f"{count}*{each}", count * each)


def _exchange(rng: random.Random) -> _Problem:
    start, gone, more = rng.randint(100, 899), rng.randint(11, 99), rng.randint(11, 99)
    numbers = {"start": start, "gone": gone, "more": more}
    return _Problem(numbers, f"{start}-{gone}+{more}", start - gone + more)


def _shop(rng: random.Random) -> _Problem:
    count, price = rng.randint(11, 40), rng.randint(11, 60)
    return _Problem({"count": count}, f"{count}*{price}", count * price, price)


def _bag(rng: random.Random) -> _Problem:
    count, price, bag = rng.randint(11, 40), rng.randint(11, 60), rng.randint(11, 99)
    numbers = {"count": count, "bag": bag}
    return _Problem(numbers, f"{count}*{price}+{bag}", count * price + bag, price)


def _pages(rng: random.Random) -> _Problem:
    count, each, left = rng.randint(10, 18), rng.randint(11, 45), rng.randint(11, 180)
    total = count * each + left
    numbers = {"total": total, "each": each, "count": count}
    return _Problem(numbers, f"{total}-{each}*{count}", left)


def _change(rng: random.Random) -> _Problem:
    count, price, left = rng.randint(10, 20), rng.randint(11, 40), rng.randint(11, 180)
    paid = count * price + left
    numbers = {"count": count, "paid": paid}
    return _Problem(numbers, f"{paid}-{count}*{price}", left, price)


_DRAWN = (_share, _groups, _exchange, _shop, _bag, _pages, _change)
_KINDS = {draw.__name__.removeprefix("_"): draw for draw in _DRAWN}
KINDS = tuple(_KINDS)
"""What is asked: equal shares, equal groups, less and more, a price, a price and something more,
what is left after equal parts, and change."""
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
"""The kinds in the order they are demonstrated, by level: what takes a price or a division oftener,
or reinforcement forgets to look prices up."""


def make_word_problems(split: Split, n: int, seed: int, kinds: Sequence[str] = KINDS) -> list[Task]:
    """Draw `n` tasks of a split, the kinds in turn. The same arguments give the same list, and a
    shorter list is the beginning of a longer one.

    Fields: `question`, `answer` (a string), `family` (the kind), `template` (`seen` or `unseen`),
    `calls` (the gold calls as `{"name", "arguments", "result"}`), and `prices` by item where the
    kind needs them. Raises `ConfigError` for fewer than one task.
    """
    if n < 1:
        raise ConfigError(f"invalid number of tasks {n!r}: must be at least 1")
    tree = SeedTree(seed).child("word problems", split, *(() if kinds == KINDS else kinds))
    # The kinds change with every task and the templates with every round of them, so that each
    # kind has its share of unseen templates.
    return [_task(split, index, kinds, tree.child(index).python()) for index in range(n)]


def _task(split: Split, index: int, kinds: Sequence[str], rng: random.Random) -> Task:
    turn, place = divmod(index, len(kinds))
    kind, unseen = kinds[place], split != "train" and turn % UNSEEN_EVERY == 0
    words = _words(split)
    templates = words.templates if unseen else _words("train").templates
    problem = _KINDS[kind](rng)
    while split_of(f"{kind}:{problem.expression}") != split:
        problem = _KINDS[kind](rng)
    listed = rng.sample(words.items, LISTED)
    item, plural = listed[0]
    question = rng.choice(templates[kind]).format(
        name=rng.choice(words.names), items=plural, **problem.numbers
    )
    calls = [_call("calculator", problem.answer, expression=problem.expression)]
    fields: dict[str, Any] = {
        "question": question,
        "answer": str(problem.answer),
        "family": kind,
        "template": "unseen" if unseen else "seen",
        "calls": calls,
    }
    if problem.price is not None:
        calls.insert(0, _call("lookup", problem.price, item=plural))
        prices = [(name, rng.randint(11, 60)) for name, _ in listed[1:]]
        fields["prices"] = dict(sorted([(item, problem.price), *prices]))
    digest = hashlib.blake2b(question.encode(), digest_size=6).hexdigest()
    return Task(f"{kind}-{index}-{digest}", fields)


def _call(name: str, result: int, **arguments: str) -> dict[str, Any]:
    return {"name": name, "arguments": arguments, "result": str(result)}


@cache
def _words(split: Split) -> _Words:
    name = "unseen.json" if split == "test" else "seen.json"
    read = json.loads(files(__name__).joinpath(name).read_text(encoding="utf-8"))
    items = [(one, many) for one, many in read["items"]]
    words = _Words(read["names"], items, read["templates"])
    if split == "test":
        return words
    held_out = split == "val"
    templates = {kind: _part(those, held_out) for kind, those in words.templates.items()}
    return _Words(_part(words.names, held_out), _part(items, held_out), templates)


def _part(those: Sequence[_T], held_out: bool) -> list[_T]:
    """What training does not have, or the rest."""
    return [x for i, x in enumerate(those) if (i % HELD_OUT_EVERY == 0) is held_out]
