"""Lanes: what one rollout asks at the same time, kept apart so that its samples repeat.

Calls that follow each other are numbered in one lane. A call that begins while another runs gets a
lane of its own, and later calls of the same task, or that continue the same conversation, stay in
it. So the seed of a call does not depend on which of two tools came back first. `chat.py` gives
each call a lane.
"""

from __future__ import annotations

import asyncio
from weakref import ref

from tutelage.seeds import SeedTree


class Lane:
    """One line of calls, one after the other."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = 0
        """Calls that have begun."""
        self.busy = False
        self._task: ref[asyncio.Task[object]] | None = None

    @property
    def task(self) -> asyncio.Task[object] | None:
        """The task that used it last, unless that is done."""
        task = None if self._task is None else self._task()
        return None if task is None or task.done() else task

    def begin(self, seeds: SeedTree) -> SeedTree:
        """Take the lane for a call of the current task; the seeds of the call."""
        task = asyncio.current_task()
        self._task = None if task is None else ref(task)
        self.busy = True
        number, self.calls = self.calls, self.calls + 1
        lane = seeds if self.number == 0 else seeds.child("lane", self.number)
        return lane.child("call", number)


class Lanes:
    """The lanes of one attempt."""

    def __init__(self) -> None:
        self._lanes: list[Lane] = []

    def choose(self, continued: int | None) -> Lane:
        """The current task's lane, else that of the call which is continued, else one that nobody
        uses any more, else a new one."""
        idle = [lane for lane in self._lanes if not lane.busy]
        task = asyncio.current_task()
        mine = (lane for lane in idle if lane.task is task)
        known = (lane for lane in idle if lane.number == continued)
        left = (lane for lane in idle if lane.task is None)
        for lane in (*mine, *known, *left):
            return lane
        self._lanes.append(Lane(len(self._lanes)))
        return self._lanes[-1]
