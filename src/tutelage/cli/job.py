"""How `train` and `resume` run a job: with a display, and with a word for each way it can end.

The job saves what it has before it lets an interruption or an error through; this module says so,
with the command that goes on. The jobs themselves are in `train/jobs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import typer

from tutelage.cli.console import messages, output, say, shown_path
from tutelage.cli.failures import INTERRUPTED, tell
from tutelage.train.folder import RunFolder
from tutelage.train.progress import Progress, Silent

Job = Callable[[Progress], dict[str, Any]]
"""Runs to its end and returns the content of `result.json`."""


def run_job(folder: RunFolder, job: Job, *, live: bool = True) -> None:
    """Run `job` and show what it came to. `live` off drops the progress (`trainer.logger`).

    Raises `typer.Exit` after an interruption; other errors pass, with a note on how to go on.
    """
    from tutelage.cli.display import LiveDisplay
    from tutelage.cli.outcome import show_next, show_outcome

    display = LiveDisplay(messages()).open() if live else Silent()
    try:
        result = job(display)
    except KeyboardInterrupt:
        display.finish()
        tell(_stopped(folder))
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if "tutelage resume" not in str(error) and folder.config.is_file():
            error.add_note(f"What was done is saved. Go on with: {_resume(folder)}")
        raise
    finally:
        display.finish()
        drop_if_empty(folder)
    console = output()
    say(console)
    show_outcome(console, folder, result)
    say(console)
    show_next(console, folder)


def _stopped(folder: RunFolder) -> str:
    if not folder.config.is_file():
        return "Stopped before there was anything to save."
    return f"Stopped. What was done is saved. Go on with: {_resume(folder)}"


def _resume(folder: RunFolder) -> str:
    return f"tutelage resume {shown_path(folder.path)}"


def drop_if_empty(folder: RunFolder) -> None:
    """Take away the folder of a run that ended before it began."""
    if folder.config.is_file():
        return
    (folder.path / ".lock").unlink(missing_ok=True)
    # rmdir refuses a folder that holds anything, so nothing can be lost here.
    for path in (folder.checkpoints, folder.path):
        with suppress(OSError):
            path.rmdir()
