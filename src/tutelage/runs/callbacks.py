"""Callbacks: a user's own code at the steps of a run.

`Callback` has a method for each moment, all empty: override what you need. They run in the thread
that trains (rollouts' in the loop that plays them), one after another; what they raise ends the
run, since silence would hide it. `CallbackProgress` puts callbacks behind the `Progress` that jobs
report to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tutelage.runs.progress import Progress
from tutelage.runs.result import TrainingResult
from tutelage.runs.rounds import Round
from tutelage.types import Rollout


class Callback:
    """See the module's docstring."""

    def on_train_start(self, title: str, facts: Mapping[str, str]) -> None:
        """The job begins: its recipe and a few facts, such as the run folder."""

    def on_phase_start(self, name: str) -> None:
        """A phase begins, such as `reinforcement learning`."""

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step of the phase is done; `metrics` are the last one's."""

    def on_round_end(self, found: Round) -> None:
        """A round of a prompt search has ended: its prompt, rewards and candidates."""

    def on_rollout_end(self, rollout: Rollout) -> None:
        """A rollout has ended, in training or evaluation, with its record."""

    def on_train_end(self, result: TrainingResult) -> None:
        """The job is finished."""


def on_rollout(callbacks: Sequence[Callback]) -> Callable[[Rollout], None] | None:
    """What notifies callbacks of each rollout; None if there are none."""

    def told(rollout: Rollout) -> None:
        for callback in callbacks:
            callback.on_rollout_end(rollout)

    return told if callbacks else None


class CallbackProgress(Progress):
    """A `Progress` that tells callbacks, and another `Progress`."""

    def __init__(self, inner: Progress, callbacks: Sequence[Callback]) -> None:
        self._inner, self._callbacks = inner, callbacks
        self.shows = inner.shows

    def start(self, title: str, lines: Mapping[str, str]) -> None:
        """The job begins."""
        self._inner.start(title, lines)
        for callback in self._callbacks:
            callback.on_train_start(title, lines)

    def phase(self, name: str, *, steps: int | None = None, seconds: float | None = None) -> None:
        """A phase begins."""
        self._inner.phase(name, steps=steps, seconds=seconds)
        for callback in self._callbacks:
            callback.on_phase_start(name)

    def step(self, done: int, values: Mapping[str, float]) -> None:
        """Steps are complete."""
        self._inner.step(done, values)
        for callback in self._callbacks:
            callback.on_step_end(done, values)

    def evaluation(self, label: str, done: int, total: int) -> None:
        """Held-out rollouts are being run."""
        self._inner.evaluation(label, done, total)

    def note(self, text: str) -> None:
        """Something worth a line."""
        self._inner.note(text)

    def finish(self) -> None:
        """The job ended."""
        self._inner.finish()
