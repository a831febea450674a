"""The folder of a seed: its layout, the same bytes each time, and what the requests count on."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from tutelage.errors import ConfigError
from tutelage.orchestration.kit import folder_contents, make_folder


def everything(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_seed_gives_the_same_bytes_each_time_and_another_one_others(tmp_path: Path) -> None:
    first, again, other = (tmp_path / name for name in ("first", "again", "other"))
    contents = make_folder(first, 4)
    assert make_folder(again, 4) == contents == folder_contents(4)
    make_folder(other, 5)
    assert everything(first) == everything(again)
    changed = everything(first).items() ^ everything(other).items()
    assert {"calendar.txt", "people.db"} <= {path for path, _ in changed}
    assert {*everything(first)} == {*contents.files, "people.db"}


@pytest.mark.parametrize("seed", range(20))
def test_the_layout_is_the_one_that_the_requests_were_written_for(seed: int) -> None:
    folder = folder_contents(seed)
    notes, photos = folder.names("notes"), folder.names("photos")
    assert 6 <= len(notes) <= 10
    assert {"shopping.txt", "todo.txt", "packing.txt", "poem.txt"} <= {*notes}
    assert all(3 <= len(folder.files[f"notes/{name}"].splitlines()) <= 12 for name in notes)
    assert 5 <= len(folder.names("invoices")) <= 9
    for name in folder.names("invoices"):
        for line in folder.files[f"invoices/{name}"].splitlines():
            assert re.fullmatch(r"\w+,\d+,\d+\.\d\d", line)
    assert folder.names("logs") == ["backup.log", "door.log", "server.log"]
    for name in folder.names("logs"):
        lines = folder.files[f"logs/{name}"].splitlines()
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d [A-Z]+ .+", line) for line in lines)
        assert any(" WARN " in line or " ERROR " in line for line in lines)
    assert 8 <= len(photos) <= 15
    assert {photo.rpartition(".")[2] for photo in photos} == {"jpg", "png"}
    assert all(not folder.files[f"photos/{photo}"] for photo in photos)
    lines = folder.files["calendar.txt"].splitlines()
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d \S.+", line) for line in lines)
    assert any(line[:10] > str(folder.today) for line in lines)
    assert all(line[:10] != str(folder.today) for line in lines)


@pytest.mark.parametrize("seed", range(20))
def test_rows_and_pages_fit_one_another(seed: int) -> None:
    folder = folder_contents(seed)
    assert {order.person for order in folder.orders} <= {person.name for person in folder.people}
    assert all(date.fromisoformat(order.day) < folder.today for order in folder.orders)
    assert len({person.phone for person in folder.people}) == len(folder.people)
    weather = {path.rpartition("/")[2] for path in folder.pages if path.startswith("/weather/")}
    lived = {person.city for person in folder.people}
    assert weather & lived
    assert lived - weather
    for city in weather:
        assert re.fullmatch(rf"{city}: -?\d+ degrees, [a-z ]+", folder.pages[f"/weather/{city}"])
    assert len(folder.pages["/news"].splitlines()) == 5
    prices = folder.pages["/prices"].splitlines()
    assert all(re.fullmatch(r"\w+ \d+\.\d\d", line) for line in prices)


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"cannot be filled: it holds 'mine.txt'"):
        make_folder(tmp_path, 1)
    assert everything(tmp_path) == {"mine.txt": b"mine"}
