"""Progress that a long job reports: phases, steps, notes.

Training code knows only this interface; `cli/display.py` draws it live, tests record it. A job
never prints.
"""

from __future__ import annotations

from collections.abc import Mapping

LATER = "time/later"
"""Metric of a step: estimated seconds of the phases after this one."""


class Progress:
    """Receiver of a job's progress, which ignores all; override what you need. Every method returns
    at once."""

    shows = False
    """True if notes are shown; otherwise warnings of a job that Python code started are logged."""

    worked = False
    """True once the job has begun, so that it can be resumed."""

    def start(self, title: str, lines: Mapping[str, str]) -> None:
        """Receive the job's name and facts (device and why, model, run folder) when it begins."""

    def phase(self, name: str, *, steps: int | None = None, seconds: float | None = None) -> None:
        """Receive the start of a phase, with its limit in steps, in seconds, or without one."""

    def step(self, done: int, values: Mapping[str, float]) -> None:
        """Receive the number of finished steps of the phase, with metrics by name."""

    def evaluation(self, label: str, done: int, total: int) -> None:
        """Receive the number of finished rollouts of an evaluation."""

    def note(self, text: str) -> None:
        """Receive a message, such as a warning, a checkpoint or a decision."""

    def finish(self) -> None:
        """Receive the end of the job, successful or not; a display may close."""
