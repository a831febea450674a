"""Rollouts that wait for the engine, and those that are busy: what a schedule that repeats has to
know.

A rollout takes part as a participant. Its code may branch into tasks that sample at the same
time, each a branch: a task is known from its first sample on, as a child of the branch in whose
context it was made. A rollout thinks while any of its branches neither waits for an engine nor has
children that are not done; a branch with children is taken to wait for them, as structured
concurrency (`gather`, `TaskGroup`) does. Branches that wait for each other in other ways would stop
the engine for ever: when nothing else has moved for a while, such rollouts are taken to think only
while none of their branches waits, from then on. `driver.py` steps an engine by what is known here.
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
"""Seconds without any event after which branches are taken to wait for each other."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Branch:
    """One task of a rollout that samples."""

    participant: _Participant
    parent: _Branch | None
    waiting: bool = False
    children: int = 0
    """Branches made inside this one whose tasks are not done."""


_HERE: ContextVar[tuple[_Branch, ...]] = ContextVar("tutelage_branches", default=())
"""The branches in whose context code runs, one a barrier at most."""


def current_branches() -> tuple[_Branch, ...]:
    """Whose code is running; to be handed to `acting_for` where context is lost."""
    return _HERE.get()


@contextmanager
def acting_for(branches: tuple[_Branch, ...]) -> Generator[None]:
    """Count what is sampled inside for the rollout of `branches`, unless it has one already."""
    if _HERE.get() or not branches:
        yield
        return
    token = _HERE.set(branches)
    try:
        yield
    finally:
        _HERE.reset(token)


class _Participant:
    """One rollout, and the branches of its code that have sampled."""

    def __init__(self, barrier: CallBarrier, task: asyncio.Task[object] | None) -> None:
        self.barrier = barrier
        self.root = _Branch(self, None)
        self.branches: dict[asyncio.Task[object] | None, _Branch] = {task: self.root}
        self.waiting = 0
        """Branches that wait for an engine."""
        self.thinking, self.open = True, True

    def branch(self, inherited: _Branch) -> _Branch:
        """The branch of the current task, a new one below `inherited` if it has none."""
        task = asyncio.current_task()
        branch = self.branches.get(task)
        if branch is None:
            branch = self.branches[task] = _Branch(self, inherited)
            inherited.children += 1
            if task is not None:
                task.add_done_callback(self._leave)
        return branch

    def _leave(self, task: asyncio.Task[object]) -> None:
        gone = self.branches.pop(task)
        if gone.parent is not None:
            gone.parent.children -= 1
        self.barrier.refresh(self)

    def thinks(self, trusting: bool) -> bool:
        """Whether anything may still come from it before an engine answers it."""
        if not self.open:
            return False
        if not trusting or not self.waiting:
            return not self.waiting
        return any(not b.waiting and not b.children for b in self.branches.values())


class CallBarrier:
    """The rollouts that take part, and how many of them think."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed` is called whenever what is known here has changed."""
        self.thinking = 0
        """Rollouts that think, less the requests from outside of any that wait."""
        self._present: dict[_Participant, None] = {}
        self._on_change = changed
        self._trusting = True
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def participant(self) -> Generator[None]:
        """Around a rollout."""
        before = _HERE.get()
        present = _Participant(self, asyncio.current_task())
        self._present[present] = None
        self.thinking += 1
        _HERE.set((*(b for b in before if b.participant.barrier is not self), present.root))
        try:
            yield
        finally:
            _HERE.set(before)
            present.open = False
            self._present.pop(present)
            # Trust is lost for as long as the rollouts last that play now.
            self._trusting = self._trusting or not self._present
            self.refresh(present)

    def wait(self) -> Callable[[], None]:
        """The current task waits for an engine from now on, until what is returned is called."""
        mine = next((b for b in _HERE.get() if b.participant.barrier is self), None)
        if mine is None or not mine.participant.open:
            self.thinking -= 1
            self._changed()
            return partial(self._resume, None)
        branch = mine.participant.branch(mine)
        if branch is not mine:
            others = (b for b in _HERE.get() if b is not mine)
            _HERE.set((*others, branch))
        branch.waiting = True
        branch.participant.waiting += 1
        self.refresh(branch.participant)
        return partial(self._resume, branch)

    def _resume(self, branch: _Branch | None) -> None:
        """The caller that waited as `branch` has its answer."""
        if branch is None:
            self.thinking += 1
            return
        branch.waiting = False
        branch.participant.waiting -= 1
        self.refresh(branch.participant)

    def refresh(self, participant: _Participant) -> None:
        """Count a participant again after a change."""
        thinks = participant.thinks(self._trusting)
        self.thinking += thinks - participant.thinking
        participant.thinking = thinks
        self._changed()

    def blocked(self) -> None:
        """An engine has work and may not step: find out whether it would wait for ever."""
        if self._trusting and self._timer is None:
            thinkers = [p for p in self._present if p.thinking]
            if thinkers and all(p.waiting for p in thinkers):
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(_PATIENCE, self._lose_trust)

    def _changed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_change()

    def _lose_trust(self) -> None:
        self._timer = None
        self._trusting = False
        logger.warning(
            "some tasks of a rollout wait for each other while others wait for the engine; the "
            "engine no longer waits for them, so their samples may not be reproducible bit for bit"
        )
        for participant in list(self._present):
            self.refresh(participant)
