"""Asynchronous training: groups of rollouts are played ahead of the steps that learn from them.

Groups are numbered in the order in which the step-by-step loop would play them, with its tasks and
seeds. One is admitted while `accepted + running < (step + 1 + staleness) * batch`; a step takes the
first `batch` groups that are complete, and drops those of which a token is more than `staleness`
versions old. They stay in the store, and nothing is trained on them; others are admitted in their
place. The rollouts are tasks of the run's event loop, which stands still while the learner
computes: an engine never sees weights that are half updated, and what goes on meanwhile is what
environments wait for. Between two steps the engine takes the new weights, and rollouts go on.

Which groups a step takes depends on the clock, so it is an event, written before the update when
the store has the rollouts. After a resume the steps that have one take their groups from the store,
bit for bit; then the groups that were complete wait for their step again, and those that were
running are played again. `sampling.py` has the loop that plays a step's rollouts and then learns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextvars import copy_context
from itertools import chain

from tutelage.config import RunConfig
from tutelage.engine.versions import newest_version
from tutelage.rollouts.runner import RolloutSpec
from tutelage.rollouts.workers import RolloutWorkers
from tutelage.types import JSON, Mode, Rollout, Sampled, Task
from tutelage.weights.checkpoint import DROPPED, RL
from tutelage.weights.inputs import drawn
from tutelage.weights.placement import PlaySettings
from tutelage.weights.run import TrainingRun, ungraded
from tutelage.weights.sampling import (
    RolloutGroups,
    draw_tasks,
    specs_of,
    stop_if_never_graded,
)

EVENT = "groups"
"""Which groups met in a step, and which were dropped before it."""
LOOK_SECONDS = 0.5
"""Between two looks at whether a stop was requested."""
STATE = "async"
"""Where a phase remembers which groups are on their way."""


class GroupQueue:
    """The groups of a phase; see the module's docstring."""

    def __init__(self, work: TrainingRun, phase: str, config: RunConfig, steps: int | None) -> None:
        """Goes on from where the checkpoint left the phase, which has `steps` if that is known."""
        self._work, self._phase, self._steps = work, phase, steps
        self._size, self._chains = config.data.train_batch_size, config.agent.num_chains
        self._staleness = config.async_training.staleness_threshold
        self._label = "" if phase == RL else phase
        kept: JSON = work.state.phase_data.get(STATE, {})
        self._admitted: int = kept.get("admitted", 0)
        self._dropped: int = kept.get("dropped", 0)
        self._open: dict[int, int] = dict(kept.get("open", ()))
        """Groups that are admitted, and neither trained nor dropped, with the tick of admission."""
        self._complete = self._recorded()
        self._running: dict[int, asyncio.Task[None]] = {}
        self._replayed: dict[int, JSON] = {}
        """The last event of each step; one that was written again makes those after it void."""
        for event in work.run.events:
            if event["event"] == EVENT and event["phase"] == phase:
                step = event["step"]
                self._replayed = {n: known for n, known in self._replayed.items() if n < step}
                self._replayed[step] = event
        self._live = False
        self._tasks: dict[int, list[Task]] = {}

    def play_groups(self, step: int) -> RolloutGroups:
        """The groups of a step: those that the record has for it, else the first complete ones."""
        start, work = time.perf_counter(), self._work
        self._admit(step)
        event = None if self._live else self._replayed.get(step)
        if event is not None and self._complete.keys() >= {*event["groups"], *event["dropped"]}:
            taken, dropped = event["groups"], event["dropped"]
        else:  # no record of this step, or the store has lost a rollout of it
            taken, dropped = self._fresh(step)
        groups = [self._complete.pop(number) for number in taken]
        stale = [self._complete.pop(number) for number in dropped]
        for number in (*taken, *dropped):
            self._open.pop(number, None)
        self._dropped += len(dropped)
        self._admit(step)
        self._remember()
        played = [*chain(*groups, *stale)]
        work.count(played)
        stop_if_never_graded(work, played)
        work.state.results[DROPPED] = work.state.results.get(DROPPED, 0) + len(dropped)
        metrics = {
            "staleness/dropped": float(len(dropped)),
            "time/rollout": time.perf_counter() - start,
        }
        return RolloutGroups([*chain(*groups)], played, None, metrics)

    def close(self) -> None:
        """Cancel what runs: the phase is over."""
        tasks = [*self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            self._work.loop.run(asyncio.wait(tasks))
        self._running.clear()

    # ------------------------------------------------------------ what is on its way

    def _admit(self, step: int, dropped: int = 0) -> None:
        """Admit the groups of the steps until this one and of `staleness` more, and `dropped` in
        place of others that it is about to drop."""
        ahead = step + 1 + self._staleness
        ahead = ahead if self._steps is None else min(ahead, self._steps)
        most = drawn(self._work.setting, ahead)
        while self._admitted < most + self._dropped + dropped:
            self._open[self._admitted] = self._work.state.tick
            self._admitted += 1

    def _fresh(self, step: int) -> tuple[list[int], list[int]]:
        """Play until the groups of a step are complete, and record which they are."""
        work, version = self._work, self._work.setting.policy.version
        size = drawn(work.setting, step + 1) - drawn(work.setting, step)
        if not self._live:
            # From here on nothing is replayed. Rollouts of later versions than there are now are
            # of a training that is lost, and are played again.
            self._live = True
            newest = {n: map(newest_version, _sampled(g)) for n, g in self._complete.items()}
            for number in [n for n, known in newest.items() if max(known, default=0) > version]:
                self._discard(self._complete.pop(number))
        while True:
            ready = sorted(number for number in self._complete if number in self._open)
            sampled = {n: [s.policy_version for s in _sampled(self._complete[n])] for n in ready}
            oldest = {n: min(known, default=version) for n, known in sampled.items()}
            dropped = [n for n in ready if version - oldest[n] > self._staleness]
            taken = [n for n in ready if n not in dropped][:size]
            self._admit(step, len(dropped))
            self._start()
            if len(taken) == size:
                break
            work.loop.run(self._next())
            if work.run.stop.asked:
                self._remember()
                work.state.tick -= 1  # this step has not begun
                work.check_stop()
        work.run.writer.flush()
        work.run.event(EVENT, phase=self._phase, step=step, groups=taken, dropped=dropped)
        return taken, dropped

    def _start(self) -> None:
        """Play the groups that are admitted, and neither complete nor running."""
        missing = self._open.keys() - self._complete.keys() - self._running.keys()
        if not missing:
            return
        work = self._work
        temperature = work.setting.config.rollout.temperature
        workers = work.placement.workers(PlaySettings(work.run.id, Mode.TRAIN, temperature))
        for number in sorted(missing):
            step, place = divmod(number, self._size)
            if step not in self._tasks:
                self._tasks = {n: tasks for n, tasks in self._tasks.items() if n >= step - 1}
                self._tasks[step] = draw_tasks(work, step, self._size)
            group = [(place, self._tasks[step][place])]
            specs = specs_of(work, self._phase, step, group, self._label)
            playing = self._play(workers, number, specs)
            task = work.loop.get_loop().create_task(playing, context=copy_context())
            self._running[number] = task

    async def _play(
        self, workers: RolloutWorkers, number: int, specs: Sequence[RolloutSpec]
    ) -> None:
        """Play one group to its end, and keep it."""
        rollouts = await workers.run(specs)
        self._work.run.writer.submit(rollouts)
        self._work.stop_if_ungraded(rollouts)
        self._complete[number] = rollouts
        del self._running[number]

    async def _next(self) -> None:
        """Let rollouts go on until a group has ended, or it is time to look around. Raises what a
        group raised."""
        tasks = [*self._running.values()]
        if not tasks:  # the last one has ended just before this began
            return
        done, _ = await asyncio.wait(
            tasks, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()

    # ------------------------------------------------------------ what is on record

    def _recorded(self) -> dict[int, list[Rollout]]:
        """The complete groups that the store has and no step before the checkpoint took."""
        work, mode, tick = self._work, Mode.TRAIN, self._work.state.tick
        for key in [key for key in work.recorded if key[1:] == (mode.value, self._label)]:
            del work.recorded[key]
        before = min(self._open.values(), default=tick + 1) - 1
        stored = work.run.store.rollouts(work.run.id, after=before, label=self._label, mode=mode)
        groups: dict[int, dict[int, Rollout]] = {}
        for rollout in stored:
            if rollout.step <= tick and self._number(rollout) not in self._open:
                continue  # an earlier step took it
            groups.setdefault(self._number(rollout), {})[rollout.index] = rollout
        whole: dict[int, list[Rollout]] = {}
        for number, group in groups.items():
            rollouts = [group[index] for index in sorted(group)]
            if len(rollouts) == self._chains and not any(map(ungraded, rollouts)):
                whole[number] = rollouts
            else:  # what the run stopped at has been fixed since, so it is played again
                self._discard(rollouts)
        return whole

    def _number(self, rollout: Rollout) -> int:
        step, place = rollout.group.rsplit("/", 2)[1:]
        return int(step) * self._size + int(place)

    def _discard(self, rollouts: Iterable[Rollout]) -> None:
        self._work.run.writer.flush()
        for rollout in rollouts:
            self._work.run.store.discard_rollout(rollout.run_id, rollout.id)

    def _remember(self) -> None:
        """Keep for the checkpoint what is on its way."""
        self._work.state.phase_data[STATE] = {
            "admitted": self._admitted,
            "dropped": self._dropped,
            "open": sorted(map(list, self._open.items())),
        }


def _sampled(group: Sequence[Rollout]) -> list[Sampled]:
    """What a policy that is trained sampled in the attempts that count."""
    return [c.sampled for r in group for c in r.last.calls if c.policy is not None]
