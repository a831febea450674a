"""A pool of Ray actors that play rollouts, a group at a time, and lose none.

The pool is started before a run begins: Ray is connected, every worker has said that it is of the
same Python and version, and has loaded what it plays with. A group goes to the least busy worker.
When a worker dies, what it was playing is played again by others with the same seeds, and a new
worker takes its place; only a whole group counts as played, so nothing is recorded twice. A
rollout is a function of its seeds, the weights and the agent, so nobody sees who played it. The
worker's side is `ray_actor.py`, what is sent to it `shipment.py`, Ray itself `ray_cluster.py`.
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
from tutelage.distributed.ray_cluster import own_words
from tutelage.distributed.shipment import here, ship
from tutelage.errors import RunError, TutelageError
from tutelage.gateway.app import OnTraces
from tutelage.policy import machine
from tutelage.policy.model import Policy
from tutelage.resources import POLICY
from tutelage.rollouts.runner import OnSpans, RolloutSpec
from tutelage.types import JSON, Rollout
from tutelage.weights.inputs import EVALUATION_SLOTS, TrainingInputs
from tutelage.weights.placement import FROZEN, LocalPlacement, PlaySettings, Tell

_LOSSES = 3
"""Workers that a group may lose while it plays there alone: then it is the group that ends them."""
_NOT_BITS = ("platform", "operation_threads", "shards")
"""Conditions of a machine that change no rollout."""


@dataclass(slots=True, eq=False)
class _RayActor:
    """One actor: what it has in hand, and its answer to being prepared."""

    actor: Any
    prepared: Any
    facts: JSON = field(default_factory=dict[str, Any])
    """Host, process and conditions, once it said so."""
    groups: dict[int, Sequence[RolloutSpec]] = field(
        default_factory=dict[int, Sequence[RolloutSpec]]
    )
    alone: bool = False
    """Whether it plays a group that was lost before, and no other beside it."""

    @property
    def load(self) -> int:
        """Rollouts that it plays now."""
        return sum(len(specs) for specs in self.groups.values())

    @property
    def name(self) -> str:
        return f"{self.facts['pid']} on {self.facts['host']}" if self.facts else "a new one"


class RayPool:
    """See the module's docstring."""

    def __init__(self, setting: TrainingInputs) -> None:
        """Start workers. Raises `ConfigError` and `MissingExtraError` for what stands against."""
        self._ray = ray_cluster.import_ray()
        self.lost: type[Exception] = self._ray.exceptions.RayActorError
        self.setting, self.workers = setting, list[_RayActor]()
        policies = [setting.policy, *setting.others.values()]
        size = sum(4 * policy.count() for policy in policies)
        self._connected = ray_cluster.connect(setting.config, size)
        self._head = ray_cluster.watch_head()
        try:
            self.size = ray_cluster.workers_of(setting.config)
            self._shipment = ship(setting)
            self._actor = self._ray.remote(num_cpus=1, max_restarts=0)(RolloutWorker)
            self._fill()
            facts = ray_cluster.prepared([worker.prepared for worker in self.workers])
            for worker, told in zip(self.workers, facts, strict=True):
                worker.facts = told
        except BaseException:
            self.close()
            raise

    def remarks(self) -> list[str]:
        """What rollouts may depend on and is not the same on every worker."""
        mine = machine.compute_conditions(self.setting.choice)
        return [
            f"rollouts of the Ray worker {worker.name} are not bit-identical to those of this "
            f"machine: here {change.replace(' and is ', ', there ')}"
            for worker in self.workers
            for change in machine.changed_conditions(_bits(mine), _bits(worker.facts["conditions"]))
        ]

    def placement(self, policies: Callable[[str], Policy], tell: Tell) -> RayPlacement:
        """See `weights/placement.py`."""
        return RayPlacement(self, policies, tell)

    def close(self) -> None:
        """End the workers, and Ray where it was begun here; without its head it ends by itself."""
        self._head.close()
        if not self._head.reachable():
            return
        for worker in self.workers:
            self._end(worker)
        self.workers.clear()
        if self._connected:
            self._ray.shutdown()

    def _fill(self) -> None:
        """Start as many workers as there should be; they get ready by themselves."""
        while len(self.workers) < self.size:
            actor = self._actor.remote()
            self.workers.append(_RayActor(actor, actor.prepare.remote(here(), self._shipment)))

    def _end(self, worker: _RayActor) -> None:
        """End a worker, whether or not it lives."""

        def kill() -> None:
            with suppress(Exception):
                self._ray.kill(worker.actor)

        self._head.ask(kill)

    def replace(self, worker: _RayActor) -> bool:
        """Put a new worker in the place of a lost one; False where that was done before."""
        if worker not in self.workers:
            return False
        self.workers.remove(worker)
        self._end(worker)
        self._fill()
        return True

    def known(self, worker: _RayActor) -> bool:
        """Return True if a worker is ready to play."""
        if not worker.facts and self._ray.wait([worker.prepared], timeout=0)[0]:
            with suppress(Exception):  # what failed is raised where it is asked to play
                worker.facts = self._ray.get(worker.prepared)
        return bool(worker.facts)


class RayPlacement(LocalPlacement):
    """Rollouts are played by the workers of a pool, with the weights of now."""

    def __init__(self, pool: RayPool, policies: Callable[[str], Policy], tell: Tell) -> None:
        self._pool, self._policies, self._tell = pool, policies, tell
        self._put: dict[str, tuple[int, list[Any]]] = {}

    def workers(
        self,
        play: PlaySettings,
        on_spans: OnSpans | None = None,
        on_traces: OnTraces | None = None,
    ) -> RayWorkers:
        """See `LocalPlacement`. What agents send by themselves comes with `on_spans`."""
        given = self._pool.setting.given
        names, at_once = [POLICY], self._pool.setting.limits(play.run_id, play.mode).concurrency
        if play.own_agent and given is not None:
            at_once, roles = given.manager.n_runners, given.roles
            names = [*dict.fromkeys(roles.policies.values()), *([FROZEN] if roles.frozen else [])]
        weights = {name: self._weights(name) for name in names}
        return RayWorkers(self._pool, play, weights, at_once, on_spans, self._tell)

    def free(self) -> None:
        """Workers have memory of their own."""

    def hand_over_weights(self) -> None:
        """Workers take them with the first group that needs them."""

    def _weights(self, name: str) -> tuple[int, list[Any]]:
        policy, known = self._policies(name), self._put.get(name)
        if known is None or known[0] != policy.version:
            tensors = {n: t.detach().cpu() for n, t in policy.named()}
            self._put[name] = policy.version, [ray_cluster.import_ray().put(tensors)]
        return self._put[name]


@dataclass(eq=False)
class RayWorkers:
    """Plays the rollouts of one batch; see `RolloutWorkers`."""

    _pool: RayPool
    _play: PlaySettings
    _weights: Weights
    _at_once: int
    _on_spans: OnSpans | None
    _tell: Tell
    _running: int = 0
    _change: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(
        self, specs: Sequence[RolloutSpec], on_done: Callable[[Rollout], None] | None = None
    ) -> list[Rollout]:
        """See `RolloutWorkers`; `on_done` sees the rollouts of a group together."""
        groups = [list(g) for _, g in itertools.groupby(specs, lambda spec: spec.group)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._group(*g, on_done)) for g in enumerate(groups)]
        except* TutelageError as stopped:
            raise stopped.exceptions[0] from None
        return [rollout for task in tasks for rollout in task.result()]

    async def _group(
        self, number: int, specs: Sequence[RolloutSpec], on_done: Callable[[Rollout], None] | None
    ) -> list[Rollout]:
        """Play a group until a worker has played it whole. Once lost it plays alone, so that a
        group that ends its workers takes no others along."""
        reason: Exception | None = None
        for losses in range(_LOSSES + 1):
            worker = await self._worker(number, specs, alone=losses > 0)
            spans = self._on_spans is not None
            work = worker.actor.play.remote(specs, self._play, self._weights, spans=spans)
            try:
                played: Played = await work
            except asyncio.CancelledError:
                ray_cluster.import_ray().cancel(work)
                raise
            except self._pool.lost as error:
                reason = error
                self._say_lost(worker)
            except TutelageError as error:
                raise RunError(own_words(error)) from error
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
                worker.alone = False
                self._running -= len(specs)
                async with self._change:
                    self._change.notify_all()
        raise RunError(
            f"{_LOSSES} Ray workers were lost while they played only the group {specs[0].group!r} "
            f"(task {specs[0].task.id!r}): a tool or an environment of it may end its process, or "
            f"there is too little memory. Last error: {' '.join(str(reason).split())[:300]}"
        )

    async def _worker(
        self, number: int, specs: Sequence[RolloutSpec], *, alone: bool = False
    ) -> _RayActor:
        """Wait for a worker with room for a group, and give it to the least busy one."""
        room = min(EVALUATION_SLOTS, self._pool.setting.config.rollout.slots)
        async with self._change:
            while True:
                ready = [w for w in self._pool.workers if self._pool.known(w)]
                free = [
                    worker
                    for worker in ready or self._pool.workers
                    if not worker.load
                    or not (alone or worker.alone or worker.load + len(specs) > room)
                ]
                if free and (not self._running or self._running + len(specs) <= self._at_once):
                    worker = min(free, key=lambda w: w.load)
                    worker.groups[number], worker.alone = specs, alone
                    self._running += len(specs)
                    return worker
                await self._change.wait()

    def _say_lost(self, worker: _RayActor) -> None:
        """Say once that a worker was lost, and what is played again."""
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


def _bits(conditions: JSON) -> JSON:
    return {key: value for key, value in conditions.items() if key not in _NOT_BITS}
