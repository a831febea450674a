"""Consoles and text formats that all commands share.

Results go to standard output, progress and errors to standard error, so that a pipe gets results
only. Markup is disabled: texts of models and datasets are printed unchanged, with control
characters escaped. A notebook gets plain text, like a file. Rich handles `NO_COLOR` and colours.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tutelage.runs.figures import Table as FigureTable

_PIPE_WIDTH = 100
"""Width of a table in a file or a pipe, in characters."""

_WRAPPING: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
# A value that is one long word, such as a path, is left to the terminal: it can be copied whole.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


class PlainConsole(Console):
    """Console without markup that raises `BrokenPipeError` for a closed pipe.

    Rich would end the process, and with it a training run.
    """

    def on_broken_pipe(self) -> None:
        """Raise `BrokenPipeError`."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def output() -> Console:
    """Return the console for results, on standard output."""
    return _make_console(sys.stdout)


def messages() -> Console:
    """Return the console for progress and errors, on standard error; on standard output in a
    notebook, where standard error is shown in red."""
    return _make_console(sys.stdout if Console().is_jupyter else sys.stderr)


def _make_console(stream: TextIO) -> Console:
    width = None if "COLUMNS" in os.environ else _PIPE_WIDTH
    if stream.isatty():  # rich takes a terminal without control codes to be 80 columns wide
        width = shutil.get_terminal_size().columns if os.environ.get("TERM") == "dumb" else None
    flags: dict[str, Any] = dict.fromkeys(("force_jupyter", "markup", "highlight", "emoji"), False)
    height = None if width is None else 25
    # `FORCE_COLOR`, which machines set, would have a picture drawn into a file.
    terminal = stream.isatty()
    return PlainConsole(file=stream, width=width, height=height, force_terminal=terminal, **flags)


@contextmanager
def show_status(text: str) -> Generator[None]:
    """Show a status line on a terminal while the block runs."""
    console = messages()
    visible = console.is_terminal and not console.is_dumb_terminal
    with console.status(text) if visible else nullcontext():
        yield


def fetch(model: str | None) -> None:
    """Download or convert a model that is not cached yet, with a progress bar on a terminal."""
    from rich.progress import Progress, TaskID

    from tutelage.policy.sources import local_folder

    if model is None:
        return
    console, bars = messages(), dict[str, TaskID]()
    hidden = not console.is_terminal or console.is_dumb_terminal
    with Progress(console=console, transient=True, disable=hidden) as progress:

        def report(task: str, fraction: float | None) -> None:
            if fraction is None:
                echo_text(console, task, "dim")
                return
            if task not in bars:
                bars[task] = progress.add_task(task, total=1.0)
            progress.update(bars[task], completed=fraction)

        local_folder(model, report)


def echo(console: Console, *parts: str | Text | tuple[str, str]) -> None:
    """Print a line without inserting line breaks, so that paths and commands can be copied."""
    console.print(Text.assemble(*parts), soft_wrap=True)


def echo_text(console: Console, text: str, style: str = "", *, indent: int = 0) -> None:
    """Print text, wrapped at word boundaries if the console is a terminal. Lines after the first
    are indented by `indent` spaces."""
    echo(console, (f"\n{' ' * indent}".join(_wrap(console, text, indent)), style))


def _wrap(console: Console, text: str, indent: int) -> list[str]:
    """Return the lines of a text, wrapped to the width of the console minus `indent` columns."""
    width = max(20, console.width - indent) if console.is_terminal else sys.maxsize
    return [
        part
        for line in escape(text).split("\n")
        for part in textwrap.wrap(line, width, **_WRAPPING) or [""]
    ]


def plain_table(*columns: str, right: Collection[str] = ()) -> Table:
    """Return an empty table with a rule below its header and two spaces between columns."""
    mark = "─" if is_utf8(output()) else "-"
    box = Box(f"    \n    \n {mark * 2} \n" + "    \n" * 5, ascii=mark == "-")
    table = Table(box=box, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


TONES = {"good": "green", "bad": "red", "dim": "dim", "": ""}
"""Style of each tone of a table."""


def show_table(console: Console, table: FigureTable) -> None:
    """Print a table with its title and introduction."""
    echo(console, (f"\n{table.title}", "bold"))
    if table.lead:
        echo_text(console, table.lead, "dim")
    console.print(build_table(table))


def build_table(table: FigureTable, indices: Iterable[int] | None = None) -> Table:
    """Return a rich table of all columns, or of the columns at `indices`."""
    columns = list(range(len(table.columns)) if indices is None else indices)
    # Columns may share a name ("micro"), so they are set to the right one by one.
    grid = plain_table(*(escape(table.columns[i]) for i in columns))
    for column, index in zip(grid.columns, columns, strict=True):
        column.justify = "right" if index in table.right else "left"
    for row in table.rows:
        if row.first:
            grid.add_row("")
        bold = "bold " if row.strong else ""
        grid.add_row(*(Text(escape(row.cells[i]), bold + TONES[row.tone(i)]) for i in columns))
    return grid


def show_keys(console: Console, rows: Sequence[tuple[str, Any, str]], all_keys: bool) -> None:
    """Print keys with values and origins; keys with default values only if `all_keys` is True."""
    shown = [row for row in rows if all_keys or row[2]]
    for key, value, origin in shown:
        line = escape(f"{key}={json.dumps(value, ensure_ascii=False)}")
        remark = escape(f"   # {origin}") if origin else ""
        echo(console, (line, "green" if origin else ""), (remark, "dim"))
    if not all_keys:
        text = f"{len(rows) - len(shown)} other keys have their defaults; --all prints them"
        echo(console, (f"\n{text}", "dim"))


def print_steps(console: Console, *commands: str) -> None:
    """Print a list of commands to run next."""
    echo(console, ("Next", "bold"))
    for command in commands:
        echo(console, "  ", command)


def echo_pairs(console: Console, pairs: Iterable[tuple[str, str]], indent: int = 0) -> None:
    """Print (name, value) pairs, one per line, with aligned values; long values wrap on a
    terminal."""
    listed = list(pairs)
    width = max((len(name) for name, _ in listed), default=0) + 2
    start = " " * (indent + width)
    for name, value in listed:
        lines = _wrap(console, value, len(start))
        echo(console, " " * indent, (f"{name:<{width}}", "dim"), f"\n{start}".join(lines))


def escape(text: str) -> str:
    """Return `text` with control characters, lone surrogates and direction marks escaped."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shorten(value: Any, width: int) -> str:
    """Return the text of a value as one line, truncated to `width` characters."""
    text = escape(" ".join(str(value).split()))
    return text if len(text) <= width else text[: width - 1] + "…"


def percent(fraction: float) -> str:
    """Format a fraction as a percentage, such as `94.5 %` for 0.945."""
    return f"{100 * fraction:.1f} %"


def number(value: float) -> str:
    """Format a metric in about eight characters, with commas between thousands."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 0.001 else f"{value:.4g}"


def to_cell(value: Any) -> str:
    """Format the value of a table cell: a number as a metric, other values as truncated text."""
    return number(value) if isinstance(value, (int, float)) else shorten(value, 100)


def is_utf8(console: Console) -> bool:
    """Return True if the console can print block characters."""
    return console.encoding.lower().startswith("utf")


def format_path(path: Path) -> str:
    """Return a path, relative to the working directory if it is inside this directory."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)


def discard_stream(stream: IO[str]) -> None:
    """Redirect a stream to the null device, so that the flush at interpreter exit does not fail."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return  # not a real stream, as in tests: it has no last flush that could fail
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
