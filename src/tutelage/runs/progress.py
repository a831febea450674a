"""What a long job reports to its observer: phases, steps, notes.

The training code only knows this; `cli/display.py` draws it live, tests record it. A job
never prints.
"""

from __future__ import annotations

from collections.abc import Mapping

LATER = "time/later"
"""Metric of a step: seconds that the phases after this one will take, as far as they are known."""


class Progress:
    """Receives what happens in a job, in order, and drops it: override what you need. Every method
    returns at once."""

    shows = False
    """Whether notes are read; if not, warnings of a job that Python code started are logged."""

    worked = False
    """Whether the job has begun, so that there is something to continue."""

    def start(self, title: str, lines: Mapping[str, str]) -> None:
        """The job begins: its name and a few facts (device and why, model, run folder)."""

    def phase(self, name: str, *, steps: int | None = None, seconds: float | None = None) -> None:
        """A phase begins, bounded by steps, by seconds, or by neither."""

    def step(self, done: int, values: Mapping[str, float]) -> None:
        """`done` steps of the phase are complete; `values` are metrics by their names."""

    def evaluation(self, label: str, done: int, total: int) -> None:
        """Held-out rollouts are being run."""

    def note(self, text: str) -> None:
        """Something worth a line: a warning, a checkpoint, a decision."""

    def finish(self) -> None:
        """The job ended, well or not; the display may be taken down."""
