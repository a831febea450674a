"""What graders read in an answer: dates, numbers, names, whatever words stand around them."""

from __future__ import annotations

from datetime import date
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
from benchmarks.orchestration.grading.state import change_fault, read_state
from benchmarks.orchestration.kit import make_folder

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
