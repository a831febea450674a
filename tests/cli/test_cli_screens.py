"""What is shown where there is no ordinary terminal, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

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
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "TERM")}


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
