"""A folder of everyday files, made from a seed: notes, invoices, logs, photos, calendar, database.

`folder_contents` draws all of it, and what day it is there and what the pages of its web server
say; `make_folder` writes it. Every draw is addressed in the seed tree, so a seed gives the same
bytes each time. `words.json` has the words, `pages.py` serves the pages, `make.py` makes the tools.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tutelage.errors import ConfigError
from tutelage.files import describe_folder
from tutelage.seeds import SeedTree

DATABASE = "people.db"
CALENDAR = "calendar.txt"
FOLDERS = ("notes", "invoices", "logs", "photos")
_FIRST_DAY = date(2026, 3, 2)
_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september")


class Person(NamedTuple):
    """A row of the table people; `birthday` is a date as 1984-07-21."""

    name: str
    city: str
    birthday: str
    phone: str


class Order(NamedTuple):
    """A row of the table orders; `day` is a date as 2026-03-04."""

    person: str
    item: str
    amount: float
    day: str


@dataclass(frozen=True, slots=True)
class FolderContents:
    """What a seed makes: files, rows, pages, and the day that it is there."""

    seed: int
    today: date
    files: Mapping[str, str]
    """Texts by path, without the database."""
    people: tuple[Person, ...]
    orders: tuple[Order, ...]
    pages: Mapping[str, str]
    """Texts by path: /weather/CITY, /prices, /news."""

    def names(self, folder: str) -> list[str]:
        """The names of the files of a folder, sorted."""
        inside = [path for path in self.files if path.startswith(f"{folder}/")]
        return sorted(path.removeprefix(f"{folder}/") for path in inside)


def folder_contents(seed: int) -> FolderContents:
    """What the folder of a seed holds: a pure function of the seed."""
    tree = SeedTree(seed, ("kit",))
    words = _words()
    today = _FIRST_DAY + timedelta(days=tree.child("today").python().randrange(240))
    people = _people(tree.child("people").python(), words)
    texts = {
        **_notes(tree.child("notes").python(), words["notes"]),
        **_invoices(tree.child("invoices").python(), words["items"]),
        **_logs(tree.child("logs").python(), words["logs"], today),
        **_photos(tree.child("photos").python(), words["pictures"]),
        CALENDAR: _calendar(tree.child("calendar").python(), words["events"], today),
    }
    orders = _orders(tree.child("orders").python(), words["items"], people, today)
    pages = _pages(tree.child("pages").python(), words, [person.city for person in people])
    return FolderContents(seed, today, texts, people, orders, pages)


def make_folder(path: Path, seed: int) -> FolderContents:
    """Write the folder of a seed to `path`, which must be empty or not there, and return what it
    holds. Raises `ConfigError`."""
    if held := describe_folder(path):
        raise ConfigError(
            f"{str(path)!r} cannot be filled: {held}; name a folder that is not there"
        )
    contents = folder_contents(seed)
    for folder in FOLDERS:
        (path / folder).mkdir(parents=True)
    for name, text in contents.files.items():
        (path / name).write_bytes(text.encode())
    connection = sqlite3.connect(path / DATABASE)
    try:
        connection.execute("CREATE TABLE people (name TEXT, city TEXT, birthday TEXT, phone TEXT)")
        connection.execute("CREATE TABLE orders (person TEXT, item TEXT, amount REAL, day TEXT)")
        connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", contents.people)
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", contents.orders)
        connection.commit()
    finally:
        connection.close()
    return contents


@cache
def _words() -> Mapping[str, Any]:
    text = (files("benchmarks.orchestration.kit") / "words.json").read_text(encoding="utf-8")
    return json.loads(text)


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _notes(random: Random, kinds: Mapping[str, Sequence[str]]) -> dict[str, str]:
    months = sorted(random.sample(range(len(_MONTHS)), random.randint(1, 3)))
    meetings = [f"meeting-{_MONTHS[month]}" for month in months]
    more = random.sample(["ideas", "books", "garden"], random.randint(1, 3))
    texts: dict[str, str] = {}
    for name in [*meetings, "shopping", "packing", "poem", "todo", *more]:
        lines = kinds[name.partition("-")[0]]
        drawn = random.sample(lines, random.randint(min(4, len(lines)), min(12, len(lines))))
        if name == "poem":
            drawn.sort(key=lines.index)
        elif drawn == sorted(drawn, key=str.casefold):
            drawn.reverse()
        texts[f"notes/{name}.txt"] = _lines(drawn)
    return texts


def _invoices(random: Random, items: Sequence[str]) -> dict[str, str]:
    numbers = random.sample(range(1001, 1100), random.randint(5, 9))
    texts: dict[str, str] = {}
    for number in sorted(numbers):
        bought = random.sample(items, random.randint(2, 5))
        lines = [f"{item},{random.randint(1, 20)},{_price(random, 50, 4000)}" for item in bought]
        texts[f"invoices/invoice-{number}.csv"] = _lines(lines)
    return texts


def _price(random: Random, least: int, most: int) -> str:
    return f"{random.randint(least, most) / 100:.2f}"


def _logs(random: Random, logs: Mapping[str, Any], today: date) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, messages in logs.items():
        count = random.randint(8, 16)
        # Each log has something to worry about.
        levels = ["WARN", "ERROR"] if name == "server" else ["WARN"]
        levels += random.choices(("INFO", "WARN", "ERROR"), (8, 2, 1), k=count - len(levels))
        random.shuffle(levels)
        minutes = sorted(random.sample(range(9 * 24 * 60), count))
        begin = today - timedelta(days=9)
        lines = [
            f"{begin + timedelta(days=minute // 1440)} {_clock(minute % 1440)} {level} "
            f"{random.choice(messages[level])}"
            for minute, level in zip(minutes, levels, strict=True)
        ]
        texts[f"logs/{name}.log"] = _lines(lines)
    return texts


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def _photos(random: Random, pictures: Sequence[str]) -> dict[str, str]:
    first = random.randint(100, 9000)
    numbers = random.sample(range(first, first + 30), random.randint(4, 8))
    named = random.sample(pictures, random.randint(4, 7))
    # Two of each kind at least.
    endings = ["png", "png", *random.choices(("png", "jpg"), k=len(named) - 2)]
    names = [f"IMG_{number:04d}.jpg" for number in numbers]
    names += [f"{name}.{ending}" for name, ending in zip(named, endings, strict=True)]
    return {f"photos/{name}": "" for name in sorted(names)}


def _calendar(random: Random, events: Sequence[str], today: date) -> str:
    """Some days past and most to come, today's never among them."""
    count = random.randint(6, 9)
    days = [*random.sample(range(3, 80), count - 2), -random.randint(1, 9)]
    days.append(random.choice(days))  # two on one day
    slots = [8 * 60 + 15 * step for step in random.sample(range(48), count)]
    when = sorted(zip(days, slots, strict=True))
    chosen = random.sample(events, count)
    return _lines(
        [
            f"{today + timedelta(days=day)} {_clock(minute)} {event}"
            for (day, minute), event in zip(when, chosen, strict=True)
        ]
    )


def _people(random: Random, words: Mapping[str, Any]) -> tuple[Person, ...]:
    count = random.randint(8, 12)
    first = random.sample(words["first_names"], count)
    names = [f"{name} {random.choice(words['last_names'])}" for name in first]
    if random.random() < 0.4:
        names[-1] = names[0]  # two people of one name
    cities = random.sample(words["cities"], random.randint(4, 6))
    lives = [*cities[:3], *random.choices(cities, k=count - 3)]
    phones = random.sample(range(1000, 10000), count)
    born = [date(1945, 1, 1) + timedelta(days=random.randrange(21900)) for _ in range(count)]
    rows = zip(names, lives, born, phones, strict=True)
    return tuple(Person(n, city, str(day), f"0155 555-{phone}") for n, city, day, phone in rows)


def _orders(
    random: Random, items: Sequence[str], people: Sequence[Person], today: date
) -> tuple[Order, ...]:
    names = sorted({person.name for person in people})
    buyers = random.sample(names, random.randint(4, min(7, len(names))))
    who = [*buyers, *random.choices(buyers, k=random.randint(10, 20))]
    random.shuffle(who)
    ago = sorted((random.randint(2, 300) for _ in who), reverse=True)
    return tuple(
        Order(
            name,
            random.choice(items),
            random.randint(300, 25000) / 100,
            str(today - timedelta(day)),
        )
        for name, day in zip(who, ago, strict=True)
    )


def _pages(random: Random, words: Mapping[str, Any], homes: Sequence[str]) -> dict[str, str]:
    """The weather of some cities: where people live, one city of theirs left out, and of others."""
    lived = sorted(set(homes))
    others = [city for city in words["cities"] if city not in lived]
    covered = [*random.sample(lived, len(lived) - 1), *random.sample(others, random.randint(1, 3))]
    pages = {f"/weather/{city}": _weather(random, city, words["skies"]) for city in sorted(covered)}
    sold = random.sample(words["groceries"], random.randint(6, 9))
    pages["/prices"] = _lines([f"{item} {_price(random, 60, 950)}" for item in sold])
    pages["/news"] = _lines(random.sample(words["headlines"], 5))
    return pages


def _weather(random: Random, city: str, skies: Sequence[str]) -> str:
    sky = random.choice(skies)
    degrees = random.randint(-5, 1) if "snow" in sky else random.randint(3, 32)
    return f"{city}: {degrees} degrees, {sky}"
