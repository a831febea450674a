"""Callbacks: a user's code that is called during a run.

`Callback` has a method for each event, all empty; override those that you need. They run in the
training thread (`on_rollout_end` in the loop that plays rollouts), one after another; an exception
in one ends the run. `CallbackProgress` forwards the `Progress` of a job to callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tutelage.runs.progress import Progress
from tutelage.runs.result import TrainingResult
from tutelage.runs.rounds import Round
from tutelage.types import Rollout


class Callback:
    """Base class of callbacks, with one method for each event of a run."""

    def on_train_start(self, title: str, facts: Mapping[str, str]) -> None:
        """Called at the start of the job with its title and facts such as the run folder."""

    def on_phase_start(self, name: str) -> None:
        """Called at the start of a phase, such as `reinforcement learning`."""

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called after a step of a phase with the metrics of the step."""

    def on_round_end(self, found: Round) -> None:
        """Called after a round of a prompt search with the prompt, rewards and candidates."""

    def on_rollout_end(self, rollout: Rollout) -> None:
        """Called after each rollout, in training and evaluation."""

    def on_train_end(self, result: TrainingResult) -> None:
        """Called at the end of the job with its result."""


def rollout_hook(callbacks: Sequence[Callback]) -> Callable[[Rollout], None] | None:
    """Return a function that passes a rollout to all callbacks, or None without callbacks."""

    def notify(rollout: Rollout) -> None:
        for callback in callbacks:
            callback.on_rollout_end(rollout)

    return notify if callbacks else None


class CallbackProgress(Progress):
    """`Progress` that forwards every event to another `Progress` and to callbacks."""

    def __init__(self, inner: Progress, callbacks: Sequence[Callback]) -> None:
        self._inner, self._callbacks = inner, callbacks
        self.shows = inner.shows

    def start(self, title: str, lines: Mapping[str, str]) -> None:
        """Forward the start of a job."""
        self._inner.start(title, lines)
        for callback in self._callbacks:
            callback.on_train_start(title, lines)

    def phase(self, name: str, *, steps: int | None = None, seconds: float | None = None) -> None:
        """Forward the start of a phase."""
        self._inner.phase(name, steps=steps, seconds=seconds)
        for callback in self._callbacks:
            callback.on_phase_start(name)

    def step(self, done: int, values: Mapping[str, float]) -> None:
        """Forward the metrics of a step."""
        self._inner.step(done, values)
        for callback in self._callbacks:
            callback.on_step_end(done, values)

    def evaluation(self, label: str, done: int, total: int) -> None:
        """Forward the progress of an evaluation."""
        self._inner.evaluation(label, done, total)

    def note(self, text: str) -> None:
        """Forward a message."""
        self._inner.note(text)

    def finish(self) -> None:
        """Forward the end of a job."""
        self._inner.finish()
