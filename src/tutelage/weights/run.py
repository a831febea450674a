"""`TrainingRun`: the work of one process on a training, with its records and its rollouts.

It logs metrics, writes checkpoints, keeps the clock, and plays rollouts on engines of the policy. A
phase (`measure.py`, `cold_start.py`, `sft.py`, `rl.py`) is a loop over steps that can stop after
any step and continue later: its state is in `TrainingState.phase_step` and
`TrainingState.phase_data`, and every draw is addressed by the seed tree. After a resume recorded
rollouts are used in place of playing a step again if the store has all of them: they are equal bit
for bit, and deadlines that expired stay expired. `training.py` prepares a run and puts its phases
in order.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import asdict, dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from tutelage.config import Resolved
from tutelage.errors import FailureBudgetError, RewardError
from tutelage.policy.machine import trim_memory
from tutelage.policy.model import Policy
from tutelage.resources import POLICY
from tutelage.rollouts.runner import RolloutSpec
from tutelage.runs.estimate import Pace
from tutelage.runs.job_inputs import JobInputs
from tutelage.runs.lifecycle import Run
from tutelage.runs.metrics import (
    all_failed,
    failures_by_cause,
    rollout_warnings,
    unused_template_warnings,
)
from tutelage.runs.progress import LATER
from tutelage.runs.resume_hint import resume_command
from tutelage.statistics.outcome import RewardKind, Success, format_cause
from tutelage.tracing import SpanRecord
from tutelage.tracing.ingest import ingest_traces
from tutelage.types import JSON, FailureCause, Mode, Rollout
from tutelage.weights import checkpoint
from tutelage.weights.checkpoint import BEST, RL, SFT, TrainingState
from tutelage.weights.inputs import TrainingInputs, step_limit
from tutelage.weights.placement import (
    FROZEN,
    LocalPlacement,
    PlaySettings,
    RolloutPool,
)
from tutelage.weights.process_group import run_on_all

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful

    from tutelage.weights.vllm_sampler import Servers

logger = logging.getLogger(__name__)

T = TypeVar("T", bound="Stateful")


@dataclass(slots=True)
class TrainingRun:
    """State, records and rollouts of a training in one process."""

    resolved: Resolved
    setting: TrainingInputs
    event_loop: asyncio.Runner
    """The one event loop that built-in agents and their engines have for the whole run."""
    state: TrainingState = field(default_factory=TrainingState)
    tensors: dict[str, Any] = field(default_factory=dict[str, Any])
    """Tensors of the checkpoint, empty without one."""
    pool: RolloutPool | None = None
    """Workers outside of this process that play rollouts."""
    servers: Servers | None = None
    """vLLM servers that sample the policy, if not this process."""
    run: Run = field(init=False)
    _started: float = field(init=False)
    placement: LocalPlacement = field(init=False)
    """The placement of rollouts."""
    recorded: dict[tuple[int, str, str], dict[str, Rollout]] = field(
        default_factory=dict[tuple[int, str, str], dict[str, Rollout]]
    )
    """Stored rollouts from after the checkpoint, by (tick, mode, label) and id."""
    optimizer: Stateful | None = None
    """State that the phase in progress trains in addition to the policy's weights."""
    kept: dict[str, Any] = field(default_factory=dict[str, Any])
    """Tensors that outlive a phase, such as the policy that reinforcement learning starts from."""
    pace: Pace | None = None
    """Time of the latest rollouts at the training temperature."""
    expected: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    """Expected seconds of each phase of the run, in order; None if unknown."""
    phase_began: float = 0.0
    finished: bool = False
    _frozen: Policy | None = None

    def elapsed(self) -> float:
        """Return the seconds spent on the run, including earlier processes."""
        return time.perf_counter() - self._started

    def open(self, run: Run) -> None:
        """Load the tensors of the checkpoint and the rollouts recorded since, on all ranks."""
        self.run, setting, group = run, self.setting, self.setting.group
        if group.size > 1:
            if group.rank == 0:
                run_on_all(group, lambda: None)  # the others have read their inputs
            self.state, self.tensors, weights = group.broadcast(
                lambda: (
                    self.state,
                    self.tensors,
                    {n: p.snapshot() for n, p in self.policies.items()},
                )
            )
            for name, policy in self.policies.items():
                policy.load_tensors(weights[name])
        state, tensors = self.state, self.tensors
        self._started = time.perf_counter() - state.seconds.get("total", 0.0)
        for rollout in run.store.rollouts(run.id, after=state.tick):
            key = (rollout.step, rollout.mode.value, rollout.label)
            self.recorded.setdefault(key, {})[rollout.id] = rollout
        sampler = None if self.servers is None else self.servers.engine
        if sampler is not None:
            sampler.report_servers(self._report)
        if self.pool is None:
            self.placement = LocalPlacement(setting, self._get_policy, sampler)
        else:
            self.placement = self.pool.placement(self._get_policy, self._report)
        if tensors:
            setting.policy.load_tensors(tensors["policy"])
            setting.policy.version = state.policy_version
            self.kept = dict(tensors["kept"])
        for name, saved in self.kept.get("others", {}).items():
            setting.others[name].load_tensors(saved)
            setting.others[name].version = state.policy_version
        if setting.others:
            self.kept["others"] = {
                name: {n: t.detach() for n, t in policy.named_tensors()}
                for name, policy in setting.others.items()
            }
        if "optimizer" in tensors:
            self.kept["optimizer"] = tensors["optimizer"]

    @property
    def policies(self) -> dict[str, Policy]:
        """Return all trained policies by name."""
        return {POLICY: self.setting.policy, **self.setting.others}

    # ------------------------------------------------------------ records

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of a step to the metrics file and to the store."""
        line: dict[str, Any] = {"phase": phase, "step": step, "tick": self.state.tick, **values}
        self.run.log(line)
        self.state.metrics_lines += 1
        if step:  # a measurement is no step
            self.run.progress.step(step, values)

    def warn(self, text: str) -> None:
        """Show a warning, or log it if a `Trainer` shows no progress."""
        self.run.progress.note(f"Warning: {text}")
        shown = self.run.progress.shows or self.setting.group.rank > 0
        if self.setting.given is not None and not shown:
            logger.warning(text)

    def warn_once(self, text: str) -> None:
        """Show a warning once, and store it in the result."""
        warnings: list[str] = self.state.results.setdefault("warnings", [])
        if text not in warnings:
            warnings.append(text)
            self.warn(text)

    def _report(self, text: str, event: str, values: JSON) -> None:
        """Show and record an event of a worker or server."""
        self.run.progress.note(text)
        self.run.log_event(event, **{"phase": self.state.phase, "tick": self.state.tick, **values})

    def save(self) -> None:
        """Flush the store, and write a checkpoint on rank 0."""
        group, optimizer = self.setting.group, self.optimizer
        trained = {} if optimizer is None else {"optimizer": optimizer.state_dict()}
        parts = group.has_shards(trained)
        if group.rank:
            if parts:
                group.write_shards(None, trained)
            return
        self.run.writer.flush()
        state = self.state
        state.policy_version = self.setting.policy.version
        state.seconds["total"] = self.elapsed()
        tensors: dict[str, Any] = {
            "policy": {n: t.detach() for n, t in self.setting.policy.named_tensors()},
            "kept": self.kept,
            **({} if parts else trained),
        }
        path = checkpoint.save(
            self.run.folder,
            state,
            tensors,
            self.setting.save_policies,
            keep=self.setting.config.trainer.max_actor_ckpt_to_keep,
            write_shards=(lambda place: group.write_shards(place, trained)) if parts else None,
        )
        self.run.store.put_checkpoint(self.run.id, state.tick, str(path))

    def check_stop(self) -> None:
        """Save a checkpoint and raise `KeyboardInterrupt` if the user requested a stop."""
        given, stop = self.setting.given, self.run.stop
        ended = given is not None and given.manager.stopping
        if self.setting.group.broadcast(lambda: stop.asked or ended):
            self.save()
            raise stop.to_exception()

    # ------------------------------------------------------------ steps of a phase

    def seconds_left(self) -> float | None:
        """Return the remaining seconds of `trainer.minutes`, or None without a limit."""
        minutes = self.setting.config.trainer.minutes
        return None if minutes is None else max(0.0, 60 * minutes - self.elapsed())

    def is_over(self, phase: str, limit: int | None) -> bool:
        """Return True if a phase is over. The end by time is recorded and reused on resume."""

        def decide() -> bool:
            if (limit is not None and self.state.phase_step >= limit) or self._is_solved():
                return True
            if (decided := self.run.find_decision("phase_end", phase)) is not None:
                return self.state.phase_step >= decided["step"]
            if self.seconds_left() != 0:
                return False
            step = self.state.phase_step
            self.run.log_event("phase_end", phase=phase, step=step, reason="minutes")
            return True

        return self.setting.group.broadcast(decide)

    def _is_solved(self) -> bool:
        """Return True if validation has reached `trainer.stop_at_success`."""
        solved, wanted = self.state.phase_data.get("solved"), self.setting.config.trainer
        least = wanted.stop_at_success
        return solved is not None and least is not None and solved >= least

    def reason_to_end(self) -> str | None:
        """Return the configuration key that ends the training now, or None."""
        trainer, limit = self.setting.config.trainer, step_limit(self.setting)
        steps = "total_epochs" if trainer.total_training_steps is None else "total_training_steps"
        ends = {
            steps: limit is not None and self.state.phase_step >= limit,
            "stop_at_success": self._is_solved(),
            "minutes": self.state.seconds.get("total", 0.0) >= 60 * (trainer.minutes or inf),
        }
        keys = [f"trainer.{key}={getattr(trainer, key)}" for key, ended in ends.items() if ended]
        return keys[0] if keys else None

    def restore(self, stateful: T) -> T:
        """Load the checkpointed state into `stateful` if this phase was running."""
        saved = self.kept.pop("optimizer", None)
        if saved is not None and self.state.phase_step > 0:
            stateful.load_state_dict(saved)
        return stateful

    def end_step(self, phase: str, values: dict[str, float]) -> None:
        """Log a step, write a checkpoint if it is due, and stop if requested."""
        trim_memory()
        values["time/elapsed"] = self.elapsed()
        phases, step = list(self.expected), self.state.phase_step
        later = [self.expected[name] for name in phases[phases.index(phase) + 1 :]]
        if None not in later:
            values[LATER] = sum(filter(None, later))
        self.log(phase, step, values)
        every = self.setting.config.trainer.save_freq
        best = self.state.results.get(BEST, {}).get("step") == step
        if (every > 0 and step % every == 0) or (best and phase in (RL, SFT)):
            self.save()
        self.check_stop()

    def end_training(self) -> None:
        """Write a checkpoint of the last training step, if it is missing."""
        last = checkpoint.get_path(self.run.folder, self.state)
        complete = partial(checkpoint.list_complete, self.run.folder)
        missing = self.setting.group.broadcast(lambda: last not in complete())
        if self.state.phase_step > 0 and missing:
            self.save()

    def note_best(self, value: float) -> None:
        """Record the step of a new best validation result, to keep its checkpoint."""
        best = self.state.results.get(BEST)
        if best is None or value > best["value"]:
            self.state.results[BEST] = {"step": self.state.phase_step, "value": value}

    # ------------------------------------------------------------ what rewards mean

    @property
    def success(self) -> Success | None:
        """Return the user's success criterion."""
        return Success.parse(self.setting.config.reward.success)

    @property
    def kind(self) -> RewardKind:
        """Return the kind of the rewards of this run so far."""
        return RewardKind(**self.state.results.get("kind", {}))

    # ------------------------------------------------------------ rollouts

    def play(
        self,
        specs: Sequence[RolloutSpec],
        temperature: float,
        *,
        with_tools: bool = True,
        invariant: bool = False,
        on_done: Callable[[Rollout], None] | None = None,
    ) -> list[Rollout]:
        """Play and store the rollouts of one tick, mode and label, or return recorded rollouts.

        Only rank 0 plays, and every rank gets the rollouts. Demonstrations contain the built-in
        agent's calls, so the cold start always plays that agent.
        """
        group, given, found = self.setting.group, self._own_agent, self._find_recorded(specs)
        fresh, start = found is None, time.perf_counter()
        if fresh and group.rank == 0:
            mode, own = specs[0].mode, given is not None
            play = PlaySettings(self.run.id, mode, temperature, with_tools, invariant, own)
            if given is None:
                playing = self.placement.workers(play).run(specs, on_done)
                found = self.event_loop.run(playing, context=copy_context())
                self.run.writer.submit(found)
            else:
                # A Python agent plays on its manager, and each rollout is stored as it ends.
                def notify(rollout: Rollout) -> None:
                    for listener in (on_done, given.on_rollout):
                        if listener is not None:
                            listener(rollout)

                def store_rollout(rollout: Rollout, spans: Sequence[SpanRecord]) -> None:
                    self.run.writer.submit_spans(self.run.id, spans)
                    self.run.writer.submit([rollout])

                traces = partial(ingest_traces, self.run.writer.submit_spans, self.run.id)
                workers = self.placement.workers(play, store_rollout, traces)
                found = given.manager.play(workers, specs, notify)
            if temperature > 0:
                tokens = sum(len(c.sampled.token_ids) for r in found for c in r.last.calls)
                self.pace = Pace(len(found), tokens, time.perf_counter() - start)
        rollouts, fresh = group.broadcast(lambda: (found or [], fresh))
        self.add_rollouts(rollouts)
        if fresh and given is None:
            self.check_rewards(rollouts)
        elif fresh and (failures := all_failed(rollouts)):
            self.run.writer.flush()
            kind = "step" if rollouts[0].mode is Mode.TRAIN else "measurement"
            counts = Counter(format_cause(f.cause) for f in failures)
            raise FailureBudgetError(
                f"all {len(rollouts)} rollouts of a {kind} failed "
                f"({', '.join(f'{n} x {end}' for end, n in counts.items())}). The first error: "
                f"{failures[0].message}. Inspect it with: tutelage show {rollouts[0].id} --run "
                f"{shlex.quote(str(self.run.folder.path))}"
            )
        return rollouts

    @property
    def _own_agent(self) -> JobInputs | None:
        """Return the Python agent, or None in the cold start or for the built-in agent."""
        return None if self.state.phase == "cold_start" else self.setting.given

    def _find_recorded(self, specs: Sequence[RolloutSpec]) -> list[Rollout] | None:
        """Return the recorded rollouts of the specs, or None if one is missing."""
        first = specs[0]
        key = (first.step, first.mode.value, first.label)
        known = self.recorded.pop(key, {})
        ids = [s.seeds.id("roll", self.run.id) for s in specs]
        # What the run stopped at has been fixed since, so it is played again.
        played = list(known.values())
        failed = any(map(reward_failed, played)) if self._own_agent is None else all_failed(played)
        if known.keys() == {*ids} and not failed:
            return [known[i] for i in ids]
        if self.recorded or known:
            # What the store has of this tick and later goes, but for complete sets already used.
            self.run.writer.flush()
            kept = [
                r
                for r in self.run.store.rollouts(self.run.id, step=first.step)
                if (r.step, r.mode.value, r.label) not in {key, *self.recorded}
            ]
            self.run.store.discard_after(self.run.id, first.step - 1)
            self.run.writer.submit(kept)
            self.recorded.clear()
        return None

    def _get_policy(self, name: str) -> Policy:
        """Return a trained policy by name, or the main policy before training."""
        if name != FROZEN:
            return self.policies[name]
        if self._frozen is None:
            if "start" not in self.kept:
                self.kept["start"] = self.setting.policy.snapshot()
            self._frozen = self.setting.policy.copy(self.kept["start"])
            self._frozen.version = 0
        return self._frozen

    def add_rollouts(self, rollouts: list[Rollout]) -> None:
        """Add played or recorded rollouts to the totals."""
        state, results, setting = self.state, self.state.results, self.setting
        state.rollouts += len(rollouts)
        results["kind"] = asdict(self.kind.update(rollouts, self.success))
        phases: dict[str, dict[str, int]] = results.setdefault("failures_by_phase", {})
        failed: dict[str, int] = results.setdefault("failures", {})
        for cause, count in failures_by_cause(rollouts).items():
            for known in (failed, phases.setdefault(state.phase, {})):
                known[cause] = known.get(cause, 0) + count
        first: dict[str, str] = results.setdefault("first_failures", {})
        for failure in (r.last.failure for r in rollouts if r.last.failure is not None):
            if failure.cause.value not in first:
                first[failure.cause.value] = failure.message
                words = f"first failure ({format_cause(failure.cause)})"
                self.run.progress.note(f"{words}: {failure.message}")
        warnings: list[str] = results.setdefault("warnings", [])
        limits = (setting.context, setting.policy.max_positions)
        odd = rollout_warnings(rollouts, setting.config.agent.failure_reward, *limits)
        new = [w for mark, w in odd.items() if w and not any(mark in old for old in warnings)]
        if setting.given is not None and state.rollouts == len(rollouts):
            new += unused_template_warnings(rollouts, setting.given.resources)
        for warning in new:
            self.warn_once(warning)
        state.tokens += sum(
            len(c.sampled.token_ids) for r in rollouts for a in r.attempts for c in a.calls
        )

    def check_rewards(self, rollouts: Sequence[Rollout]) -> None:
        """Raise `RewardError` if the reward function failed on a rollout."""
        broken = [r for r in rollouts if reward_failed(r)]
        if not broken or broken[0].last.failure is None:
            return
        self.run.writer.flush()
        raise RewardError(
            f"{broken[0].last.failure.message}. This happened in {len(broken)} of {len(rollouts)} "
            f"rollouts, first in {broken[0].id}; all are stored. Fix it and continue with: "
            f"{resume_command(self.run.folder.path)} --allow-changes"
        )


def reward_failed(rollout: Rollout) -> bool:
    """Return True if the reward function failed on a rollout."""
    failure = rollout.last.failure
    return failure is not None and failure.cause is FailureCause.REWARD_ERROR
