"""The local corpus: what becomes a passage, what is found, and what is refused."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.errors import ConfigError, DataError
from tutelage.tools import corpus

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
        ("", []),
        ("'\"; DROP TABLE passages; --", []),
        ('fish AND NOT "market" OR (', ["Bergen"]),
        ("title:Lima*", ["Lima"]),
    ],
)
def test_the_best_passages_come_first(index: Path, query: str, titles: list[str]) -> None:
    found = [p.title for p in corpus.search(index, query, 5)]
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


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80))
def test_no_query_is_an_error(tmp_path_factory: pytest.TempPathFactory, query: str) -> None:
    out = tmp_path_factory.getbasetemp() / "any.db"
    if not out.exists():
        rows = tmp_path_factory.getbasetemp() / "any.jsonl"
        rows.write_text(json.dumps({"text": "a b c"}) + "\n")
        corpus.build([rows], out)
    assert len(corpus.search(out, query, 3)) <= 1


def test_text_files_are_cut_at_headings_and_paragraphs(tmp_path: Path) -> None:
    file = tmp_path / "guide.md"
    long = "word " * 300
    file.write_text(f"Before.\n\n# One\n\nFirst.\n\n## Two #\nSame.\n\n{long}\n\n{long}\n\nLast.")
    corpus.build([file], tmp_path / "corpus.db")
    with closing(sqlite3.connect(tmp_path / "corpus.db")) as database:
        rows = database.execute("SELECT title, text FROM passages ORDER BY rowid").fetchall()
    found = [corpus.Passage(*row) for row in rows]
    assert [p.title for p in found] == [
        "guide",
        "guide: One",
        "guide: Two",
        "guide: Two",
        "guide: Two",
    ]
    assert found[0].text == "Before."
    assert found[2].text.startswith("Same.")
    assert found[-1].text == "Last."


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", '{"title": "x"}\n', "a.jsonl:1: no text"),
        ("a.jsonl", '{"text": 5}\n', "no text"),
        ("a.jsonl", "{\n", "invalid JSON"),
        ("a.txt", "", "these files contain no text"),
        ("a.pdf", "x", "suffix '.pdf'"),
        ("b.json", "[1]", "expected an object"),
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
    with pytest.raises(ConfigError, match="was not made by"):
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
    assert corpus.search("c.db", "Norway", 1)[0].title == "Oslo"
    assert CliRunner().invoke(build_app(), ["index", "none.txt"]).exit_code == 2
