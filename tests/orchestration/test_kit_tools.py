"""The twenty tools of the kit: what they return, and what they refuse in which words."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tutelage.orchestration.kit import FolderContents, make_folder, make_tools, serve_pages
from tutelage.tools import execute_tool_calls, resolve_tools
from tutelage.tools.schema import ArgumentError
from tutelage.tools.tool import Tool, ToolError
from tutelage.types import ToolCall

SEED = 5
NAMES = (
    *("list_files", "find_files", "read_file", "write_file", "move_file", "delete_file"),
    *("calculate", "sum_numbers", "convert_units"),
    *("today", "add_days", "days_between", "weekday"),
    *("count_words", "replace_text", "sort_lines", "extract_numbers"),
    *("query_table", "insert_row", "fetch_page"),
)


@pytest.fixture
def contents(tmp_path: Path) -> FolderContents:
    return make_folder(tmp_path / "folder", SEED)


@pytest.fixture
def folder(tmp_path: Path, contents: FolderContents) -> Path:
    return tmp_path / "folder"


@pytest.fixture
def tools(folder: Path) -> dict[str, Tool]:
    return make_tools(folder, "http://127.0.0.1:9", "2026-05-14")


@pytest.fixture
def pages(contents: FolderContents, folder: Path) -> Iterator[dict[str, Tool]]:
    """The tools while the pages are served."""
    with serve_pages(contents) as url:
        yield make_tools(folder, url, contents.today)


def call(tool: Tool, **arguments: Any) -> Any:
    """As a model calls it: arguments as JSON, checked."""
    return tool(**tool.signature.read(json.dumps(arguments)))


def fault(tool: Tool, **arguments: Any) -> str:
    with pytest.raises(ToolError) as raised:
        call(tool, **arguments)
    return str(raised.value)


# ---------------------------------------------------------------- all of them


def test_there_are_twenty_and_those_with_side_effects_say_so(tools: dict[str, Tool]) -> None:
    assert tuple(tools) == NAMES
    assert {name for name, tool in tools.items() if tool.destructive} == {
        "write_file",
        "move_file",
        "delete_file",
        "insert_row",
    }
    for tool in tools.values():
        assert tool.description
        assert all("description" in each for each in tool.parameters["properties"].values())


def test_a_file_of_a_user_has_them_for_the_command_line(tmp_path: Path, folder: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text(
        "from tutelage.orchestration.kit import make_tools\n"
        f"globals().update(make_tools({str(folder)!r}, 'http://127.0.0.1:9', '2026-05-14'))\n"
    )
    found = resolve_tools([f"{file}:{name}" for name in NAMES])
    assert tuple(found) == NAMES
    assert found["today"]() == "2026-05-14"


async def test_results_are_observations_and_errors_plain_sentences(tools: dict[str, Tool]) -> None:
    calls = [
        ToolCall("1", "find_files", '{"pattern": "*.db"}'),
        ToolCall("2", "read_file", '{"path": "../x"}'),
        ToolCall("3", "days_between", '{"first": "2026-05-14", "second": "2026-05-20"}'),
    ]
    found, outside, days = await execute_tool_calls(calls, tools)
    assert (found.text, days.text) == ('["people.db"]', "6")
    assert outside.error == "raised"
    assert outside.text.startswith(
        "Error: '../x' is not a path inside the folder; give one such as"
    )


def test_nothing_of_it_loads_torch() -> None:
    code = "import sys, tutelage.orchestration.kit; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "False", done.stderr


# ---------------------------------------------------------------- files


def test_files_are_listed_found_and_read(tools: dict[str, Tool], contents: FolderContents) -> None:
    assert call(tools["list_files"]) == sorted([*contents.files, "people.db"])
    photos = [f"photos/{name}" for name in contents.names("photos")]
    assert call(tools["list_files"], folder="photos") == photos
    assert call(tools["list_files"], folder="photos/") == photos
    png = [path for path in photos if path.endswith(".png")]
    for pattern in ("*.png", "photos/*.png", "**/*.png"):
        assert call(tools["find_files"], pattern=pattern) == png
    assert call(tools["find_files"], pattern="*.gif") == []
    assert call(tools["read_file"], path="calendar.txt") == contents.files["calendar.txt"]


def test_files_are_written_moved_and_deleted(tools: dict[str, Tool], folder: Path) -> None:
    assert call(tools["write_file"], path="notes/a.txt", text="é\r\nb") == "notes/a.txt"
    assert (folder / "notes/a.txt").read_bytes() == "é\r\nb".encode()
    assert call(tools["read_file"], path="notes/a.txt") == "é\r\nb"
    call(tools["write_file"], path="notes/a.txt", text=["Ana", "Bo"])
    assert (folder / "notes/a.txt").read_text() == "Ana\nBo\n"
    assert call(tools["move_file"], source="notes/a.txt", destination="logs") == "logs/a.txt"
    moved = call(tools["move_file"], source="logs/a.txt", destination="b.txt")
    assert moved == "b.txt"
    assert (folder / "b.txt").read_text() == "Ana\nBo\n"
    assert call(tools["delete_file"], path="b.txt") == "b.txt"
    assert not (folder / "b.txt").exists()


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "notes/../../x", "notes/..", "a\\b", "x\0y", "x" * 400, "é" * 200],
)
def test_a_path_that_leads_out_or_is_none_is_refused(tools: dict[str, Tool], path: str) -> None:
    for name in ("read_file", "delete_file"):
        assert "notes/todo.txt" in fault(tools[name], path=path) or len(path) >= 200
    fault(tools["write_file"], path=path, text="x")
    fault(tools["move_file"], source="calendar.txt", destination=path)
    fault(tools["move_file"], source=path, destination="x.txt")
    fault(tools["list_files"], folder=path)


def test_links_are_neither_followed_nor_listed(
    tools: dict[str, Tool], folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "out").symlink_to(tmp_path)
    (folder / "notes" / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "notes" / "loop").symlink_to(folder / "notes")
    for path in ("out/secret.txt", "notes/link.txt", "notes/loop/todo.txt"):
        for name, more in (("read_file", {}), ("delete_file", {}), ("write_file", {"text": "x"})):
            assert "links are not followed" in fault(tools[name], path=path, **more)
    assert "links" in fault(tools["list_files"], folder="out")
    assert "links" in fault(tools["move_file"], source="calendar.txt", destination="out/c.txt")
    assert not [path for path in call(tools["list_files"]) if "out" in path or "link" in path]
    assert call(tools["find_files"], pattern="secret*") == []
    (folder / "people.db").unlink()
    (folder / "people.db").symlink_to(tmp_path / "secret.txt")
    assert "links" in fault(tools["query_table"], sql="SELECT 1")
    assert (tmp_path / "secret.txt").read_text() == "secret"


def test_what_is_wrong_with_a_file_is_told_with_what_to_do(
    tools: dict[str, Tool], folder: Path
) -> None:
    assert fault(tools["read_file"], path="notes/tood.txt") == (
        "there is no file 'notes/tood.txt'; did you mean 'notes/todo.txt'?"
    )
    assert "list_files names them" in fault(tools["read_file"], path="qqqq")
    assert "query_table" in fault(tools["read_file"], path="people.db")
    assert "is a folder; name a file in it" in fault(tools["delete_file"], path="notes")
    assert "the folders are invoices, logs, notes, photos" in fault(
        tools["write_file"], path="nowhere/a.txt", text="x"
    )
    assert "is not a folder" in fault(tools["list_files"], folder="calendar.txt")
    assert "is there already" in fault(
        tools["move_file"], source="notes/todo.txt", destination="calendar.txt"
    )
    (folder / "big.txt").write_bytes(b"x" * 1_000_001)
    assert "larger than 1,000,000 bytes" in fault(tools["read_file"], path="big.txt")
    assert "1,000,000 bytes" in fault(tools["write_file"], path="b.txt", text="x" * 1_000_001)
    with pytest.raises(ArgumentError):
        call(tools["write_file"], path="b.txt", text=3)


# ---------------------------------------------------------------- computing


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("calculate", {"expression": "(12.50 + 3) * 2"}, 31),
        ("calculate", {"expression": "0.1 + 0.2"}, 0.3),
        ("sum_numbers", {"numbers": [3.2, 2.1, 4]}, 9.3),
        ("sum_numbers", {"numbers": []}, 0),
        ("convert_units", {"value": 26, "from_unit": "miles", "to_unit": "km"}, 41.842944),
        ("convert_units", {"value": [0, 14], "from_unit": "C", "to_unit": "°F"}, [32, 57.2]),
        ("convert_units", {"value": 100, "from_unit": "days", "to_unit": "weeks"}, 14.28571429),
        ("convert_units", {"value": 3, "from_unit": "Feet", "to_unit": "yards"}, 1),
        ("add_days", {"date": "2026-02-27", "days": 2}, "2026-03-01"),
        ("add_days", {"date": "2026-03-01", "days": -1}, "2026-02-28"),
        ("days_between", {"first": "2026-05-14", "second": "2026-05-01"}, -13),
        ("weekday", {"date": "2026-05-14"}, "Thursday"),
        ("count_words", {"text": "  one two\nthree "}, 3),
        ("replace_text", {"text": "a b a", "old": "a", "new": ""}, " b "),
        ("sort_lines", {"text": "b\nC\na\n"}, "a\nb\nC\n"),
        ("extract_numbers", {"text": "Oslo: -3 degrees, 2026-05-14, 3.20"}, [-3, 2026, 5, 14, 3.2]),
        ("extract_numbers", {"text": "none"}, []),
    ],
)
def test_what_is_computed(
    tools: dict[str, Tool], name: str, arguments: dict[str, Any], result: object
) -> None:
    assert call(tools[name], **arguments) == result


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("calculate", {"expression": "1 / 0"}, "division by zero"),
        ("calculate", {"expression": "__import__('os')"}, "unexpected"),
        ("convert_units", {"value": 1, "from_unit": "kilos", "to_unit": "km"}, "no unit 'kilos'"),
        ("convert_units", {"value": 1, "from_unit": "kg", "to_unit": "km"}, "is a weight and"),
        ("convert_units", {"value": 1, "from_unit": "mils", "to_unit": "km"}, "did you mean"),
        ("add_days", {"date": "14.5.2026", "days": 1}, "write one as 2026-05-14"),
        ("add_days", {"date": "2026-02-30", "days": 1}, "is not a date"),
        ("add_days", {"date": "2026-02-01", "days": 10**9}, "no date of the calendar"),
        ("weekday", {"date": "20260514"}, "is not a date"),
        ("replace_text", {"text": "a", "old": "b", "new": ""}, "does not occur"),
        ("replace_text", {"text": "a", "old": "", "new": "b"}, "is empty"),
        ("replace_text", {"text": "a" * 2000, "old": "a", "new": "b" * 2000}, "more than"),
        ("extract_numbers", {"text": "9" * 5000}, "too many digits"),
        ("count_words", {"text": "a" * 1_000_001}, "more than 1,000,000 characters"),
    ],
)
def test_what_cannot_be_computed(
    tools: dict[str, Tool], name: str, arguments: dict[str, Any], words: str
) -> None:
    assert words in fault(tools[name], **arguments)


def test_numbers_without_end_are_refused(tools: dict[str, Tool]) -> None:
    with pytest.raises(ToolError, match="too large"):
        tools["sum_numbers"](numbers=[float("inf")])
    with pytest.raises(ToolError, match="too large"):
        tools["convert_units"](value=1.7e308, from_unit="mi", to_unit="mm")


def test_today_is_the_day_that_was_given(folder: Path, tools: dict[str, Tool]) -> None:
    assert call(tools["today"]) == "2026-05-14"
    assert make_tools(folder, "", date(2031, 1, 2))["today"]() == "2031-01-02"


# ---------------------------------------------------------------- tables


def test_a_query_has_as_little_around_its_values_as_they_need(
    tools: dict[str, Tool], contents: FolderContents
) -> None:
    def query(sql: str) -> Any:
        return call(tools["query_table"], sql=sql)

    assert query("SELECT count(*) FROM people") == len(contents.people)
    assert query("SELECT name FROM people") == [person.name for person in contents.people]
    first = contents.people[0]
    assert query(f"SELECT name, city FROM people WHERE phone = '{first.phone}'") == {
        "name": first.name,
        "city": first.city,
    }
    assert query("SELECT person, amount FROM orders LIMIT 2") == [
        {"person": order.person, "amount": order.amount} for order in contents.orders[:2]
    ]
    assert query("SELECT name FROM people WHERE city = 'Atlantis'") == []
    born = query("SELECT julianday('2026-01-02') - julianday('2026-01-01')")
    assert born == 1


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("DELETE FROM people", "query_table only reads"),
        ("INSERT INTO people VALUES (1, 2, 3, 4)", "insert_row"),
        ("CREATE TABLE x (y)", "query_table only reads"),
        ("DROP TABLE people", "query_table only reads"),
        ("PRAGMA journal_mode = wal", "query_table only reads"),
        ("ATTACH '/tmp/x.db' AS x", "query_table only reads"),
        ("VACUUM INTO '/tmp/x.db'", "cannot be run"),
        ("SELECT 1; DELETE FROM people", "cannot be run"),
        ("SELECT load_extension('x')", "query_table only reads"),
        ("SELECT town FROM people", "no such column: town; the tables are people(name, city"),
        ("SELECT * FROM persons", "no such table: persons"),
        ("", "not a SELECT"),
        ("SELECT 1\0", "cannot be run"),
        ("SELECT zeroblob(2000000)", "too big"),
        ("SELECT randomblob(3)", "neither a text nor a number"),
        ("SELECT 9e999", "neither a text nor a number"),
        ("SELECT 1 FROM orders a, orders b, orders c", "ask for less, with LIMIT"),
        ("SELECT hex(zeroblob(90000)) FROM orders", "ask for less, with LIMIT"),
        ("SELECT date('now')", "take the date from today"),
        ("SELECT julianday( )", "take the date from today"),
        ("SELECT current_timestamp", "take the date from today"),
    ],
)
def test_a_query_that_does_more_than_read_a_little_is_refused(
    tools: dict[str, Tool], folder: Path, sql: str, words: str
) -> None:
    before = (folder / "people.db").read_bytes()
    assert words in fault(tools["query_table"], sql=sql)
    assert (folder / "people.db").read_bytes() == before
    assert not [path for path in folder.iterdir() if path.name.startswith("people.db-")]


def test_a_query_without_end_is_stopped(
    tools: dict[str, Tool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tutelage.orchestration.kit.table_tools._STEPS", 100_000)
    endless = (
        "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"
    )
    assert "takes too long" in fault(tools["query_table"], sql=endless)


def test_a_row_is_added_with_its_values_as_parameters(tools: dict[str, Tool]) -> None:
    mean = "x'); DROP TABLE orders; --"
    row = {"person": mean, "item": "chalk", "amount": 12.5, "day": "2026-05-14"}
    assert call(tools["insert_row"], table="orders", values=row) == row
    query = "SELECT * FROM orders WHERE item = 'chalk' AND amount = 12.5"
    assert call(tools["query_table"], sql=query) == row
    as_text = {**row, "amount": "7.25"}
    assert call(tools["insert_row"], table="orders", values=as_text)["amount"] == 7.25


@pytest.mark.parametrize(
    ("table", "change", "words"),
    [
        ("orders", {"amount": "much"}, "amount is a number such as 12.50"),
        ("orders", {"amount": "inf"}, "amount is a number"),
        ("orders", {"person": 3}, "person is a text"),
        ("orders", {"colour": "red"}, "orders has the columns person, item, amount, day"),
        ("order", {}, "the tables are people(name, city, birthday, phone), orders("),
        ('orders"; DROP TABLE people; --', {}, "there is no table"),
        ("sqlite_master", {}, "there is no table"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(
    tools: dict[str, Tool], folder: Path, table: str, change: dict[str, Any], words: str
) -> None:
    row = {"person": "A", "item": "chalk", "amount": 12.5, "day": "2026-05-14", **change}
    before = (folder / "people.db").read_bytes()
    assert words in fault(tools["insert_row"], table=table, values=row)
    assert (folder / "people.db").read_bytes() == before


def test_what_is_no_database_is_told(tools: dict[str, Tool], folder: Path) -> None:
    (folder / "people.db").write_text("no database at all")
    assert "people.db cannot be read" in fault(tools["query_table"], sql="SELECT 1")
    (folder / "people.db").unlink()
    assert "there is no database" in fault(tools["query_table"], sql="SELECT 1")
    assert not (folder / "people.db").exists()


# ---------------------------------------------------------------- pages


def test_pages_are_read(pages: dict[str, Tool], contents: FolderContents) -> None:
    for path, text in contents.pages.items():
        assert call(pages["fetch_page"], path=path) == text
    city = next(path for path in contents.pages if path.startswith("/weather/"))
    assert call(pages["fetch_page"], path=city.lower().removeprefix("/")) == contents.pages[city]


def test_only_pages_of_the_own_server_are_read(
    pages: dict[str, Tool], contents: FolderContents
) -> None:
    with serve_pages(contents) as other:
        for path in (
            f"{other}/news",
            other.replace("http:", "") + "/news",
            "https://127.0.0.1/news",
            "http://user@127.0.0.1/news",
            "//localhost/news",
        ):
            assert "give a path such as /news" in fault(pages["fetch_page"], path=path)
    missing = fault(pages["fetch_page"], path="/weather/Nowhere")
    assert missing.startswith("there is no page '/weather/Nowhere'. The pages are /weather/")
    assert "file" not in fault(pages["fetch_page"], path="file:///etc/passwd").split(".")[1]
    fault(pages["fetch_page"], path="x\0y")


def test_a_page_that_is_too_long_is_refused(
    pages: dict[str, Tool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tutelage.orchestration.kit.pages.MAX_BYTES", 10)
    assert "longer than 10 bytes" in fault(pages["fetch_page"], path="/news")


def test_the_server_is_gone_after_its_block(contents: FolderContents, folder: Path) -> None:
    with serve_pages(contents) as url:
        tools = make_tools(folder, url, contents.today)
        call(tools["fetch_page"], path="/news")
    assert "cannot be read" in fault(tools["fetch_page"], path="/news")
