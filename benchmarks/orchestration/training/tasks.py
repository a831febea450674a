"""Requests over the kit of tools for training, each with a plan that is right.

`requests.json` and the files of `families/` have sentences and plans with placeholders, which are
filled from the folder of a seed. Their writers had not seen the requests of `../requests` nor those
of the stranger in `../requests`, and share no five words in a row with either, which a test
holds. A task is graded by what its own plan brings about (`agent.py`); a demonstration is the
request as the planner asks it, with that plan for the reply. The stranger's requests are the test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.orchestration.kit import FolderContents, folder_contents
from benchmarks.orchestration.kit.contents import CALENDAR

from tutelage.seeds import SeedTree

HERE = Path(__file__).parent
FILES = (HERE / "requests.json", *sorted(HERE.glob("families/*.json")))
STRANGER = [HERE.parent / "requests" / f"stranger_{half}.jsonl" for half in ("looked", "kept")]
STRANGERS_SEED = 2
_UNITS = (("km", "miles"), ("kg", "pounds"), ("hours", "minutes"), ("meters", "feet"))
_PHRASES = ("bring cake", "call Owen back", "water the tomatoes", "the code is 7731", "back at six")
_WORDS = ("maple", "harbour", "lantern", "copper", "violet", "meadow", "signal", "cedar", "amber")


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """A request over the folder of a seed, and the nodes of a plan that is right."""

    family: str
    sentence: str
    seed: int
    nodes: list[dict[str, Any]]

    @property
    def plan(self) -> str:
        """The plan as a planner writes it."""
        return json.dumps({"nodes": self.nodes}, ensure_ascii=False)


def families() -> list[dict[str, Any]]:
    """The sentences and plans, not filled."""
    return [each for file in FILES for each in json.loads(file.read_text(encoding="utf-8"))]


def requests(first: int, count: int) -> Iterator[TrainingRequest]:
    """`count` requests, family after family, each over a folder of its own: `first` and the seeds
    that follow it."""
    known = families()
    for number in range(count):
        family, seed = known[number % len(known)], first + number
        rng = SeedTree(seed).child("training-requests").python()
        names = _names(folder_contents(seed), rng)
        sentence = rng.choice(family["sentences"])
        yield TrainingRequest(
            family["family"], str(_filled(sentence, names)), seed, _filled(family["nodes"], names)
        )


def _names(folder: FolderContents, rng: Random) -> dict[str, str | int]:
    note = f"notes/{rng.choice(folder.names('notes'))}"
    photo = rng.choice(folder.names("photos"))
    cities = sorted(page.rpartition("/")[2] for page in folder.pages if "/weather/" in page)
    day = folder.today + timedelta(days=rng.randrange(-60, 60))
    words = [w for line in folder.files[note].split("\n") for w in re.findall(r"\w{4,}", line)]
    unit, unit2 = rng.choice(_UNITS)
    people = sorted({person.name for person in folder.people})
    born = date(1950, 1, 1) + timedelta(days=rng.randrange(20_000))
    return {
        "note": note,
        "log": f"logs/{rng.choice(folder.names('logs'))}",
        "folder": rng.choice(("notes", "invoices", "logs", "photos")),
        "ending": rng.choice(("csv", "log", "png", "jpg", "txt")),
        "city": rng.choice(cities),
        "word": rng.choice(words),
        "other": rng.choice(_WORDS),
        "phrase": rng.choice(_PHRASES),
        "date": str(day),
        "later": str(day + timedelta(days=rng.randrange(5, 200))),
        "n": rng.randrange(2, 90),
        "m": rng.randrange(11, 400),
        "k": rng.randrange(11, 400),
        "unit": unit,
        "unit2": unit2,
        "photo": f"photos/{photo}",
        "photo_name": photo,
        "other_folder": rng.choice(("notes", "invoices", "logs")),
        "person": rng.choice(people),
        "buyer": rng.choice(sorted({order.person for order in folder.orders})),
        "home": rng.choice(sorted({person.city for person in folder.people})),
        "item": rng.choice(sorted({order.item for order in folder.orders})),
        "newcomer": f"{rng.choice(_WORDS).title()} {rng.choice(('Berg', 'Stone', 'Field'))}",
        "born": str(born),
        "phone": f"0155 555-{rng.randrange(1000, 9999)}",
        **_further(folder, rng),
    }


def _further(folder: FolderContents, rng: Random) -> dict[str, str | int]:
    """More names; the second of a pair is another one than the first."""
    notes = rng.sample([name.removesuffix(".txt") for name in folder.names("notes")], 2)
    invoices = rng.sample([name.removesuffix(".csv") for name in folder.names("invoices")], 2)
    logs = rng.sample([name.removesuffix(".log") for name in folder.names("logs")], 2)
    photos = rng.sample(folder.names("photos"), 2)
    cities = sorted(page.rpartition("/")[2] for page in folder.pages if "/weather/" in page)
    event = rng.choice(folder.files[CALENDAR].splitlines()).split(" ", 2)
    met = [name for name in folder.names("notes") if name.startswith("meeting-")]
    meeting = rng.choice(met).removesuffix(".txt")
    names: dict[str, str | int] = {"event_date": event[0], "event": event[2]}
    for key, (one, two) in {
        "note_name": notes,
        "invoice_name": invoices,
        "log_name": logs,
        "file": photos,
        "town": rng.sample(cities, 2),
        "word_a": rng.sample(_WORDS, 2),
        "somebody": rng.sample(sorted({person.name for person in folder.people}), 2),
    }.items():
        names |= {key: one, f"{key}2": two}
    first, second = sorted(rng.sample(range(3, 60), 2))
    return names | {
        "invoice_number": int(str(names["invoice_name"]).rpartition("-")[2]),
        "meeting_name": meeting,
        "month": meeting.removeprefix("meeting-").title(),
        "grocery": rng.choice(folder.pages["/prices"].splitlines()).rpartition(" ")[0],
        "line": rng.choice(folder.files[f"notes/{notes[0]}.txt"].splitlines()),
        "price": f"{rng.randrange(150, 9900) / 100:.2f}",
        "few": first,
        "more": second,
        "year": rng.randrange(1950, 2000),
    }


def _filled(value: Any, names: Mapping[str, str | int]) -> Any:
    """A value with its placeholders filled; one that is a placeholder alone keeps its type."""
    if isinstance(value, str):
        if value[:1] == "{" and value[1:-1] in names:
            return names[value[1:-1]]
        return re.sub(r"\{(\w+)\}", lambda found: str(names[found[1]]), value)
    if isinstance(value, dict):
        return {key: _filled(each, names) for key, each in value.items()}
    return [_filled(each, names) for each in value] if isinstance(value, list) else value


def strangers() -> list[TrainingRequest]:
    """The requests of a stranger, over the folder that they were written for."""
    rows = [json.loads(x) for file in STRANGER for x in file.read_text("utf-8").splitlines()]
    return [
        TrainingRequest(
            f"stranger {number}",
            row["request"],
            STRANGERS_SEED,
            [{"tool": tool, "arguments": arguments} for tool, arguments in row["plan"]],
        )
        for number, row in enumerate(rows)
    ]


def write_tasks(path: Path, requests: Iterable[TrainingRequest]) -> None:
    """Tasks for `agent.py`."""
    with path.open("w", encoding="utf-8") as file:
        for request in requests:
            line = {
                "id": f"{request.family} {request.seed}",
                "question": request.sentence,
                "family": request.family,
                "seed": request.seed,
                "nodes": request.nodes,
            }
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
