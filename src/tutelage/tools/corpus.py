"""Local search corpus: an SQLite file with a full-text index, ranked by BM25.

`build` creates the file from JSONL, text and Markdown (`tutelage index`); `search` reads it. Text
files are split into passages at blank lines and headings, since an observation has room for a few
paragraphs only. The tools that use it are in `search.py`.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from tutelage.errors import ConfigError, DataError
from tutelage.tasks.readers import read_rows

PASSAGE_CHARS = 1200
"""Length in characters after which a passage of a text file ends at the next paragraph."""
TITLE_FIELDS = ("title", "name", "heading")
TEXT_FIELDS = ("text", "contents", "content", "passage", "body")
_APPLICATION_ID = 0x54555431  # "TUT1"
_TERM = re.compile(r"\w+")
_MAX_TERMS = 64
_HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*\s*\Z")
_TITLE_WEIGHT, _TEXT_WEIGHT = 2.0, 1.0


Passage = tuple[str, str]
"""Title and text of one searchable passage of the corpus."""


def build(files: Sequence[str | Path], out: str | Path) -> int:
    """Write a search index of `files` to `out` atomically, and return the number of passages.

    Rows of .jsonl and .json need a `text` (and may have a `title`); .txt and .md are split into
    passages. Raises `DataError` for a file that is unreadable or contains no text, and
    `ConfigError` if `out` exists and is not an index.
    """
    out = Path(out)
    if out.exists():
        try:
            check(out)
        except ConfigError as error:
            raise ConfigError(
                f"{str(out)!r} already exists and is not a search index, so it is not overwritten; "
                "choose another --out"
            ) from error
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(temporary)) as database:
            try:
                database.execute(
                    "CREATE VIRTUAL TABLE passages USING fts5"
                    "(title, text, tokenize = 'porter unicode61 remove_diacritics 2')"
                )
            except sqlite3.OperationalError as error:
                raise DataError(
                    f"this Python's SQLite has no full-text search (FTS5): {error}; "
                    "use a Python from python.org, conda or your distribution"
                ) from error
            database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            count = 0
            for passage in (p for file in files for p in _read_passages(file)):
                row = passage
                database.execute("INSERT INTO passages VALUES (?, ?)", row)
                count += 1
            database.commit()
            database.execute("INSERT INTO passages(passages) VALUES ('optimize')")
            database.commit()
        if not count:
            raise DataError("these files contain no text; an index needs at least one passage")
        temporary.replace(out)
    except (sqlite3.Error, OSError) as error:
        raise DataError(f"cannot write the index {str(out)!r}: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


def check(path: str | Path) -> None:
    """Raise `ConfigError` unless `path` is a search index."""
    if not Path(path).is_file():
        raise ConfigError(
            f"the search index {str(path)!r} does not exist; create it with: "
            f"tutelage index FILES --out {path}"
        )
    try:
        with closing(_connect(path)) as database:
            (application_id,) = database.execute("PRAGMA application_id").fetchone()
    except sqlite3.Error as error:
        raise ConfigError(f"cannot read the search index {str(path)!r}: {error}") from error
    if application_id != _APPLICATION_ID:
        raise ConfigError(f"{str(path)!r} was not created by `tutelage index`; create a new index")


def search(path: str | Path, query: str, count: int) -> list[Passage]:
    """Return the `count` best passages that contain a word of `query`; ties keep the file order."""
    terms = list(dict.fromkeys(_TERM.findall(query.casefold())))[:_MAX_TERMS]
    if not terms:
        return []
    # Quote every term, so that no word of the query is read as an operator.
    match_query = " OR ".join(f'"{term}"' for term in terms)
    with closing(_connect(path)) as database:
        rows = database.execute(
            "SELECT title, text FROM passages WHERE passages MATCH ? "
            "ORDER BY bm25(passages, ?, ?), rowid LIMIT ?",
            (match_query, _TITLE_WEIGHT, _TEXT_WEIGHT, count),
        ).fetchall()
    return [(str(title), str(text)) for title, text in rows]


def _read_passages(file: str | Path) -> Iterator[Passage]:
    """Yield the passages of a file, parsed by its suffix. Raises `DataError`."""
    path = Path(file)
    suffix = path.suffix.lower()
    if suffix in (".txt", ".md", ".markdown"):
        yield from _split_text_file(path)
    elif suffix in (".json", ".jsonl", ".ndjson", ".csv", ".parquet"):
        for row in read_rows(path):
            if not isinstance(row.value, dict):
                kind = type(row.value).__name__
                raise DataError(f"{row.place}: expected an object with 'text', not a {kind}")
            fields: dict[str, object] = {str(key): item for key, item in row.value.items()}
            text = next((fields[name] for name in TEXT_FIELDS if name in fields), None)
            if not isinstance(text, str) or not text.strip():
                names = ", ".join(map(repr, fields)) or "nothing"
                raise DataError(
                    f"{row.place}: no text field; the row has {names}; use one of {TEXT_FIELDS}"
                )
            title = next((fields[name] for name in TITLE_FIELDS if name in fields), "")
            yield str(title if title is not None else ""), text
    else:
        raise DataError(
            f"cannot index {str(path)!r}: unsupported suffix {suffix!r}; use .jsonl, .json, .csv, "
            ".parquet, .txt or .md"
        )


def _split_text_file(path: Path) -> Iterator[Passage]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {str(path)!r}: {error}; use a UTF-8 text file") from error
    title = path.stem
    pending: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        paragraph = paragraph.strip()
        heading = _HEADING.match(paragraph.partition("\n")[0]) if paragraph[:1] == "#" else None
        if heading or (pending and sum(map(len, pending)) > PASSAGE_CHARS):
            yield from _merge_paragraphs(title, pending)
            pending = []
        if heading:
            title = f"{path.stem}: {heading[1]}"
            paragraph = paragraph.partition("\n")[2].strip()
        if paragraph:
            pending.append(paragraph)
    yield from _merge_paragraphs(title, pending)


def _merge_paragraphs(title: str, paragraphs: list[str]) -> Iterator[Passage]:
    if paragraphs:
        yield title, "\n\n".join(paragraphs)


def _connect(path: str | Path) -> sqlite3.Connection:
    # Read-only and immutable: creates no lock files, since many rollouts share the corpus.
    quoted_path = quote(str(Path(path).absolute()))
    return sqlite3.connect(f"file:{quoted_path}?mode=ro&immutable=1", uri=True)
