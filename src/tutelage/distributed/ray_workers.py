"""A pool of Ray actors that play groups of rollouts.

The pool is started before a run begins: Ray is connected, and every worker has checked its versions
and loaded its shipment. A group is assigned to the least busy worker. If a worker dies, its groups
are played again on other workers with the same seeds, and a new worker replaces it; only whole
groups are recorded, so no rollout is recorded twice. A rollout depends only on its seeds, the
weights and the agent, not on its worker. `ray_actor.py` is the worker, `shipment.py` its inputs,
and `ray_cluster.py` connects to Ray.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tutelage.distributed import ray_cluster
from tutelage.distributed.ray_actor import Played, RolloutWorker, Weights
from tutelage.distributed.ray_cluster import remote_message
from tutelage.distributed.shipment import put_inputs, versions
from tutelage.errors import RunError, TutelageError
from tutelage.gateway.app import OnTraces
from tutelage.policy import machine
from tutelage.policy.model import Policy
from tutelage.resources import POLICY
from tutelage.rollouts.runner import OnSpans, RolloutSpec
from tutelage.types import JSON, Rollout
from tutelage.weights.inputs import EVALUATION_SLOTS, TrainingInputs
from tutelage.weights.placement import FROZEN, LocalPlacement, PlaySettings, Tell

_MAX_LOSSES = 3
"""Number of workers that may die while they play only one group, before the run fails."""
_IGNORED_CONDITIONS = ("platform", "operation_threads", "shards")
"""Compute conditions that do not change rollouts."""


@dataclass(slots=True, eq=False)
class _RayActor:
    """State of a Ray actor: its running groups and the future of its setup."""

    actor: Any
    prepared: Any
    facts: JSON = field(default_factory=dict[str, Any])
    """Host, process id and compute conditions, empty until the actor is ready."""
    groups: dict[int, Sequence[RolloutSpec]] = field(
        default_factory=dict[int, Sequence[RolloutSpec]]
    )
    exclusive: bool = False
    """True if the actor plays a group that lost a worker before, and no other group."""

    @property
    def load(self) -> int:
        """Return the number of running rollouts of the actor."""
        return sum(len(specs) for specs in self.groups.values())

    @property
    def name(self) -> str:
        """Return the process and host of the actor, for messages."""
        return f"{self.facts['pid']} on {self.facts['host']}" if self.facts else "a new one"


class RayPool:
    """The rollout workers of a run, as Ray actors."""

    def __init__(self, inputs: TrainingInputs) -> None:
        """Start the workers. Raises `ConfigError` and `MissingExtraError` if that fails."""
        self._ray = ray_cluster.import_ray()
        self.lost: type[Exception] = self._ray.exceptions.RayActorError
        self.setting, self.workers = inputs, list[_RayActor]()
        policies = [inputs.policy, *inputs.others.values()]
        size = sum(4 * policy.count() for policy in policies)
        self._connected = ray_cluster.connect(inputs.config, size)
        self._head = ray_cluster.watch_head()
        try:
            self.size = ray_cluster.count_workers(inputs.config)
            self._shipment = put_inputs(inputs)
            self._actor = self._ray.remote(num_cpus=1, max_restarts=0)(RolloutWorker)
            self._start_workers()
            facts = ray_cluster.wait_until_ready([worker.prepared for worker in self.workers])
            for worker, told in zip(self.workers, facts, strict=True):
                worker.facts = told
        except BaseException:
            self.close()
            raise

    def warnings(self) -> list[str]:
        """Return warnings about differences between workers that may change rollouts."""
        mine = _filter(machine.compute_conditions(self.setting.choice))
        return [
            f"rollouts of the Ray worker {worker.name} are not bit-identical to those of this "
            f"machine: here {change.replace(' and is ', ', there ')}"
            for worker in self.workers
            for change in machine.changed_conditions(mine, _filter(worker.facts["conditions"]))
        ]

    def placement(self, get_policy: Callable[[str], Policy], report: Tell) -> RayPlacement:
        """Return the placement of rollouts on these workers; see `weights/placement.py`."""
        return RayPlacement(self, get_policy, report)

    def close(self) -> None:
        """Kill the workers, and shut Ray down if this run started it.

        If the head node is lost, Ray ends by itself.
        """
        self._head.close()
        if not self._head.is_reachable():
            return
        for worker in self.workers:
            self._kill(worker)
        self.workers.clear()
        if self._connected:
            self._ray.shutdown()

    def _start_workers(self) -> None:
        """Start the missing workers, which load their shipment in the background."""
        while len(self.workers) < self.size:
            actor = self._actor.remote()
            self.workers.append(_RayActor(actor, actor.prepare.remote(versions(), self._shipment)))

    def _kill(self, worker: _RayActor) -> None:
        """Kill a worker, if it is still alive."""

        def kill() -> None:
            with suppress(Exception):
                self._ray.kill(worker.actor)

        self._head.call(kill)

    def replace(self, worker: _RayActor) -> bool:
        """Replace a lost worker. Returns False if the worker was replaced before."""
        if worker not in self.workers:
            return False
        self.workers.remove(worker)
        self._kill(worker)
        self._start_workers()
        return True

    def is_ready(self, worker: _RayActor) -> bool:
        """Return True if a worker is ready to play."""
        if not worker.facts and self._ray.wait([worker.prepared], timeout=0)[0]:
            with suppress(Exception):  # what failed is raised where it is asked to play
                worker.facts = self._ray.get(worker.prepared)
        return bool(worker.facts)


class RayPlacement(LocalPlacement):
    """Plays rollouts on the workers of a pool with the current weights."""

    def __init__(self, pool: RayPool, get_policy: Callable[[str], Policy], report: Tell) -> None:
        self._pool, self._policies, self._tell = pool, get_policy, report
        self._references: dict[str, tuple[int, list[Any]]] = {}

    def workers(
        self,
        options: PlaySettings,
        on_spans: OnSpans | None = None,
        on_traces: OnTraces | None = None,
    ) -> RayWorkers:
        """Return the workers for a batch; see `LocalPlacement`.

        Spans sent by agents are passed to `on_spans`.
        """
        given = self._pool.setting.given
        names, limit = [POLICY], self._pool.setting.limits(options.run_id, options.mode).concurrency
        if options.own_agent and given is not None:
            limit, roles = given.manager.n_runners, given.roles
            names = [*dict.fromkeys(roles.policies.values()), *([FROZEN] if roles.frozen else [])]
        weights = {name: self._put_weights(name) for name in names}
        return RayWorkers(self._pool, options, weights, limit, on_spans, self._tell)

    def free(self) -> None:
        """Do nothing, since workers have their own memory."""

    def hand_over_weights(self) -> None:
        """Do nothing, since workers load new weights with the next group."""

    def _put_weights(self, name: str) -> tuple[int, list[Any]]:
        policy, known = self._policies(name), self._references.get(name)
        if known is None or known[0] != policy.version:
            tensors = {n: t.detach().cpu() for n, t in policy.named_tensors()}
            self._references[name] = policy.version, [ray_cluster.import_ray().put(tensors)]
        return self._references[name]


@dataclass(eq=False)
class RayWorkers:
    """The rollout workers of one batch; see `RolloutWorkers`."""

    _pool: RayPool
    _play: PlaySettings
    _weights: Weights
    _max_running: int
    _on_spans: OnSpans | None
    _tell: Tell
    _running: int = 0
    _change: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(
        self, specs: Sequence[RolloutSpec], on_done: Callable[[Rollout], None] | None = None
    ) -> list[Rollout]:
        """Play rollouts; see `RolloutWorkers`. `on_done` is called when a group is complete."""
        groups = [list(g) for _, g in itertools.groupby(specs, lambda spec: spec.group)]
        try:
            async with asyncio.TaskGroup() as tg:
                tasks = [tg.create_task(self._play_group(*g, on_done)) for g in enumerate(groups)]
        except* TutelageError as stopped:
            raise stopped.exceptions[0] from None
        return [rollout for task in tasks for rollout in task.result()]

    async def _play_group(
        self, number: int, specs: Sequence[RolloutSpec], on_done: Callable[[Rollout], None] | None
    ) -> list[Rollout]:
        """Play a group, and play it again if its worker is lost.

        After a loss it is played alone on a worker, so that a group that kills its workers does not
        affect other groups.
        """
        reason: Exception | None = None
        for losses in range(_MAX_LOSSES + 1):
            worker = await self._assign_worker(number, specs, exclusive=losses > 0)
            spans = self._on_spans is not None
            work = worker.actor.play.remote(specs, self._play, self._weights, spans=spans)
            try:
                played: Played = await work
            except asyncio.CancelledError:
                ray_cluster.import_ray().cancel(work)
                raise
            except self._pool.lost as error:
                reason = error
                self._report_lost(worker)
            except TutelageError as error:
                raise RunError(remote_message(error)) from error
            else:
                traces = played.traces
                for rollout in played.rollouts:
                    if self._on_spans is not None:
                        self._on_spans(rollout, [*played.spans.get(rollout.id, ()), *traces])
                        traces = []
                    if on_done is not None:
                        on_done(rollout)
                return played.rollouts
            finally:
                worker.groups.pop(number, None)
                worker.exclusive = False
                self._running -= len(specs)
                async with self._change:
                    self._change.notify_all()
        raise RunError(
            f"{_MAX_LOSSES} Ray workers were lost while they played only the group "
            f"{specs[0].group!r} (task {specs[0].task.id!r}): its tools or environment may "
            "end the process, or memory is too small. Last error: "
            f"{' '.join(str(reason).split())[:300]}"
        )

    async def _assign_worker(
        self, number: int, specs: Sequence[RolloutSpec], *, exclusive: bool = False
    ) -> _RayActor:
        """Wait for a worker with free capacity, and assign the group to the least busy worker."""
        room = min(EVALUATION_SLOTS, self._pool.setting.config.rollout.slots)
        async with self._change:
            while True:
                ready = [w for w in self._pool.workers if self._pool.is_ready(w)]
                free = [
                    worker
                    for worker in ready or self._pool.workers
                    if not worker.load
                    or not (exclusive or worker.exclusive or worker.load + len(specs) > room)
                ]
                if free and (not self._running or self._running + len(specs) <= self._max_running):
                    worker = min(free, key=lambda w: w.load)
                    worker.groups[number], worker.exclusive = specs, exclusive
                    self._running += len(specs)
                    return worker
                await self._change.wait()

    def _report_lost(self, worker: _RayActor) -> None:
        """Report a lost worker once, with the groups that are played again."""
        groups = [specs[0].group for specs in worker.groups.values()]
        step = next((specs[0].step for specs in worker.groups.values()), 0)
        if self._pool.replace(worker):
            plural = "group is" if len(groups) == 1 else "groups are"
            self._tell(
                f"lost the Ray worker {worker.name}: {len(groups)} {plural} played again, with the "
                "same seeds",
                "worker_lost",
                {"tick": step, "worker": worker.name, "groups": groups},
            )


def _filter(conditions: JSON) -> JSON:
    return {key: value for key, value in conditions.items() if key not in _IGNORED_CONDITIONS}
