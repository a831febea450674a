"""Runs that were not stopped, which those that were must equal."""

from __future__ import annotations

import time
from pathlib import Path

from .command import Command
from .outcome import assert_equal, outcome


class Reference:
    """A run that was not stopped: what to start, how long it takes, what comes out."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self.arguments, self.folder = arguments, folder
        begun = time.monotonic()
        Command(folder)(*arguments).check()
        self.seconds = time.monotonic() - begun
        self.outcome = outcome(folder / "run")

    def check(self, command: Command, run: str = "run") -> None:
        """Finish a run of `command` and compare."""
        command("resume", run).check()
        assert_equal(outcome(command.cwd / run), self.outcome)
        assert (command.cwd / run / "report.html").is_file()
