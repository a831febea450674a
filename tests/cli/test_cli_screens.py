"""What is shown where there is no ordinary terminal, in processes of their own."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.cells import cell_len
from tests.cli.sample_run import make_run
from tests.marks import long

SHOWING = """
from tutelage.cli.console import messages, output, plain_table
from tutelage.cli.display import LiveDisplay
display = LiveDisplay(messages()).open()
display.start("math", {"device": "cpu " * 20})
display.phase("training", steps=2)
display.step(2, {"reward/mean": 0.5, "max_dlogp": 1e-6})
display.note("a sentence " * 12)
display.finish()
table = plain_table("name", "before", "after", right=("before", "after"))
table.add_row("sampled", "1 %", "2 %")
output().print(table)
"""
MAIN = "from tutelage.cli import main; main()"
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "TERM")}


def shown(code: str, columns: int) -> str:
    """What a program writes to a terminal of that width which knows no control codes."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    subprocess.run(
        [sys.executable, "-c", code],
        env={**ENVIRONMENT, "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        check=True,
        timeout=120,
    )
    os.close(theirs)
    with open(ours, "rb", buffering=0) as terminal:
        return terminal.read(65536).decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [60, *long(80)])
def test_on_a_dumb_terminal_lines_fit_and_are_plain(columns: int) -> None:
    text = shown(SHOWING, columns)
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= columns
    assert max(map(cell_len, lines)) > columns - 12, "the width is used"
    assert not {"\x1b", "\r"} & {*"".join(lines)}
    assert ("a sentence " * 12).strip() in " ".join(text.split()), "it wraps between words"


@pytest.mark.parametrize(
    ("columns", "left_out"), [(60, "seed, steps, reward, tested, disk, age"), *long((120, ""))]
)
def test_a_list_of_runs_leaves_columns_out_rather_than_break_cells(
    tmp_path: Path, columns: int, left_out: str
) -> None:
    name = "orchestrate-20261122-065740"
    make_run(tmp_path / name, store=False)
    code = f"import sys; sys.argv[1:] = ['runs', '--below', {str(tmp_path)!r}]\n{MAIN}"
    text = shown(code, columns)
    row = next(line for line in text.splitlines() if name in line)
    assert "finished" in row
    assert " ".join(text.partition("left out in this width: ")[2].split()) == left_out


def test_a_file_gets_plain_ascii_where_that_is_its_encoding() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOWING],
        env={**ENVIRONMENT, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "FORCE_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=120,
    )
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"\r" not in done.stderr
    assert done.stdout.decode("ascii").splitlines() == [
        "name     before  after",
        "----------------------",
        "sampled     1 %    2 %",
    ]
    assert "max |dlogp| 1e-06" in done.stderr.decode("ascii")
    assert ("a sentence " * 12).strip() in done.stderr.decode("ascii"), "a line stays whole"


NOTEBOOK = (
    """
import builtins, sys
class ZMQInteractiveShell: ...
builtins.get_ipython = ZMQInteractiveShell
ZMQInteractiveShell.__module__ = "ipykernel.zmqshell"
builtins.get_ipython = lambda: ZMQInteractiveShell()
"""
    + SHOWING
)


def test_a_notebook_gets_text_beside_its_results() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == ""
    assert "   0:00  training: 2 steps" in done.stdout
    assert "\x1b" not in done.stdout
