"""How text reaches the terminal: consoles, and the few formats that all verbs share.

Results go to standard output, progress and errors to standard error, so that a pipe gets results
only. Nothing is interpreted as markup: what models and datasets say is shown as it is, with control
characters made visible. A notebook gets text, as a file does. `NO_COLOR` and colours are rich's
business.
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
"""Columns of a table that goes into a file or a pipe."""

_WRAPPING: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
# A value that is one long word, such as a path, is left to the terminal: it can be copied whole.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


class PlainConsole(Console):
    """A console without markup that leaves closed pipes to `failures.py`.

    Rich itself ends the process then, which must not happen to a training run.
    """

    def on_broken_pipe(self) -> None:
        """Let the error out."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def output() -> Console:
    """Where results go."""
    return _console(sys.stdout)


def messages() -> Console:
    """Where progress goes; in a notebook, which shows errors on red, with the results."""
    return _console(sys.stdout if Console().is_jupyter else sys.stderr)


def _console(stream: TextIO) -> Console:
    width = None if "COLUMNS" in os.environ else _PIPE_WIDTH
    if stream.isatty():  # rich takes a terminal without control codes to be 80 columns wide
        width = shutil.get_terminal_size().columns if os.environ.get("TERM") == "dumb" else None
    apart: dict[str, Any] = dict.fromkeys(("force_jupyter", "markup", "highlight", "emoji"), False)
    height = None if width is None else 25
    # `FORCE_COLOR`, which machines set, would have a picture drawn into a file.
    terminal = stream.isatty()
    return PlainConsole(file=stream, width=width, height=height, force_terminal=terminal, **apart)


@contextmanager
def waiting(text: str) -> Generator[None]:
    """Say on a terminal what takes a moment; nothing is left of it after."""
    console = messages()
    drawn = console.is_terminal and not console.is_dumb_terminal
    with console.status(text) if drawn else nullcontext():
        yield


def fetch(model: str | None) -> None:
    """Get a model that is downloaded or converted on first use, with a bar on a terminal."""
    from rich.progress import Progress, TaskID

    from tutelage.policy.sources import local_folder

    if model is None:
        return
    console, bars = messages(), dict[str, TaskID]()
    hidden = not console.is_terminal or console.is_dumb_terminal
    with Progress(console=console, transient=True, disable=hidden) as progress:

        def tell(text: str, done: float | None) -> None:
            if done is None:
                prose(console, text, "dim")
                return
            if text not in bars:
                bars[text] = progress.add_task(text, total=1.0)
            progress.update(bars[text], completed=done)

        local_folder(model, tell)


def say(console: Console, *parts: str | Text | tuple[str, str]) -> None:
    """One line that the terminal wraps, not we: a path or a command in it can be copied whole."""
    console.print(Text.assemble(*parts), soft_wrap=True)


def prose(console: Console, text: str, style: str = "", *, hang: int = 0) -> None:
    """A sentence: on a terminal it wraps between words, elsewhere its line stays whole. All lines
    but the first begin with `hang` spaces."""
    say(console, (f"\n{' ' * hang}".join(_wrapped(console, text, hang)), style))


def _wrapped(console: Console, text: str, taken: int) -> list[str]:
    """The lines of a text beside `taken` columns."""
    room = max(20, console.width - taken) if console.is_terminal else sys.maxsize
    return [
        part
        for line in visible(text).split("\n")
        for part in textwrap.wrap(line, room, **_WRAPPING) or [""]
    ]


def plain_table(*columns: str, right: Collection[str] = ()) -> Table:
    """A table with a rule under its head and two spaces between columns, to fit 60 columns."""
    mark = "─" if is_utf8(output()) else "-"
    box = Box(f"    \n    \n {mark * 2} \n" + "    \n" * 5, ascii=mark == "-")
    table = Table(box=box, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


TONES = {"good": "green", "bad": "red", "dim": "dim", "": ""}
"""How the tones of a table look."""
_INTERVAL = re.compile(r"^(\S+) (\[.+\])( ~)?$")


def show_table(console: Console, table: FigureTable) -> None:
    """A table with its title and its lead."""
    say(console, (f"\n{table.title}", "bold"))
    if table.lead:
        prose(console, table.lead, "dim")
    drawn = drawn_table(table)
    wide = console.measure(drawn, options=console.options.update(max_width=1000)).maximum
    console.print(drawn if wide <= console.width else drawn_table(table, folded=True))


def drawn_table(
    table: FigureTable, shown: Iterable[int] | None = None, *, folded: bool = False
) -> Table:
    """A table, or those columns of it that are `shown`; `folded`, each interval below its number,
    which its mark stays at."""
    columns = list(range(len(table.columns)) if shown is None else shown)
    # Columns may share a name ("micro"), so they are set to the right one by one.
    drawn = plain_table(*(visible(table.columns[i]) for i in columns))
    for column, index in zip(drawn.columns, columns, strict=True):
        column.justify = "right" if index in table.right else "left"
    for row in table.rows:
        if row.first:
            drawn.add_row("")
        bold = "bold " if row.strong else ""
        words = [visible(row.cells[i]) for i in columns]
        if folded:
            words = [_INTERVAL.sub(r"\1\3\n\2", each) for each in words]
        cells = [
            Text(each, bold + TONES[row.tone(i)]) for each, i in zip(words, columns, strict=True)
        ]
        drawn.add_row(*cells)
    return drawn


def show_keys(console: Console, rows: Sequence[tuple[str, Any, str]], all_keys: bool) -> None:
    """Print keys with their values and what set them, or with `all_keys` the defaults too."""
    shown = [row for row in rows if all_keys or row[2]]
    for key, value, origin in shown:
        line = visible(f"{key}={json.dumps(value, ensure_ascii=False)}")
        remark = visible(f"   # {origin}") if origin else ""
        say(console, (line, "green" if origin else ""), (remark, "dim"))
    if not all_keys:
        rest = f"{len(rows) - len(shown)} other keys have their defaults; --all prints them"
        say(console, (f"\n{rest}", "dim"))


def next_steps(console: Console, *commands: str) -> None:
    """Commands that go on from here."""
    say(console, ("Next", "bold"))
    for command in commands:
        say(console, "  ", command)


def facts(console: Console, pairs: Iterable[tuple[str, str]], indent: int = 0) -> None:
    """Names and values, one pair a line, values aligned; on a terminal long values hang."""
    listed = list(pairs)
    width = max((len(name) for name, _ in listed), default=0) + 2
    start = " " * (indent + width)
    for name, value in listed:
        lines = _wrapped(console, value, len(start))
        say(console, " " * indent, (f"{name:<{width}}", "dim"), f"\n{start}".join(lines))


def visible(text: str) -> str:
    """`text` with control characters, lone surrogates and direction marks written as escapes."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(value: Any, width: int) -> str:
    """The beginning of a value on one line of at most `width` characters."""
    text = visible(" ".join(str(value).split()))
    return text if len(text) <= width else text[: width - 1] + "…"


def percent(share: float) -> str:
    """0.945 as `94.5 %`."""
    return f"{100 * share:.1f} %"


def number(value: float) -> str:
    """A metric in at most about eight characters; thousands are set apart by a comma."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 0.001 else f"{value:.4g}"


def cell(value: Any) -> str:
    """A number as a metric, another value as the beginning of its text."""
    return number(value) if isinstance(value, (int, float)) else one_line(value, 100)


def is_utf8(console: Console) -> bool:
    """Whether block characters can be written there."""
    return console.encoding.lower().startswith("utf")


def shown_path(path: Path) -> str:
    """A path as the user would type it: relative when it lies below the working directory."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)


def leave_stream(stream: IO[str]) -> None:
    """Send the rest of a stream nowhere, so that the interpreter's last flush is quiet too."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return  # not a real stream, as in tests: it has no last flush that could fail
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
