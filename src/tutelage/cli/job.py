"""Jobs of `train` and `resume`: progress display, result, and messages after interruptions and
errors.

A job saves its state before an interruption or an error leaves it; this module prints the command
that continues it. The jobs themselves are in `weights/jobs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from tutelage.cli.console import echo, format_path, output
from tutelage.cli.failures import stop_reason, warn
from tutelage.errors import FailureBudgetError, RunBusyError, RunError
from tutelage.runs.folder import RunFolder, remove_if_empty
from tutelage.runs.progress import Progress
from tutelage.runs.resume_hint import command_name, resume_hint
from tutelage.runs.signals import exit_code

Job = Callable[[Progress], dict[str, Any]]
"""Job that runs to its end and returns the content of `result.json`."""


def run_job(folder: RunFolder, job: Job, rank: int = 0) -> None:
    """Run `job` and print its result; ranks above 0 print nothing.

    Raises `typer.Exit` after an interruption, or if no rollout could be graded; other errors pass
    with a note on how to continue.
    """
    from tutelage.cli.display import LiveDisplay
    from tutelage.cli.outcome import show_outcome

    if rank:
        job(Progress())
        return
    with LiveDisplay() as display, report_stop(folder, display):
        result = job(display)
    console = output()
    echo(console)
    show_outcome(console, folder, result, show_next=True)
    if result.get("failures", {}).get("answer_error", 0) == result.get("rollouts", 0) > 0:
        warn(f"Error: no rollout could be graded: {result['first_failures']['answer_error']}")
        raise typer.Exit(1)


def run_with_display(folder: RunFolder, job: Job) -> dict[str, Any]:
    """Run a job with a progress display and return its result; see `report_stop` for errors."""
    from tutelage.cli.display import LiveDisplay

    with LiveDisplay() as display, report_stop(folder, display):
        return job(display)


@contextmanager
def report_stop(folder: RunFolder, display: Progress) -> Generator[None]:
    """Print how to resume a job after an interruption or an error.

    Raises `typer.Exit` after an interruption. Other errors pass, with a note if the job had begun
    or the disk failed; a rejected job gets no note, since a resume would be rejected as well.
    """
    path = Path(format_path(folder.path))
    try:
        yield
    except KeyboardInterrupt as stopped:
        display.finish()
        told = f"{stop_reason(stopped)}Stopped before there was anything to save."
        if folder.config.is_file():
            told = f"Stopped. {stop_reason(stopped)}What was done is saved. {resume_hint(path)}"
        warn(told)
        raise typer.Exit(exit_code(stopped)) from None
    except RunBusyError:
        raise
    except Exception as error:
        told = any(word in str(error) for word in (f"{command_name()} resume", "start again"))
        rejected = isinstance(error, RunError) or not isinstance(error, OSError)
        started = display.worked or not rejected
        if started and not told and folder.config.is_file():
            failed = isinstance(error, FailureBudgetError)
            changed = ", with --allow-changes if you have corrected the agent or its reward"
            error.add_note(f"What was done is saved. {resume_hint(path)}{changed * failed}")
        raise
    finally:
        display.finish()
        remove_if_empty(folder)
