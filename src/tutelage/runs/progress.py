"""Progress that a long job reports: phases, steps, notes.

Training code knows only this interface; `cli/display.py` draws it live, tests record it. A job
never prints.
"""

from __future__ import annotations

from collections.abc import Mapping

LATER = "time/later"
"""Metric of a step: estimated seconds of the phases after this one."""


class Progress:
    """Base class of progress displays. Its methods do nothing and must not block when
    overridden."""

    shows = False
    """True if notes are shown; otherwise warnings of a job that Python code started are logged."""

    worked = False
    """True once the job has begun, so that it can be resumed."""

    def start(self, title: str, lines: Mapping[str, str]) -> None:
        """Called at the start of a job with its title and facts: device, model, run folder."""

    def phase(self, name: str, *, steps: int | None = None, seconds: float | None = None) -> None:
        """Called at the start of a phase, with its limit in steps or seconds, if any."""

    def step(self, done: int, values: Mapping[str, float]) -> None:
        """Called after a step with the number of finished steps and the metrics by name."""

    def evaluation(self, label: str, done: int, total: int) -> None:
        """Called during an evaluation with the number of finished rollouts."""

    def note(self, text: str) -> None:
        """Called with a message, such as a warning, a checkpoint or a decision."""

    def finish(self) -> None:
        """Called at the end of the job, whether it succeeded or failed."""
