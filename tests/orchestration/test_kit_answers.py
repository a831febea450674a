"""Answers in the words of a person: which are right, and which only sound right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
from benchmarks.orchestration.grading.facts import (
    dates_in,
    number_fault,
    numbers_in,
    says,
    says_file,
    weekdays_in,
)
from benchmarks.orchestration.grading.grade import grade
from benchmarks.orchestration.grading.names import calendar, orders_of, person_of
from benchmarks.orchestration.grading.requests import FilledRequest, fill, read_requests
from benchmarks.orchestration.grading.state import FolderState, change_fault, read_state
from benchmarks.orchestration.kit import make_folder

REQUESTS = {request.id: request for request in read_requests()}
SEED = 7

Judge = Callable[[FilledRequest, str], bool]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> FolderState:
    folder = tmp_path_factory.mktemp("kit") / "folder"
    make_folder(folder, SEED)
    return read_state(folder)


@pytest.fixture
def judge(before: FolderState) -> Judge:
    return lambda asked, answer: grade(asked, before, before, answer).right


def of(name: str, **names: str) -> FilledRequest:
    """A request of the seed, with names of the test's own choice."""
    asked = fill(REQUESTS[name], SEED)
    return replace(asked, names={**asked.names, **names})


def test_rain_is_a_yes_and_dry_weather_needs_its_words(judge: Judge) -> None:
    folder = fill(REQUESTS["r04"], SEED).folder
    wet = replace(folder, pages={"/weather/Oslo": "Oslo: 9 degrees, light rain"})
    dry = replace(folder, pages={"/weather/Oslo": "Oslo: 9 degrees, clear sky"})
    rain, sun = (replace(of("r04", city="Oslo"), folder=each) for each in (wet, dry))
    assert judge(rain, "Yes, take one.")
    assert judge(rain, "There will be light rain.")
    assert not judge(rain, "Yes and no.")
    assert not judge(rain, "No.")
    assert judge(sun, "No: clear sky.")
    assert not judge(sun, "Yes.")
    assert not judge(sun, "No.")


def test_the_last_date_is_given_with_its_day_or_whether_it_is_a_weekend(judge: Judge) -> None:
    asked = of("r20", days="30")
    due = asked.folder.today + timedelta(days=30)
    day, other = due.strftime("%A"), (due + timedelta(days=1)).strftime("%A")
    weekend = due.weekday() >= 5
    written = f"{due.day} {due.strftime('%B %Y')}"
    right, wrong = ("yes", "no") if weekend else ("no", "yes")
    assert judge(asked, f"{due}, a {day}.")
    assert judge(asked, f"The last date is {written}: {right}.")
    assert judge(asked, f"From {asked.folder.today} on that is {written}, on a {day}.")
    assert not judge(asked, f"{due}: {wrong}.")
    assert not judge(asked, f"{due}.")
    assert not judge(asked, f"{day}.")
    assert not judge(asked, f"{due}, a {day} or a {other}.")
    assert not judge(asked, f"{due} or {due + timedelta(days=1)}, a {day}.")
    if not weekend:
        assert judge(asked, f"{due}, which is not on a weekend.")
        assert judge(asked, f"{due}, a weekday.")
        assert not judge(asked, f"{due}, on the weekend.")


def test_weeks_are_whole_or_have_decimals(judge: Judge) -> None:
    asked = of("r28")
    person = person_of(asked.folder, asked.names["person"])
    days = (asked.folder.today - date.fromisoformat(person.birthday)).days
    for answer in (f"{days // 7:,}", f"{days / 7:.1f} weeks", f"{days} days, {days / 7:.4f} weeks"):
        assert judge(asked, answer), answer
    for answer in (f"{days} days", f"{days // 7 + 2}", f"{person.birthday}"):
        assert not judge(asked, answer), answer


def test_one_buyer_is_named_and_no_other(judge: Judge) -> None:
    asked = of("r05")
    names = {order.person for order in asked.folder.orders}
    sums = {n: sum(order.amount for order in orders_of(asked.folder, n)) for n in names}
    best, second = sorted(names, key=lambda name: -sums[name])[:2]
    assert judge(asked, f"{best}, with {sums[best]:.2f} in all.")
    assert not judge(asked, second)
    assert not judge(asked, f"{best} or {second}")


def test_warnings_may_be_told_by_their_messages_alone(judge: Judge, before: FolderState) -> None:
    asked = of("r12")
    lines = [
        line.split(" ", 3)
        for name in ("server", "backup")
        for line in (before.text(f"logs/{name}.log") or "").splitlines()
    ]
    messages = sorted({message for _, _, level, message in lines if level != "INFO"})
    assert judge(asked, "; ".join(messages))
    assert not judge(asked, "; ".join(messages[1:]))
    assert not judge(asked, "Nothing to worry about.")


def test_the_days_until_an_event_are_a_number(judge: Judge) -> None:
    asked = of("r18")
    days = (date.fromisoformat(asked.names["date"]) - asked.folder.today).days
    assert judge(asked, f"{days} days, that is {days // 7} weeks and {days % 7} days.")
    assert not judge(asked, f"Until {asked.names['date']}.")
    assert not judge(asked, f"{days + 1} days")
    other = next(e for e in calendar(asked.folder) if e.text != asked.names["event"])
    assert not judge(asked, f"{days} days; and there is {' '.join(other)}")


def test_fahrenheit_is_right_to_a_degree_and_celsius_is_wrong(judge: Judge) -> None:
    asked = of("r24")
    city = person_of(asked.folder, asked.names["person"]).city
    celsius = int(asked.folder.pages[f"/weather/{city}"].split()[1])
    fahrenheit = celsius * 1.8 + 32
    assert judge(asked, f"{fahrenheit:.1f}")
    assert judge(asked, f"It is {celsius} degrees, which makes about {round(fahrenheit)}°F.")
    assert not judge(asked, f"{celsius} degrees")
    assert not judge(asked, f"{fahrenheit + 1:.1f}")


def test_old_names_of_photos_may_be_told_and_other_files_not(
    before: FolderState, tmp_path: Path
) -> None:
    asked, folder = of("r29"), tmp_path / "folder"
    make_folder(folder, SEED)
    for k, key in enumerate("abc", 1):
        old = folder / "photos" / asked.names[f"photo_{key}"]
        old.rename(old.with_name(f"party-{k}.{asked.names[f'ext_{key}']}"))
    after = read_state(folder)
    names = ", ".join(path.name for path in (folder / "photos").iterdir())
    assert grade(asked, before, after, names).right
    assert grade(asked, before, after, f"{asked.names['photo_a']} is renamed: {names}").right
    assert not grade(asked, before, after, f"{names}, calendar.txt").right
    assert not grade(asked, before, after, names.rpartition(",")[0]).right


# ------------------------------------------------------------ what graders read in an answer


DAY = date(2026, 5, 14)


@pytest.mark.parametrize(
    "text",
    [
        "It is 2026-05-14.",
        "on 14 May 2026",
        "May 14, 2026",
        "the 14th of May",
        "May 14th",
        "Thursday, 14. May",
        '["2026-05-14"]',
    ],
)
def test_a_date_is_read_however_it_is_written(text: str) -> None:
    assert dates_in(text, 2026) == {DAY}
    assert numbers_in(text) == []


@pytest.mark.parametrize("text", ["2026-13-40", "May", "32 May", "14", "12026-05-14"])
def test_what_is_no_date_is_none(text: str) -> None:
    assert dates_in(text, 2026) == set()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It costs $1,234.50, or 3.20.", [1234.5, 3.2]),
        ("-3 degrees, 14°C, 57.2F", [-3, 14, 57.2]),
        ("[3.2, 4, 5]", [3.2, 4, 5]),
        ("IMG_0412.jpg, invoice-1041.csv, party-1.png at 09:30", []),
        ("5-7 days", [5]),
    ],
)
def test_numbers_are_those_of_no_name_time_or_date(text: str, numbers: list[float]) -> None:
    assert numbers_in(text) == numbers


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("51 days", True),
        ("It was on 2026-01-12, so 51 days.", True),
        ("50 days", False),
        ("", False),
        ("notes-51.txt", False),
        ("1, 2, 3 or 51", True),
        ("1, 2, 3, 4 or 51", False),
        ("10 20 51 of 30", True),
        ("10 20 30 40 51, but 10 and 20 are known", True),
    ],
)
def test_a_number_counts_unless_it_is_one_of_many(answer: str, right: bool) -> None:
    assert (number_fault(answer, 51, 0, [10, 20]) == "") is right


def test_a_number_counts_within_its_tolerance() -> None:
    assert number_fault("57", 57.2, 0.5) == ""
    assert number_fault("56", 57.2, 0.5) != ""
    assert number_fault("23.405", 23.4, 0.005) == ""


def test_names_are_whole_words() -> None:
    assert says("Ana\nMoreau, too", "ana moreau")
    assert not says("Mariana Moreau", "Ana Moreau")
    assert says_file("['photos/a.png']", "a.png")
    assert not says_file("data.png", "a.png")
    assert not says_file("a.png.bak", "a.png")
    assert says_file("It is a.png.", "a.png")
    assert weekdays_in("on Fridays, not monday") == {"Friday", "Monday"}


def test_a_state_sees_files_links_empty_folders_and_rows(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    make_folder(folder, 1)
    before = read_state(folder)
    assert change_fault(before, read_state(folder)) == ""
    (folder / "empty").mkdir()
    assert change_fault(before, read_state(folder)) == "empty/ is new"
    (folder / "empty").rmdir()
    (folder / "notes" / "link").symlink_to("todo.txt")
    assert change_fault(before, read_state(folder)) == "notes/link is new"
    (folder / "notes" / "link").unlink()
    (folder / "people.db").write_bytes(b"broken")
    assert change_fault(before, read_state(folder)) == "people.db is new"
    (folder / "people.db").unlink()
    assert "rows" in change_fault(before, read_state(folder))
