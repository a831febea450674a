"""The local corpus, the tools over it, and the web search against a server of our own."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.loopback import replying
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.errors import ConfigError, DataError
from tutelage.tools import ToolOptions, corpus, execute_tool_calls, resolve_tools
from tutelage.types import ToolCall

ROWS = [
    {"title": "Oslo", "text": "Oslo is the capital of Norway. It lies on a fjord."},
    {"title": "Bergen", "text": "Bergen is a city in Norway with a famous fish market."},
    {"title": "Lima", "text": "Lima is the capital of Peru."},
]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    out = tmp_path / "corpus.db"
    assert corpus.build([file], out) == 3
    return out


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("capital of Norway", ["Oslo", "Lima", "Bergen"]),
        ("Lima", ["Lima"]),
        ("fish markets", ["Bergen"]),
        ("FJORDS?", ["Oslo"]),
        ("nothing like it here at", []),
        ("'\"; DROP TABLE passages; --", []),
        ('fish AND NOT "market" OR (', ["Bergen"]),
    ],
)
def test_the_best_passages_come_first(index: Path, query: str, titles: list[str]) -> None:
    found = [title for title, _ in corpus.search(index, query, 5)]
    assert found[: len(titles)] == titles
    if not titles:
        assert found == [] or query.startswith("nothing")


def test_a_file_that_is_no_index_is_not_replaced(index: Path, tmp_path: Path) -> None:
    """The output's name in the place of an input's, as one types it in a hurry."""
    notes = tmp_path / "notes.md"
    notes.write_text("what I thought")
    with pytest.raises(ConfigError, match="not a search index, so it is not overwritten"):
        corpus.build([tmp_path / "rows.jsonl"], notes)
    assert notes.read_text() == "what I thought"
    assert corpus.build([notes], index) == 1  # an index is made again


def test_text_files_are_cut_at_headings_and_paragraphs(tmp_path: Path) -> None:
    file = tmp_path / "guide.md"
    long = "word " * 300
    file.write_text(f"Before.\n\n# One\n\nFirst.\n\n## Two #\nSame.\n\n{long}\n\n{long}\n\nLast.")
    corpus.build([file], tmp_path / "corpus.db")
    with closing(sqlite3.connect(tmp_path / "corpus.db")) as database:
        rows = database.execute("SELECT title, text FROM passages ORDER BY rowid").fetchall()
    found: list[corpus.Passage] = [*rows]
    assert [title for title, _ in found] == [
        "guide",
        "guide: One",
        "guide: Two",
        "guide: Two",
        "guide: Two",
    ]
    assert found[0][1] == "Before."
    assert found[2][1].startswith("Same.")
    assert found[-1][1] == "Last."


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", '{"title": "x"}\n', "a.jsonl:1: no text"),
        ("a.jsonl", "{\n", "invalid JSON"),
        ("a.pdf", "x", "suffix '.pdf'"),
    ],
)
def test_a_bad_file_is_refused_and_nothing_is_written(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(DataError, match=words):
        corpus.build([file], tmp_path / "out.db")
    assert [f.name for f in tmp_path.iterdir()] == [name]


def test_what_is_no_index_is_refused(tmp_path: Path, index: Path) -> None:
    corpus.check(index)
    with pytest.raises(ConfigError, match="tutelage index FILES"):
        corpus.check(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("not a database, but long enough to look at" * 100)
    with pytest.raises(ConfigError, match="cannot read the search index"):
        corpus.check(tmp_path / "text.db")
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(ConfigError, match="was not created by"):
        corpus.check(tmp_path / "other.db")


def test_the_command_builds_and_says_how_to_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("One.\n\nTwo.")
    Path("b.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    done = CliRunner().invoke(build_app(), ["index", "a.txt", "b.jsonl", "--out", "c.db"])
    assert done.exit_code == 0, done.output
    assert "2 passages" in done.output
    assert "tools.search_index=c.db" in done.output
    assert corpus.search("c.db", "Norway", 1)[0][0] == "Oslo"


# ------------------------------------------------------------ tools over a corpus, web search


KEY = "secret-key-1"


@pytest.fixture
def search_index(tmp_path: Path) -> str:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"title": "Oslo", "text": "The capital of Norway. " * 80}) + "\n")
    corpus.build([rows], tmp_path / "corpus.db")
    return str(tmp_path / "corpus.db")


class Service:
    """Answers like Serper; `seen` is what was asked."""

    seen: ClassVar[list[dict[str, Any]]] = []
    status = 200

    @classmethod
    def reply(cls, asked: Any, body: Any) -> tuple[int, Any]:
        data = {"key": asked.headers["X-API-KEY"], **body}
        cls.seen.append(data)
        found = [
            {"title": f"T{i}", "snippet": f"about {data['q']}", "link": f"http://x/{i}"}
            for i in range(5)
        ]
        return cls.status, {"organic": found}


@pytest.fixture
def address() -> Iterator[str]:
    Service.seen, Service.status = [], 200
    with replying(Service.reply) as url:
        yield f"{url}/"


async def ask(options: ToolOptions, query: str, name: str = "google_search") -> Any:
    tools = resolve_tools([name], options)
    call = ToolCall("1", name, json.dumps({"query": query}))
    return (await execute_tool_calls([call], tools))[0]


@pytest.mark.parametrize("name", ["search", "google_search"])
async def test_without_a_key_the_local_corpus_answers(
    search_index: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = await ask(ToolOptions(search_index, environ={}), "norway", name)
    assert found.error is None
    assert found.text.startswith("[1] Oslo: The capital of Norway.")
    assert len(found.text) < 800
    assert ("no API key for web search" in caplog.text) == (name == "google_search")
    nothing = await ask(ToolOptions(environ={"TUTELAGE_SEARCH_INDEX": search_index}), "xyzzy", name)
    assert nothing.text == "No results. Try other words."


@pytest.mark.parametrize("name", ["search", "google_search"])
def test_without_a_corpus_it_is_refused_before_anything_runs(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"tools\.search_index=PATH or the variable TUTELAGE_SEARCH_INDEX"
    ):
        resolve_tools([name], ToolOptions(environ={}))
    with pytest.raises(ConfigError, match="does not exist"):
        resolve_tools([name], ToolOptions("/nowhere.db", environ={}))


async def test_serper_is_asked_with_its_key(address: str) -> None:
    options = ToolOptions(environ={"SERPER_API_KEY": KEY, "SERPER_URL": address})
    found = await ask(options, "fjords")
    assert found.text.splitlines()[0] == "[1] T0: about fjords (http://x/0)"
    assert len(found.text.splitlines()) == 3
    assert Service.seen == [{"key": KEY, "q": "fjords", "num": "3"}]


async def test_a_service_that_fails_is_an_observation_without_the_key(address: str) -> None:
    Service.status = 403
    environ = {"SERPER_API_KEY": KEY, "SERPER_URL": address}
    found = await ask(ToolOptions(environ=environ), "fjords")
    assert found.error == "raised"
    assert KEY not in found.text
