"""What the phases of a job share: the run's state, its records, and a way to play rollouts.

The context logs metrics, writes checkpoints, keeps the clock, and runs rollouts on engines that
sample from the policy. After a resume it hands back recorded rollouts instead of playing a step
again whenever the store has all of them: they are bit for bit what would be sampled, and a deadline
that fired stays fired. The phases are `phases.py`; what a run leaves behind is `runs/folder.py`.
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
from itertools import count as numbered
from typing import TYPE_CHECKING, Any

from tutelage.errors import FailureBudgetError, RewardError
from tutelage.policy.model import Policy
from tutelage.resources import POLICY
from tutelage.rollouts.grading import stop_if_text
from tutelage.rollouts.runner import RolloutSpec
from tutelage.rollouts.workers import RolloutWorkers
from tutelage.runs.estimate import Pace
from tutelage.runs.job_inputs import JobInputs, grader_of
from tutelage.runs.lifecycle import Run
from tutelage.runs.metrics import (
    all_failed,
    failures_by_cause,
    rollout_warnings,
    unused_template_warnings,
)
from tutelage.runs.resume_hint import resume_command
from tutelage.runs.signals import Clock
from tutelage.statistics.outcome import RewardKind, Success, cause_words
from tutelage.tracing import SpanRecord
from tutelage.tracing.ingest import ingest_traces
from tutelage.types import JSON, FailureCause, Mode, Rollout
from tutelage.weights import checkpoint
from tutelage.weights.inputs import TrainingInputs
from tutelage.weights.placement import (
    FROZEN,
    LocalPlacement,
    Placement,
    PlaySettings,
    RolloutPool,
)

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful

    from tutelage.weights.vllm_sampler import Servers

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Between two looks at whether a stop was asked for."""
STOP_SECONDS = 5.0
"""How long a reward may go on when it was; then the step is given up, and repeated by a resume."""
_GRADING = {
    FailureCause.REWARD_ERROR: "there is no reward, so a rollout is left out",
    FailureCause.ANSWER_ERROR: "the reward raised or gave no finite number, which counts as wrong",
    FailureCause.GRADER_ERROR: "the grader could not run, so a rollout is left out",
    FailureCause.REWARD_TIMEOUT: "the reward was too slow, so a rollout is left out",
}
"""What is said, once a run, when a cause first occurs."""


@dataclass(slots=True)
class TrainingContext:
    """One process's work on a run."""

    run: Run
    setting: TrainingInputs
    state: checkpoint.TrainingState
    loop: asyncio.Runner
    """The one event loop that built-in agents and their engines have for the whole run."""
    clock: Clock
    recorded: dict[tuple[int, str, str], dict[str, Rollout]] = field(
        default_factory=dict[tuple[int, str, str], dict[str, Rollout]]
    )
    """Rollouts of the store that lie after the checkpoint, by (tick, mode, label) and id."""
    optimizer: Stateful | None = None
    """What the phase in progress trains beside the policy's weights."""
    kept: dict[str, Any] = field(default_factory=dict[str, Any])
    """Tensors that outlive a phase, such as the policy that reinforcement learning starts from."""
    pace: Pace | None = None
    """What rollouts at the training temperature took, the latest that were played."""
    expected: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    """Seconds that each phase of the run will take, in order; None if that is not known."""
    pool: RolloutPool | None = None
    """Workers outside of this process."""
    placement: Placement = field(init=False)
    """Where rollouts are played."""
    servers: Servers | None = None
    """Where the policy is sampled, if not in this process."""
    _frozen: Policy | None = None

    def __post_init__(self) -> None:
        sampler = None if self.servers is None else self.servers.engine
        if sampler is not None:
            sampler.report_servers(self._tell)
        if self.pool is None:
            self.placement = LocalPlacement(self.setting, self._policy_of, sampler)
        else:
            self.placement = self.pool.placement(self._policy_of, self._tell)

    # ------------------------------------------------------------ records

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """One line of metrics, in the file and in the store."""
        line: dict[str, Any] = {"phase": phase, "step": step, "tick": self.state.tick, **values}
        self.run.log(line)
        self.state.metrics_lines += 1
        self.run.progress.step(step, values)

    def warn(self, text: str) -> None:
        """Say that something is wrong; in the log where a `Trainer` shows no progress."""
        self.run.progress.note(f"Warning: {text}")
        shown = self.run.progress.shows or self.setting.group.rank > 0
        if self.setting.given is not None and not shown:
            logger.warning(text)

    def _tell(self, text: str, event: str, values: JSON) -> None:
        """Say and record what happened to a worker or a server."""
        self.run.progress.note(text)
        self.run.event(event, **{"phase": self.state.phase, "tick": self.state.tick, **values})

    def save(self) -> None:
        """Write a checkpoint, on rank 0; everything before it is in the store by then."""
        group, optimizer = self.setting.group, self.optimizer
        trained = {} if optimizer is None else {"optimizer": optimizer.state_dict()}
        parts = group.in_parts(trained)
        if group.rank:
            if parts:
                group.write_parts(None, trained)
            return
        self.run.writer.flush()
        state = self.state
        state.policy_version = self.setting.policy.version
        state.seconds["total"] = self.clock.elapsed()
        tensors: dict[str, Any] = {
            "policy": {n: t.detach() for n, t in self.setting.policy.named()},
            "kept": self.kept,
            **({} if parts else trained),
        }
        path = checkpoint.save(
            self.run.folder,
            state,
            tensors,
            self.setting.save_policies,
            keep=self.setting.config.trainer.max_actor_ckpt_to_keep,
            write_parts=(lambda place: group.write_parts(place, trained)) if parts else None,
        )
        self.run.store.put_checkpoint(self.run.id, state.tick, str(path))

    def bind_others(self) -> None:
        """Take further policies over from a checkpoint, where it has them, and keep their weights
        in every one that follows."""
        others = self.setting.others
        for name, tensors in self.kept.get("others", {}).items():
            others[name].load_tensors(tensors)
            others[name].version = self.state.policy_version
        if others:
            self.kept["others"] = {
                name: {n: t.detach() for n, t in policy.named()} for name, policy in others.items()
            }

    def check_stop(self) -> None:
        """Save and raise `KeyboardInterrupt` when the user asked to stop."""
        job_inputs = self.setting.given

        def asked() -> bool:
            ended = job_inputs is not None and job_inputs.manager.stopping
            return self.run.stop.asked or ended

        if self.setting.group.agree(asked):
            self.save()
            raise self.run.stop.stopped()

    # ------------------------------------------------------------ what rewards mean

    @property
    def success(self) -> Success | None:
        """What the user says is a success."""
        return Success.of(self.setting.config.reward.success)

    @property
    def kind(self) -> RewardKind:
        """What the rewards of this run are, by all that it has seen of them."""
        return RewardKind(**self.state.results.get("kind", {}))

    @kind.setter
    def kind(self, kind: RewardKind) -> None:
        self.state.results["kind"] = asdict(kind)

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
        """Run rollouts of one tick, mode and label, or take them from the record; store them. Rank
        0 does, and every rank gets them.

        Demonstrations are of the built-in agent's calls, so the cold start is measured on that one,
        whichever is trained.
        """
        group, job_inputs, found = self.setting.group, self._own_agent, self._recorded(specs)
        fresh, start = found is None, time.perf_counter()
        if fresh and group.rank == 0:
            play = PlaySettings(
                self.run.id,
                specs[0].mode,
                temperature,
                with_tools=with_tools,
                invariant=invariant,
                own_agent=job_inputs is not None,
            )
            if job_inputs is not None:
                # A Python agent plays on its manager, and each rollout is stored as it ends.
                listeners = [f for f in (on_done, job_inputs.on_rollout) if f is not None]
                count = numbered(self.state.rollouts)
                grader = grader_of(job_inputs, self.setting.reward)

                def done(rollout: Rollout) -> None:
                    if next(count) == 0:
                        stop_if_text(rollout, grader)
                    for listener in listeners:
                        listener(rollout)

                def keep(rollout: Rollout, spans: Sequence[SpanRecord]) -> None:
                    self.run.writer.submit_spans(self.run.id, spans)
                    self.run.writer.submit([rollout])

                traces = partial(ingest_traces, self.run.writer.submit_spans, self.run.id)
                workers = self.placement.workers(play, keep, traces)
                found = job_inputs.manager.play(workers, specs, done)
            else:
                playing = self._unless_stuck(self.placement.workers(play), specs, on_done)
                found = self.loop.run(playing, context=copy_context())
                if found is None:
                    raise self.run.stop.stopped()
                self.run.writer.submit(found)
            if temperature > 0:
                tokens = sum(len(c.sampled.token_ids) for r in found for c in r.last.calls)
                self.pace = Pace(len(found), tokens, time.perf_counter() - start)
        rollouts, fresh = group.agree(lambda: (found or [], fresh))
        self.count(rollouts)
        if fresh and job_inputs is not None:
            self._stop_if_all_failed(rollouts)
        elif fresh:
            self.stop_if_ungraded(rollouts)
        return rollouts

    @property
    def _own_agent(self) -> JobInputs | None:
        """The Python agent where it plays: the cold start's are the built-in one's."""
        return None if self.state.phase == "cold_start" else self.setting.given

    def _recorded(self, specs: Sequence[RolloutSpec]) -> list[Rollout] | None:
        """The rollouts of the record, None where it has not all of them."""
        first = specs[0]
        key = (first.step, first.mode.value, first.label)
        known = self.recorded.pop(key, {})
        ids = [s.seeds.id("roll", self.run.id) for s in specs]
        # What the run stopped at has been fixed since, so it is played again.
        played = list(known.values())
        built_in = self._own_agent is None
        good = not (any(map(_ungraded, played)) if built_in else all_failed(played))
        if len(known) == len(ids) and all(i in known for i in ids) and good:
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

    def _policy_of(self, name: str) -> Policy:
        """A policy that is trained, or as the main one was before training."""
        if name != FROZEN:
            return self.setting.policy if name == POLICY else self.setting.others[name]
        if self._frozen is None:
            if "start" not in self.kept:
                self.kept["start"] = self.setting.policy.snapshot()
            self._frozen = self.setting.policy.copy(self.kept["start"])
            self._frozen.version = 0
        return self._frozen

    def _stop_if_all_failed(self, rollouts: Sequence[Rollout]) -> None:
        """Raise `FailureBudgetError` where there is nothing to learn from, or to measure."""
        failures = all_failed(rollouts)
        if not failures:
            return
        self.run.writer.flush()
        measured, counts = rollouts[0].mode is not Mode.TRAIN, Counter(f.cause for f in failures)
        ends = ", ".join(f"{n} x {cause_words(cause)}" for cause, n in counts.items())
        raise FailureBudgetError(
            f"all {len(rollouts)} rollouts of a {'measurement' if measured else 'step'} failed "
            f"({ends}), so there is nothing to {'measure' if measured else 'learn from'}. The "
            f"first error: {failures[0].message}. Inspect it with: tutelage show {rollouts[0].id} "
            f"--run {shlex.quote(str(self.run.folder.path))}"
        )

    def count(self, rollouts: list[Rollout]) -> None:
        """Add rollouts to the totals, whether they were played or recorded."""
        self.state.rollouts += len(rollouts)
        failed: dict[str, int] = self.state.results.setdefault("failures", {})
        phases: dict[str, dict[str, int]] = self.state.results.setdefault("failures_by_phase", {})
        self.kind = self.kind.after(rollouts, self.success)
        first: dict[str, str] = self.state.results.setdefault("first_failures", {})
        for cause, count in failures_by_cause(rollouts).items():
            for known in (failed, phases.setdefault(self.state.phase, {})):
                known[cause] = known.get(cause, 0) + count
        for failure in (r.last.failure for r in rollouts if r.last.failure is not None):
            if failure.cause.value not in first:
                first[failure.cause.value] = failure.message
                if failure.cause in _GRADING:
                    self.run.progress.note(f"{_GRADING[failure.cause]}: {failure.message}")
        warnings: list[str] = self.state.results.setdefault("warnings", [])
        setting, given = self.setting, self.setting.given
        limits = (setting.context, setting.policy.max_positions)
        odd = rollout_warnings(rollouts, setting.config.agent.failure_reward, *limits)
        new = [w for mark, w in odd.items() if w and not any(mark in old for old in warnings)]
        if given is not None and self.state.rollouts == len(rollouts):
            new += unused_template_warnings(rollouts, given.resources)
        for warning in new:
            warnings.append(warning)
            self.warn(warning)
        self.state.tokens += sum(
            len(c.sampled.token_ids) for r in rollouts for a in r.attempts for c in a.calls
        )

    def stop_if_ungraded(self, rollouts: Sequence[Rollout]) -> None:
        """A reward that fails is a defect of the task, and training on the rest would hide it."""
        broken = [r for r in rollouts if _ungraded(r)]
        if not broken or broken[0].last.failure is None:
            return
        self.run.writer.flush()
        raise RewardError(
            f"{broken[0].last.failure.message}. This happened in {len(broken)} of {len(rollouts)} "
            f"rollouts, first in {broken[0].id}; all are kept. Fix it, and continue with: "
            f"{resume_command(self.run.folder.path)} --allow-changes"
        )

    async def _unless_stuck(
        self,
        workers: RolloutWorkers,
        specs: Sequence[RolloutSpec],
        on_done: Callable[[Rollout], None] | None,
    ) -> list[Rollout] | None:
        """The rollouts; None where a stop was asked for and a reward keeps the step going."""
        work = asyncio.ensure_future(workers.run(specs, on_done))
        while True:
            done, _ = await asyncio.wait({work}, timeout=LOOK_SECONDS)
            if done:
                return work.result()
            if self.run.stop.asked and workers.busy_for() > STOP_SECONDS:
                work.cancel()
                await asyncio.wait({work})
                return None


def _ungraded(rollout: Rollout) -> bool:
    """Whether its reward failed."""
    failure = rollout.last.failure
    return failure is not None and failure.cause is FailureCause.REWARD_ERROR
