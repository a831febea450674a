"""What the phases of a job share: the run's state, its records, and a way to play rollouts.

The context logs metrics, writes checkpoints, keeps the clock, and runs rollouts on engines that
sample from the policy. After a resume it hands back recorded rollouts instead of playing a step
again whenever the store has all of them: they are bit for bit what would be sampled, and a deadline
that fired stays fired. The phases are `phases.py`; what a run leaves behind is `folder.py`.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.engine.driver import EngineDriver
from tutelage.engine.native import NativeEngine
from tutelage.errors import RewardError
from tutelage.rollouts.runner import Runner, RunnerSettings, Spec
from tutelage.store import Store, StoreWriter
from tutelage.train import checkpoint
from tutelage.train.folder import RunFolder, append_json
from tutelage.train.optim import Optimizer
from tutelage.train.progress import Progress
from tutelage.train.setting import Setting
from tutelage.types import FailureCause, Rollout

EVALUATION_SLOTS = 64


class Clock:
    """Seconds that a run has worked, over all its processes."""

    def __init__(self, before: float = 0.0) -> None:
        self._before, self._start = before, time.perf_counter()

    def elapsed(self) -> float:
        """Seconds until now."""
        return self._before + time.perf_counter() - self._start


class StopSignal:
    """The first Ctrl-C (or SIGTERM) asks the job to stop after its step; the second one insists."""

    def __init__(self, on_ask: Callable[[], None]) -> None:
        self.asked = False
        self._on_ask = on_ask
        self._old: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._old[number] = signal.signal(number, self._handle)
            except ValueError:
                return self  # not the main thread: the caller's handlers stay
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._on_ask()


@dataclass(slots=True)
class Context:
    """One process's work on a run."""

    folder: RunFolder
    setting: Setting
    state: checkpoint.State
    store: Store
    writer: StoreWriter
    progress: Progress
    clock: Clock
    stop: StopSignal
    events: list[dict[str, Any]]
    """What earlier processes of this run decided by the clock."""
    recorded: dict[tuple[int, str, str], dict[str, Rollout]] = field(
        default_factory=dict[tuple[int, str, str], dict[str, Rollout]]
    )
    """Rollouts of the store that lie after the checkpoint, by (tick, mode, label) and id."""
    optimizer: Optimizer | None = None
    """The optimizer of the phase in progress."""
    kept: dict[str, Any] = field(default_factory=dict[str, Any])
    """Tensors that outlive a phase, such as the policy that reinforcement learning starts from."""
    _engines: dict[bool, NativeEngine] = field(default_factory=dict[bool, NativeEngine])

    # ------------------------------------------------------------ records

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """One line of metrics, in the file and in the store."""
        line: dict[str, Any] = {"phase": phase, "step": step, "tick": self.state.tick, **values}
        append_json(self.folder.metrics, line)
        self.store.put_metrics(self.folder.name, self.state.tick, line)
        self.state.metrics_lines += 1
        self.progress.step(step, values)

    def event(self, name: str, **values: Any) -> None:
        """Record a decision that depended on the clock."""
        append_json(self.folder.events, {"event": name, **values})

    def decided(self, name: str, phase: str) -> dict[str, Any] | None:
        """A decision that an earlier process of this run made."""
        found = (e for e in self.events if e["event"] == name and e.get("phase") == phase)
        return next(found, None)

    def save(self) -> None:
        """Write a checkpoint; everything before it is in the store by then."""
        self.writer.flush()
        state = self.state
        state.policy_version = self.setting.policy.version
        state.seconds["total"] = self.clock.elapsed()
        tensors: dict[str, Any] = {
            "policy": {n: t.detach() for n, t in self.setting.policy.named()},
            "kept": self.kept,
        }
        if self.optimizer is not None:
            tensors["optimizer"] = self.optimizer.state_dict()
        path = checkpoint.save(self.folder, state, tensors)
        self.store.put_checkpoint(self.folder.name, state.tick, str(path))

    def check_stop(self) -> None:
        """Save and raise `KeyboardInterrupt` when the user asked to stop."""
        if self.stop.asked:
            self.save()
            raise KeyboardInterrupt

    # ------------------------------------------------------------ rollouts

    def play(
        self,
        specs: Sequence[Spec],
        agent: ToolCallingAgent,
        *,
        invariant: bool = False,
        on_done: Callable[[Rollout], None] | None = None,
    ) -> list[Rollout]:
        """Run rollouts of one tick, mode and label, or take them from the record; store them."""
        first = specs[0]
        key = (first.step, first.mode.value, first.label)
        known = self.recorded.pop(key, {})
        ids = [s.seeds.id("roll") for s in specs]
        if len(known) == len(ids) and all(i in known and not _ungraded(known[i]) for i in ids):
            return self._counted([known[i] for i in ids])
        if self.recorded or known:
            self._forget_from(first.step, key)
        engine = self._engine(invariant)
        rollouts = asyncio.run(self._run(engine, specs, agent, on_done))
        self.writer.submit(rollouts)
        self._counted(rollouts)
        self._stop_if_ungraded(rollouts)
        return rollouts

    def _counted(self, rollouts: list[Rollout]) -> list[Rollout]:
        """These rollouts, added to the totals, whether they were played or recorded."""
        self.state.rollouts += len(rollouts)
        self.state.tokens += sum(
            len(c.sampled.token_ids) for r in rollouts for a in r.attempts for c in a.calls
        )
        return rollouts

    def _stop_if_ungraded(self, rollouts: Sequence[Rollout]) -> None:
        """A reward that fails is a defect of the task, and training on the rest would hide it."""
        broken = [r for r in rollouts if _ungraded(r)]
        if not broken or broken[0].last.failure is None:
            return
        self.writer.flush()
        raise RewardError(
            f"{broken[0].last.failure.message}. So it was for {len(broken)} of {len(rollouts)} "
            f"rollouts, the first of them {broken[0].id}, and all are kept. Mend the reward, and "
            f"go on with: tutelage resume {self.folder.path}"
        )

    async def _run(
        self,
        engine: NativeEngine,
        specs: Sequence[Spec],
        agent: ToolCallingAgent,
        on_done: Callable[[Rollout], None] | None,
    ) -> list[Rollout]:
        config, setting = self.setting.config, self.setting
        runner = Runner(
            EngineDriver(engine, config.rollout.schedule),
            setting.policy.codec,
            setting.reward,
            RunnerSettings(self.folder.name, timeout=config.agent.timeout),
        )
        return await runner.run(specs, agent, on_done)

    def _engine(self, invariant: bool) -> NativeEngine:
        """The training engine, or the one whose samples do not depend on neighbours."""
        if invariant not in self._engines:
            slots = min(EVALUATION_SLOTS, self.setting.config.rollout.slots) if invariant else None
            self._engines[invariant] = self.setting.engine(slots=slots, invariant=invariant)
        engine = self._engines[invariant]
        if engine.version != self.setting.policy.version:
            engine.set_version(self.setting.policy.version)
        return engine

    def _forget_from(self, tick: int, key: tuple[int, str, str]) -> None:
        """Drop what the store has of this tick and later but for complete sets already used."""
        self.writer.flush()
        kept = [
            r
            for r in self.store.rollouts(self.folder.name)
            if r.step == tick and (r.step, r.mode.value, r.label) != key
            and (r.step, r.mode.value, r.label) not in self.recorded
        ]  # fmt: skip
        self.store.discard_after(self.folder.name, tick - 1)
        self.writer.submit(kept)
        self.recorded.clear()


def _ungraded(rollout: Rollout) -> bool:
    """Whether its reward failed."""
    failure = rollout.last.failure
    return failure is not None and failure.cause is FailureCause.REWARD_ERROR


def recorded_after(store: Store, run_id: str, tick: int) -> dict[Any, dict[str, Rollout]]:
    """The store's rollouts after a tick, by (tick, mode, label) and id."""
    out: dict[Any, dict[str, Rollout]] = {}
    for rollout in store.rollouts(run_id):
        if rollout.step > tick:
            key = (rollout.step, rollout.mode.value, rollout.label)
            out.setdefault(key, {})[rollout.id] = rollout
    return out
