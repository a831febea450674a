"""What of a folder fills the placeholders of each request, as `names` of its row says in words.

Each function draws among all that fits. A draw whose right answer could be read off the sentence,
or off another number that an answer may well repeat, is not taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from benchmarks.orchestration.kit import FolderContents
from benchmarks.orchestration.kit.contents import CALENDAR, Order, Person

T = TypeVar("T")
Names = dict[str, str]
DAYS_TO_PAY = (14, 30, 45, 60, 90)
TIP = 1.15


class CannotFillError(Exception):
    """Raised where a folder has nothing that fits; the message says what it lacks."""


class Event(NamedTuple):
    """A line of the calendar."""

    date: str
    time: str
    text: str


def names_for(request: str, folder: FolderContents, random: Random) -> Names:
    """The names of a request, by placeholder. Raises `CannotFillError`."""
    return _NAMES[request](folder, random)


def calendar(folder: FolderContents) -> list[Event]:
    """The lines of the calendar."""
    return [Event(*line.split(" ", 2)) for line in folder.files[CALENDAR].splitlines()]


def person_of(folder: FolderContents, name: str) -> Person:
    """The row of the person of a name that occurs once."""
    (person,) = (row for row in folder.people if row.name == name)
    return person


def orders_of(folder: FolderContents, name: str) -> list[Order]:
    """The orders of a person, in the order of their rows."""
    return [order for order in folder.orders if order.person == name]


def _pick(random: Random, choices: Sequence[T], lack: str) -> T:
    if not choices:
        raise CannotFillError(f"the folder of this seed has {lack}")
    return random.choice(choices)


def _note(folder: FolderContents, random: Random, best: str) -> str:
    """A note, of the best kind where there is one."""
    notes = folder.names("notes")
    return _pick(random, [n for n in notes if n.startswith(best)] or notes, "no notes")


def _once(folder: FolderContents) -> list[Person]:
    names = [person.name for person in folder.people]
    return [person for person in folder.people if names.count(person.name) == 1]


def _nothing(folder: FolderContents, random: Random) -> Names:
    return {}


def _meeting(folder: FolderContents, random: Random) -> Names:
    return {"note": _note(folder, random, "meeting")}


def _miles(folder: FolderContents, random: Random) -> Names:
    return {"miles": str(random.randint(2, 300))}


def _photo(folder: FolderContents, random: Random) -> Names:
    return {"photo": _pick(random, folder.names("photos"), "no photos")}


def _weather_city(folder: FolderContents, random: Random) -> Names:
    cities = [path.rpartition("/")[2] for path in folder.pages if path.startswith("/weather/")]
    return {"city": _pick(random, cities, "no page of the weather")}


def _invoice(folder: FolderContents, random: Random) -> Names:
    return {"invoice": _pick(random, folder.names("invoices"), "no invoices")}


def _dinner(folder: FolderContents, random: Random) -> Names:
    while True:
        n, bill = random.randint(3, 8), random.randint(4000, 30000) / 100
        share = bill * TIP / n
        # What each owes is none of the numbers on the way to it.
        if all(abs(share - k) > 0.5 for k in (n, bill, 15, bill * TIP, bill * 0.15, bill / n)):
            return {"n": str(n), "bill": f"{bill:.2f}"}


def _unsorted(folder: FolderContents, random: Random) -> Names:
    unsorted = [
        name
        for name in folder.names("notes")
        if (lines := folder.files[f"notes/{name}"].splitlines()) != sorted(lines, key=str.casefold)
    ]
    best = [name for name in unsorted if name.startswith("shopping")]
    return {"note": _pick(random, best or unsorted, "no note that is not sorted")}


def _discount(folder: FolderContents, random: Random) -> Names:
    buyers = sorted({order.person for order in folder.orders})
    amounts = {name: [order.amount for order in orders_of(folder, name)] for name in buyers}
    fit = [n for n in buyers if all(abs(0.9 * sum(amounts[n]) - a) > 0.02 for a in amounts[n])]
    return {"person": _pick(random, fit, "no person with orders")}


def _purchase(folder: FolderContents, random: Random) -> Names:
    person = _pick(random, _once(folder), "no person whose name occurs once")
    items = sorted({order.item for order in folder.orders})
    amount = f"{random.randint(100, 30000) / 100:.2f}"
    return {"person": person.name, "item": _pick(random, items, "no orders"), "amount": amount}


def _done(folder: FolderContents, random: Random) -> Names:
    note = _note(folder, random, "todo")
    text = folder.files[f"notes/{note}"]
    lines = [line for line in text.splitlines() if line.strip() and text.count(line) == 1]
    return {"note": note, "line": _pick(random, lines, f"no line in {note} that occurs once")}


def _caller(folder: FolderContents, random: Random) -> Names:
    fit = [person.name for person in _once(folder) if f"/weather/{person.city}" in folder.pages]
    return {"person": _pick(random, fit, "no person whose city has a page of the weather")}


def _buyer(folder: FolderContents, random: Random) -> Names:
    return {"person": _pick(random, sorted({o.person for o in folder.orders}), "no orders")}


def _coming(folder: FolderContents, random: Random) -> Names:
    events = calendar(folder)
    later = [event for event in events if event.date > str(folder.today)]
    event = _pick(random, later or events, "an empty calendar")
    return {"event": event.text, "date": event.date}


def _visit(folder: FolderContents, random: Random) -> Names:
    return {"city": _pick(random, sorted({p.city for p in folder.people}), "no people")}


def _days(folder: FolderContents, random: Random) -> Names:
    return {"days": str(random.choice(DAYS_TO_PAY))}


def _moved(folder: FolderContents, random: Random) -> Names:
    text = folder.files[CALENDAR]
    fit = [event for event in calendar(folder) if text.count(event.date) == 1]
    event = _pick(random, fit, "no day of the calendar that occurs once")
    return {"event": event.text, "date": event.date}


def _two_notes(folder: FolderContents, random: Random) -> Names:
    notes = folder.names("notes")
    if len(notes) < 2:
        raise CannotFillError("the folder of this seed has fewer than two notes")
    first, second = random.sample(notes, 2)
    return {"note_a": first, "note_b": second}


def _mistake(folder: FolderContents, random: Random) -> Names:
    fit: list[tuple[str, str]] = []
    for name in folder.names("invoices"):
        text = folder.files[f"invoices/{name}"]
        items = [line.split(",")[0] for line in text.splitlines()]
        fit += [(name, item) for item in items if text.count(item) == 1 and item != "staplers"]
    invoice, item = _pick(random, fit, "no invoice with an item that occurs once")
    return {"invoice": invoice, "item": item}


def _stand_in(folder: FolderContents, random: Random) -> Names:
    fit: list[tuple[str, str]] = []
    for name in folder.names("notes"):
        text = folder.files[f"notes/{name}"]
        words = sorted(set(re.findall(r"\b[A-Za-z]{4,}\b", text)))
        fit += [(name, w) for w in words if text.casefold().count(w.casefold()) == 1]
    note, word = _pick(random, fit, "no note with a word that occurs once")
    person = _pick(random, _once(folder), "no person whose name occurs once")
    return {"note": note, "word": word, "person": person.name}


def _alive(folder: FolderContents, random: Random) -> Names:
    return {"person": _pick(random, _once(folder), "no person whose name occurs once").name}


def _party(folder: FolderContents, random: Random) -> Names:
    photos = folder.names("photos")
    if len(photos) < 3:
        raise CannotFillError("the folder of this seed has fewer than three photos")
    chosen = random.sample(photos, 3)
    names = {f"photo_{key}": photo for key, photo in zip("abc", chosen, strict=True)}
    endings = {f"ext_{k}": photo.rpartition(".")[2] for k, photo in zip("abc", chosen, strict=True)}
    return {**names, **endings}


def _cancelled(folder: FolderContents, random: Random) -> Names:
    text = folder.files[CALENDAR]
    fit = [event for event in calendar(folder) if text.count(" ".join(event)) == 1]
    event = _pick(random, fit, "no line of the calendar that occurs once")
    return {"event": event.text, "date": event.date, "time": event.time}


_NAMES: Mapping[str, Callable[[FolderContents, Random], Names]] = {
    **{f"r{k:02d}": _nothing for k in (5, 7, 12, 14, 17, 23)},
    **{"r01": _meeting, "r02": _miles, "r03": _photo, "r04": _weather_city, "r06": _invoice},
    **{"r08": _dinner, "r09": _unsorted, "r10": _discount, "r11": _purchase, "r13": _done},
    **{"r15": _caller, "r16": _buyer, "r18": _coming, "r19": _visit, "r20": _days},
    **{"r21": _weather_city, "r22": _moved, "r24": _caller, "r25": _two_notes, "r26": _mistake},
    **{"r27": _stand_in, "r28": _alive, "r29": _party, "r30": _cancelled},
}
