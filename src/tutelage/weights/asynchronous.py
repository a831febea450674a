"""Asynchronous training: play groups of rollouts ahead of the steps that learn from them.

Groups are numbered in the order in which the synchronous loop would play them, with the same tasks
and seeds. A group is admitted while `accepted + running < (step + 1 + staleness) * batch`. A step
takes the first `batch` complete groups, and drops groups with a token that is more than `staleness`
versions old; they stay in the store without being trained on, and other groups are admitted in
their place. Rollouts are tasks of the run's event loop, which does not run while the learner
computes, so an engine never sees partly updated weights. Between two steps the engine loads the new
weights, and the rollouts continue.

Which groups a step takes depends on time, so it is recorded as an event before the update, when the
store has the rollouts. After a resume the recorded steps take their groups from the store, bit for
bit; then the complete groups wait for their step again, and the running ones are played again.
`sampling.py` has the synchronous loop.
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
from tutelage.weights.inputs import count_drawn
from tutelage.weights.placement import PlaySettings
from tutelage.weights.run import TrainingRun, reward_failed
from tutelage.weights.sampling import (
    RolloutGroups,
    check_grading,
    draw_tasks,
    make_specs,
)

EVENT = "groups"
"""The event with a step's groups, and those dropped before it."""
LOOK_SECONDS = 0.5
"""Seconds between two checks for a requested stop."""
STATE = "async"
"""Key of the queue's state in the phase's data."""


class GroupQueue:
    """A queue of rollout groups that are played ahead of the training steps."""

    def __init__(self, ctx: TrainingRun, phase: str, config: RunConfig, steps: int | None) -> None:
        """Create the queue, continuing from the phase's checkpoint.

        `steps` is the number of steps of the phase, if it is known.
        """
        self._ctx, self._phase, self._steps = ctx, phase, steps
        self._size, self._chains = config.data.train_batch_size, config.agent.num_chains
        self._staleness = config.async_training.staleness_threshold
        self._label = "" if phase == RL else phase
        kept: JSON = ctx.state.phase_data.get(STATE, {})
        self._admitted: int = kept.get("admitted", 0)
        self._dropped: int = kept.get("dropped", 0)
        self._open: dict[int, int] = dict(kept.get("open", ()))
        """Admitted groups that are neither trained nor dropped, with their tick of admission."""
        self._complete = self._load_groups()
        self._running: dict[int, asyncio.Task[None]] = {}
        self._replayed: dict[int, JSON] = {}
        """The last event of each step; a repeated event invalidates those of later steps."""
        for event in ctx.run.events:
            if event["event"] == EVENT and event["phase"] == phase:
                step = event["step"]
                self._replayed = {n: known for n, known in self._replayed.items() if n < step}
                self._replayed[step] = event
        self._live = False
        self._tasks: dict[int, list[Task]] = {}

    def play_groups(self, step: int) -> RolloutGroups:
        """Return the recorded groups of a step, or the first complete groups."""
        start, ctx = time.perf_counter(), self._ctx
        self._admit_groups(step)
        event = None if self._live else self._replayed.get(step)
        if event is not None and self._complete.keys() >= {*event["groups"], *event["dropped"]}:
            taken, dropped = event["groups"], event["dropped"]
        else:  # no record of this step, or the store has lost a rollout of it
            taken, dropped = self._play_step(step)
        groups = [self._complete.pop(number) for number in taken]
        stale = [self._complete.pop(number) for number in dropped]
        for number in (*taken, *dropped):
            self._open.pop(number, None)
        self._dropped += len(dropped)
        self._admit_groups(step)
        self._save_state()
        played = [*chain(*groups, *stale)]
        ctx.add_rollouts(played)
        check_grading(ctx, played)
        ctx.state.results[DROPPED] = ctx.state.results.get(DROPPED, 0) + len(dropped)
        metrics = {
            "staleness/dropped": float(len(dropped)),
            "time/rollout": time.perf_counter() - start,
        }
        return RolloutGroups([*chain(*groups)], played, None, metrics)

    def close(self) -> None:
        """Cancel all running groups."""
        tasks = [*self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            self._ctx.event_loop.run(asyncio.wait(tasks))
        self._running.clear()

    # ------------------------------------------------------------ what is on its way

    def _admit_groups(self, step: int, replacements: int = 0) -> None:
        """Admit the groups of all steps up to `step` plus the staleness threshold.

        `replacements` is the number of additional groups that replace stale groups.
        """
        ahead = step + 1 + self._staleness
        ahead = ahead if self._steps is None else min(ahead, self._steps)
        count = count_drawn(self._ctx.setting, ahead)
        while self._admitted < count + self._dropped + replacements:
            self._open[self._admitted] = self._ctx.state.tick
            self._admitted += 1

    def _play_step(self, step: int) -> tuple[list[int], list[int]]:
        """Play rollouts until the groups of a step are complete, and record the group numbers."""
        ctx, version = self._ctx, self._ctx.setting.policy.version
        size = count_drawn(ctx.setting, step + 1) - count_drawn(ctx.setting, step)
        if not self._live:
            # From here on nothing is replayed. Rollouts of later versions than there are now are
            # of a training that is lost, and are played again.
            self._live = True
            newest = {n: map(newest_version, _samples(g)) for n, g in self._complete.items()}
            for number in [n for n, known in newest.items() if max(known, default=0) > version]:
                self._discard_rollouts(self._complete.pop(number))
        while True:
            ready = sorted(number for number in self._complete if number in self._open)
            sampled = {n: [s.policy_version for s in _samples(self._complete[n])] for n in ready}
            oldest = {n: min(known, default=version) for n, known in sampled.items()}
            dropped = [n for n in ready if version - oldest[n] > self._staleness]
            taken = [n for n in ready if n not in dropped][:size]
            self._admit_groups(step, len(dropped))
            self._start_groups()
            if len(taken) == size:
                break
            ctx.event_loop.run(self._wait_for_group())
            if ctx.run.stop.asked:
                self._save_state()
                ctx.state.tick -= 1  # this step has not begun
                ctx.check_stop()
        ctx.run.writer.flush()
        ctx.run.log_event(EVENT, phase=self._phase, step=step, groups=taken, dropped=dropped)
        return taken, dropped

    def _start_groups(self) -> None:
        """Start the admitted groups that are neither complete nor running."""
        missing = self._open.keys() - self._complete.keys() - self._running.keys()
        if not missing:
            return
        ctx = self._ctx
        temperature = ctx.setting.config.rollout.temperature
        workers = ctx.placement.workers(PlaySettings(ctx.run.id, Mode.TRAIN, temperature))
        for number in sorted(missing):
            step, place = divmod(number, self._size)
            if step not in self._tasks:
                self._tasks = {n: tasks for n, tasks in self._tasks.items() if n >= step - 1}
                self._tasks[step] = draw_tasks(ctx, step, self._size)
            group = [(place, self._tasks[step][place])]
            specs = make_specs(ctx, self._phase, step, group, self._label)
            playing = self._play_group(workers, number, specs)
            task = ctx.event_loop.get_loop().create_task(playing, context=copy_context())
            self._running[number] = task

    async def _play_group(
        self, workers: RolloutWorkers, group_number: int, specs: Sequence[RolloutSpec]
    ) -> None:
        """Play the rollouts of one group and store them."""
        rollouts = await workers.run(specs)
        self._ctx.run.writer.submit(rollouts)
        self._ctx.check_rewards(rollouts)
        self._complete[group_number] = rollouts
        del self._running[group_number]

    async def _wait_for_group(self) -> None:
        """Wait until a group is complete or the check interval has passed.

        Raises the exception of a failed group.
        """
        tasks = [*self._running.values()]
        if not tasks:  # the last one has ended just before this began
            return
        done, _ = await asyncio.wait(
            tasks, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()

    # ------------------------------------------------------------ what is on record

    def _load_groups(self) -> dict[int, list[Rollout]]:
        """Load the complete groups that were not used by a step before the checkpoint."""
        ctx, mode, tick = self._ctx, Mode.TRAIN, self._ctx.state.tick
        for key in [key for key in ctx.recorded if key[1:] == (mode.value, self._label)]:
            del ctx.recorded[key]
        before = min(self._open.values(), default=tick + 1) - 1
        stored = ctx.run.store.rollouts(ctx.run.id, after=before, label=self._label, mode=mode)
        groups: dict[int, dict[int, Rollout]] = {}
        for rollout in stored:
            if rollout.step <= tick and self._group_number(rollout) not in self._open:
                continue  # an earlier step took it
            groups.setdefault(self._group_number(rollout), {})[rollout.index] = rollout
        whole: dict[int, list[Rollout]] = {}
        for number, group in groups.items():
            rollouts = [group[index] for index in sorted(group)]
            if len(rollouts) == self._chains and not any(map(reward_failed, rollouts)):
                whole[number] = rollouts
            else:  # what the run stopped at has been fixed since, so it is played again
                self._discard_rollouts(rollouts)
        return whole

    def _group_number(self, rollout: Rollout) -> int:
        step, place = rollout.group.rsplit("/", 2)[1:]
        return int(step) * self._size + int(place)

    def _discard_rollouts(self, rollouts: Iterable[Rollout]) -> None:
        self._ctx.run.writer.flush()
        for rollout in rollouts:
            self._ctx.run.store.discard_rollout(rollout.run_id, rollout.id)

    def _save_state(self) -> None:
        """Save the state of the queue for the checkpoint."""
        self._ctx.state.phase_data[STATE] = {
            "admitted": self._admitted,
            "dropped": self._dropped,
            "open": sorted(map(list, self._open.items())),
        }


def _samples(group: Sequence[Rollout]) -> list[Sampled]:
    """Return the sampled tokens of all trained calls in the last attempts of a group."""
    return [c.sampled for r in group for c in r.last.calls if c.policy is not None]
