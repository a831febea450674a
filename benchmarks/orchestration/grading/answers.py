"""Graders of the requests that want an answer and no change: does it say what is so?

All of them are wrong where anything has changed, where there is no answer, and where the answer
lists lines of files and pages that were not asked about. Each docstring says what else is wrong,
and what would be taken for right although it is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import date, timedelta

from benchmarks.orchestration.grading.case import Case, CaseGrader, only_answered
from benchmarks.orchestration.grading.facts import (
    WEEKDAYS,
    dates_in,
    lines_of,
    number_fault,
    numbers_in,
    says,
    says_file,
    weekdays_in,
)
from benchmarks.orchestration.grading.names import TIP, calendar, orders_of, person_of
from benchmarks.orchestration.kit.contents import CALENDAR
from benchmarks.orchestration.kit.text_tools import count_words, extract_numbers

CENT = 0.005
_PROBLEMS = ("WARN", "ERROR")


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _lack(case: Case, wanted: Iterable[str]) -> str:
    """Why an answer does not hold all these lines."""
    answer = _squeezed(case.answer)
    lacking = [line for line in wanted if _squeezed(line) not in answer]
    return f"the answer lacks {lacking[0]!r}" if lacking else ""


def _page(case: Case, city: str) -> str:
    return case.folder.pages[f"/weather/{city}"]


def _sky_fault(case: Case, city: str) -> str:
    """Why an answer does not tell the sky of a city, or tells several."""
    skies = {
        page.rpartition(", ")[2] for page in case.folder.pages.values() if " degrees, " in page
    }
    wanted = _page(case, city).rpartition(", ")[2]
    if not says(case.answer, wanted):
        return f"the answer does not tell of {wanted!r}"
    others = sorted(sky for sky in skies - {wanted} if says(case.answer, sky))
    return f"the answer tells of {others[0]!r} too" if others else ""


def _degrees(case: Case, city: str) -> float:
    return float(extract_numbers(text=_page(case, city))[0])


def _weather_fault(case: Case, city: str) -> str:
    """Why an answer does not tell degrees and sky of a city."""
    if _degrees(case, city) not in numbers_in(case.answer):
        return f"the answer does not give {_degrees(case, city):g} degrees"
    return _sky_fault(case, city)


def r01(case: Case) -> str:
    """The answer has every line of the note in their order. All notes at once are a listing."""
    text = case.text(f"notes/{case.names['note']}")
    answer, place = _squeezed(case.answer), 0
    for line in map(_squeezed, lines_of(text)):
        place = answer.find(line, place)
        if place < 0:
            return f"the answer lacks {line!r} in its place"
    return only_answered(case, [text])


def r02(case: Case) -> str:
    """The answer gives the kilometres to one decimal; the miles beside them are no other number."""
    miles = float(case.names["miles"])
    return only_answered(case) or number_fault(case.answer, miles * 1.609344, 0.05, [miles])


def r04(case: Case) -> str:
    """The answer tells the city's sky, or says yes where it rains. A bare yes is therefore right
    for the third of the cities where it does: compare several seeds."""
    city = case.names["city"]
    fault = only_answered(case, [_page(case, city)])
    yes, no = says(case.answer, "yes"), says(case.answer, "no")
    if not fault and "rain" in _page(case, city) and yes and not no:
        return ""
    return fault or _sky_fault(case, city)


def r05(case: Case) -> str:
    """The answer names the person with the greatest sum and no other person: whoever lists all
    buyers leaves the question open."""
    sums: dict[str, float] = {}
    for order in case.folder.orders:
        sums[order.person] = sums.get(order.person, 0.0) + order.amount
    best = {name for name, total in sums.items() if total > max(sums.values()) - CENT}
    named = {row.name for row in case.folder.people if says(case.answer, row.name)}
    if len(named) != 1 or not named <= best:
        return f"the answer names {sorted(named)}, and should name {' or '.join(sorted(best))}"
    return only_answered(case)


def r07(case: Case) -> str:
    """The answer names every png among the photos, no jpg and no file of another folder."""
    photos = case.folder.names("photos")
    wanted = {name for name in photos if name.endswith(".png")}
    for path in sorted(case.before.files):
        name = path.rpartition("/")[2]
        if says_file(case.answer, name) != (name in wanted):
            return f"the answer {'lacks' if name in wanted else 'names'} {name}"
    if not wanted and not any(says(case.answer, word) for word in ("no", "none", "[]")):
        return "the answer does not say that there are none"
    return only_answered(case)


def r08(case: Case) -> str:
    """The answer gives the share to two decimals. The numbers on the way to it may stand there; the
    names are chosen so that none of them is the share."""
    n, bill = int(case.names["n"]), float(case.names["bill"])
    way = [n, bill, 15, TIP, bill * 0.15, bill * TIP, bill / n]
    return only_answered(case) or number_fault(case.answer, bill * TIP / n, CENT, way)


def r10(case: Case) -> str:
    """The answer gives the reduced total; the full total and the amounts of the person's orders may
    stand beside it, and alone are wrong."""
    amounts = [order.amount for order in orders_of(case.folder, case.names["person"])]
    total = sum(amounts)
    known = [*amounts, total, total * 0.1, 10, 0.9, 90]
    return only_answered(case) or number_fault(case.answer, total * 0.9, CENT, known)


def r12(case: Case) -> str:
    """The answer has every line of the two logs that is a warning or an error, or its message; each
    log has some. Both logs in full are right, since no tool picks lines out; with the third log
    they are a listing."""
    logs = [case.text(f"logs/{name}.log") for name in ("server", "backup")]
    answer = _squeezed(case.answer)
    for line in (line for log in logs for line in lines_of(log)):
        level, message = line.split(" ", 3)[2:]
        if level in _PROBLEMS and message not in answer:
            return f"the answer lacks {line!r}"
    return only_answered(case, logs)


def r14(case: Case) -> str:
    """The answer gives the sum; the prices may stand beside it, and alone are wrong."""
    page = case.folder.pages["/prices"]
    prices = [float(number) for number in extract_numbers(text=page)]
    return only_answered(case, [page]) or number_fault(case.answer, sum(prices), CENT, prices)


def r15(case: Case) -> str:
    """The answer tells degrees and sky of the city that the person lives in, and of no other."""
    person = person_of(case.folder, case.names["person"])
    page = _page(case, person.city)
    return only_answered(case, [page], person) or _weather_fault(case, person.city)


def r16(case: Case) -> str:
    """The answer gives the days since the last order. Dates are no numbers, so that they alone are
    wrong; a list of the days since every order is one of many numbers."""
    last = max(order.day for order in orders_of(case.folder, case.names["person"]))
    days = (case.folder.today - date.fromisoformat(last)).days
    return only_answered(case) or number_fault(case.answer, days, 0)


def r18(case: Case) -> str:
    """The answer gives the days until the event; its date, or another event's line, is wrong."""
    days = (date.fromisoformat(case.names["date"]) - case.folder.today).days
    (event,) = (e for e in calendar(case.folder) if e.text == case.names["event"])
    known = [abs(days) // 7, abs(days) % 7]
    # An event that is past may be told as so many days ago.
    wanted = -days if days < 0 and -days in numbers_in(case.answer) else days
    return only_answered(case, [" ".join(event)]) or number_fault(case.answer, wanted, 0, known)


def r20(case: Case) -> str:
    """The answer gives the date, and its day of the week or whether it is a weekend. Today's date
    and day may stand beside them; with other days it is a list, and a bare yes or no beside the
    right date is a guess that is right half the time: it counts where it is right."""
    due = case.folder.today + timedelta(days=int(case.names["days"]))
    dates = dates_in(case.answer, due.year)
    today = (case.folder.today.month, case.folder.today.day)
    if due not in dates or any((d.month, d.day) != today for d in dates - {due}):
        return f"the answer gives {sorted(map(str, dates))}, and should give {due}"
    right, named = WEEKDAYS[due.weekday()], weekdays_in(case.answer)
    if right not in named and not named:
        weekend = due.weekday() >= 5
        if _says_weekend(case.answer) is not weekend:
            return f"the answer does not say that it is a {right}, or whether that is a weekend"
    elif right not in named or not named <= {right, WEEKDAYS[case.folder.today.weekday()]}:
        return f"the answer names {sorted(named)}, and should name {right}"
    return only_answered(case)


def _says_weekend(answer: str) -> bool | None:
    """Whether an answer says that it is a weekend; None where it says neither."""
    no = any(says(answer, word) for word in ("no", "not", "isn't", "doesn't", "weekday"))
    yes = says(answer, "yes") or says(answer, "weekend")
    return None if not (yes or no) or (says(answer, "yes") and no) else not no


def r21(case: Case) -> str:
    """The answer has the day, the headlines, the city's weather, and every event of the calendar
    with its date. The calendar has no event today, so that it does not give the day away; other
    pages and files with them are a listing."""
    city, today = case.names["city"], case.folder.today
    news, page = case.folder.pages["/news"], _page(case, case.names["city"])
    dates = dates_in(case.answer, today.year)
    if today not in dates and WEEKDAYS[today.weekday()] not in weekdays_in(case.answer):
        return "the answer does not say what day it is"
    if fault := _lack(case, lines_of(news)) or _weather_fault(case, city):
        return fault
    for event in calendar(case.folder):
        if not says(case.answer, event.text) or date.fromisoformat(event.date) not in dates:
            return f"the answer lacks {' '.join(event)!r}"
    return only_answered(case, [news, page, case.text(CALENDAR)])


def r24(case: Case) -> str:
    """The answer gives the degrees in Fahrenheit; those in Celsius may stand beside them, and alone
    are wrong."""
    person = person_of(case.folder, case.names["person"])
    page, celsius = _page(case, person.city), _degrees(case, person.city)
    fahrenheit = celsius * 1.8 + 32
    return only_answered(case, [page], person) or number_fault(
        case.answer, fahrenheit, 0.5, [celsius]
    )


def r25(case: Case) -> str:
    """The answer gives the sum of the two counts; each count, and the texts, may stand beside it.
    What the answer has of one note alone is wrong."""
    texts = [case.text(f"notes/{case.names[key]}") for key in ("note_a", "note_b")]
    counts = [count_words(text=text) for text in texts]
    known = [*counts, *(number for text in texts for number in numbers_in(text))]
    return only_answered(case, texts) or number_fault(case.answer, sum(counts), 0, known)


def r28(case: Case) -> str:
    """The answer gives the weeks, whole or with decimals; the days may stand beside them, and alone
    are wrong."""
    person = person_of(case.folder, case.names["person"])
    days = (case.folder.today - date.fromisoformat(person.birthday)).days
    weeks = days / 7
    forms = (math.floor(weeks), round(weeks))
    near = 0.0 if any(form in numbers_in(case.answer) for form in forms) else 0.05
    wanted = next((form for form in forms if form in numbers_in(case.answer)), weeks)
    known = [days, 7, weeks, days % 7]
    return only_answered(case, [], person) or number_fault(case.answer, wanted, near, known)


GRADERS: Mapping[str, CaseGrader] = {
    grader.__name__: grader
    for grader in (
        *(r01, r02, r04, r05, r07, r08, r10, r12, r14),
        *(r15, r16, r18, r20, r21, r24, r25, r28),
    )
}
"""By the id of the request."""
