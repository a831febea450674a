"""Track waiting and busy rollouts, to make the engine's schedule reproducible.

A rollout takes part as a participant. Its code may branch into tasks that sample concurrently, each
a branch: a task is registered at its first sample, as a child of the branch in whose context it was
created. A rollout is thinking while any of its branches neither waits for an engine nor has
unfinished children; a branch with children is assumed to wait for them, as structured concurrency
(`gather`, `TaskGroup`) does. Branches that wait for each other in other ways would block the engine
forever: when nothing happens for a while, such rollouts from then on count as thinking only while
none of their branches waits. `driver.py` steps an engine based on this state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

_PATIENCE = 2.0
"""Seconds without any event after which branches are assumed to wait for each other."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Branch:
    """An asyncio task of a rollout that samples from an engine."""

    participant: _Participant
    parent: _Branch | None
    waiting: bool = False
    children: int = 0
    """Branches created inside this one whose tasks are not done."""


_CURRENT: ContextVar[tuple[_Branch, ...]] = ContextVar("tutelage_branches", default=())
"""Branches in whose context the code runs, at most one per barrier."""


def current_branches() -> tuple[_Branch, ...]:
    """Return the rollout branches of the current context, to restore with `use_branches`."""
    return _CURRENT.get()


@contextmanager
def use_branches(branches: tuple[_Branch, ...]) -> Generator[None]:
    """Attribute engine calls in the block to the rollout of `branches`, unless the context already
    has a rollout."""
    if _CURRENT.get() or not branches:
        yield
        return
    token = _CURRENT.set(branches)
    try:
        yield
    finally:
        _CURRENT.reset(token)


class _Participant:
    """A rollout, and those of its concurrent tasks that have called the engine."""

    def __init__(self, barrier: CallBarrier, task: asyncio.Task[object] | None) -> None:
        self.barrier = barrier
        self.root = _Branch(self, None)
        self.branches: dict[asyncio.Task[object] | None, _Branch] = {task: self.root}
        self.waiting = 0
        """Number of branches that wait for an engine."""
        self.thinking, self.open = True, True

    def get_branch(self, parent: _Branch) -> _Branch:
        """Return the current task's branch, creating it as a child of `parent` if necessary."""
        task = asyncio.current_task()
        branch = self.branches.get(task)
        if branch is None:
            branch = self.branches[task] = _Branch(self, parent)
            parent.children += 1
            if task is not None:
                task.add_done_callback(self._remove_task)
        return branch

    def _remove_task(self, task: asyncio.Task[object]) -> None:
        branch = self.branches.pop(task)
        if branch.parent is not None:
            branch.parent.children -= 1
        self.barrier.refresh(self)

    def is_thinking(self, structured: bool) -> bool:
        """Return True if the rollout can make progress without an engine reply."""
        if not self.open:
            return False
        if not structured or not self.waiting:
            return not self.waiting
        return any(not b.waiting and not b.children for b in self.branches.values())


class CallBarrier:
    """Count the registered rollouts that are busy, i.e. not waiting for an engine."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """Create an empty barrier. `on_change` is called after every change of its state."""
        self.thinking = 0
        """Number of thinking rollouts, less the waiting requests from outside of any rollout."""
        self._participants: dict[_Participant, None] = {}
        self._on_change = on_change
        self._structured = True
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def participant(self) -> Generator[None]:
        """Register a rollout for the duration of the block."""
        before = _CURRENT.get()
        rollout = _Participant(self, asyncio.current_task())
        self._participants[rollout] = None
        self.thinking += 1
        _CURRENT.set((*(b for b in before if b.participant.barrier is not self), rollout.root))
        try:
            yield
        finally:
            _CURRENT.set(before)
            rollout.open = False
            self._participants.pop(rollout)
            # Assume structured concurrency again when all current rollouts have ended.
            self._structured = self._structured or not self._participants
            self.refresh(rollout)

    def wait(self) -> Callable[[], None]:
        """Mark the current task as waiting for an engine until the returned function is called."""
        current = next((b for b in _CURRENT.get() if b.participant.barrier is self), None)
        if current is None or not current.participant.open:
            self.thinking -= 1
            self._notify_change()
            return partial(self._resume, None)
        branch = current.participant.get_branch(current)
        if branch is not current:
            others = (b for b in _CURRENT.get() if b is not current)
            _CURRENT.set((*others, branch))
        branch.waiting = True
        branch.participant.waiting += 1
        self.refresh(branch.participant)
        return partial(self._resume, branch)

    def _resume(self, branch: _Branch | None) -> None:
        """Mark a waiting caller of `branch` as running again."""
        if branch is None:
            self.thinking += 1
            return
        branch.waiting = False
        branch.participant.waiting -= 1
        self.refresh(branch.participant)

    def refresh(self, participant: _Participant) -> None:
        """Update the number of busy rollouts after `participant` has changed."""
        is_thinking = participant.is_thinking(self._structured)
        self.thinking += is_thinking - participant.thinking
        participant.thinking = is_thinking
        self._notify_change()

    def check_deadlock(self) -> None:
        """Start the deadlock timer if every rollout that blocks the engine is waiting itself."""
        if self._structured and self._timer is None:
            thinking = [p for p in self._participants if p.thinking]
            if thinking and all(p.waiting for p in thinking):
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(_PATIENCE, self._on_timeout)

    def _notify_change(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_change()

    def _on_timeout(self) -> None:
        self._timer = None
        self._structured = False
        logger.warning(
            "some tasks of a rollout wait for each other while others wait for the engine; the "
            "engine no longer waits for them, so their samples may not be reproducible bit for bit"
        )
        for participant in list(self._participants):
            self.refresh(participant)
