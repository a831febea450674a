"""The twenty tools of a folder, by their names.

`make_tools` binds them to the folder, to the address of its web server and to the day that it is
there, so that a file with `globals().update(make_tools(...))` in it has all twenty for `--tools`.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

from benchmarks.orchestration.kit import text_tools
from benchmarks.orchestration.kit.file_tools import FileTools
from benchmarks.orchestration.kit.pages import fetch
from benchmarks.orchestration.kit.table_tools import TableTools

from tutelage.tools.tool import Tool, tool


class _DayAndPages:
    """The day that it is in the folder, and its pages."""

    def __init__(self, url: str, today: date) -> None:
        self._url, self._today = url, today

    @tool(inline=True)
    def today(self) -> str:
        """Today's date, such as 2026-05-14."""
        return str(self._today)

    @tool
    def fetch_page(self, path: str) -> str:
        """Read a page of the web server: /weather/CITY, /prices or /news.

        Args:
            path: Such as /weather/Oslo.
        """
        return fetch(self._url, path)


def make_tools(folder: str | Path, url: str, today: date | str) -> dict[str, Tool]:
    """The tools on `folder`, whose pages are served at `url`, on the day `today`."""
    day = date.fromisoformat(today) if isinstance(today, str) else today
    files, tables = FileTools(Path(folder)), TableTools(Path(folder))
    here = _DayAndPages(url, day)
    tools = (
        *(files.list_files, files.find_files, files.read_file),
        *(files.write_file, files.move_file, files.delete_file),
        *(text_tools.calculate, text_tools.sum_numbers, text_tools.convert_units),
        *(here.today, text_tools.add_days, text_tools.days_between, text_tools.weekday),
        *(text_tools.count_words, text_tools.replace_text, text_tools.sort_lines),
        *(text_tools.extract_numbers, tables.query_table, tables.insert_row, here.fetch_page),
    )
    return {made.name: made for made in tools}
