"""Results of training a Python agent: `TrainingResult`, and `DevReport` of a preflight.

Both are read from the records of the run, never from memory alone, so that a resumed run reports
the same as an uninterrupted one. `trainer/trainer.py` creates them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tutelage.rollouts.rows import build_rows
from tutelage.runs.folder import RunFolder
from tutelage.runs.stored_evaluation import StoredEvaluation, read_evaluation
from tutelage.tools.loading import user_traceback
from tutelage.types import JSON, Rollout


@dataclass(frozen=True, slots=True, repr=False)
class TrainingResult:
    """Outcome of a training run. Rewards and success rates are means over the test tasks, sampled
    at the training temperature. They are None if they were not measured, if more than 1 % of the
    rollouts were lost, or if a graded reward does not define success."""

    status: str
    """`finished`, or how the run ended earlier."""
    folder: Path
    """Run folder: report, store, metrics, checkpoints."""
    policy: Path | None
    """Trained policy, a Hugging Face folder; None for a prompt search, and for a run that was
    stopped before it had one."""
    steps: int
    """Steps of reinforcement learning."""
    rollouts: int
    tokens: int
    """Number of sampled tokens."""
    reward_before: float | None
    reward_after: float | None
    success_before: float | None
    success_after: float | None
    judged_before: tuple[int, int] | None
    """Numbers of judged test rollouts and of all; None if they were not played."""
    judged_after: tuple[int, int] | None
    failures: Mapping[str, int]
    """Number of failed rollouts by cause."""
    metrics: tuple[JSON, ...] = field(repr=False)
    """Lines of metrics.jsonl."""
    details: JSON = field(repr=False)
    """Content of result.json."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems found during the training, with suggested fixes."""
        return tuple(self.details.get("warnings", ()))

    def __repr__(self) -> str:
        done = f"{self.steps} steps, {self.rollouts} rollouts, {self.tokens} sampled tokens"
        lines = [f"{type(self).__name__}: {self.status}, {done}"]
        for name, before, after in (
            ("reward", self.reward_before, self.reward_after),
            ("success", self.success_before, self.success_after),
        ):
            ends = ["?" if value is None else f"{value:.3f}" for value in (before, after)]
            lines += [] if before is after is None else [f"  {name:<8} {' -> '.join(ends)}"]
        failed = ", ".join(f"{count} x {cause}" for cause, count in self.failures.items())
        places = (("failed", failed), ("policy", self.policy), ("run", self.folder))
        lines += [f"  {name:<8} {value}" for name, value in places if value]
        return "\n".join([*lines, *(f"  Warning: {text}" for text in self.warnings)])

    def rewards(self) -> list[float]:
        """Return the mean reward of each training step with judged rollouts."""
        lines = (m for m in self.metrics if m.get("phase") == "rl")
        return [float(m["reward/mean"]) for m in lines if "reward/mean" in m]


R = TypeVar("R", bound=TrainingResult)


def read_result(folder: RunFolder, details: JSON, kind: type[R], **extra: Any) -> R:
    """Read the result of a run from its folder and its `result.json`. `extra` contains additional
    fields of the result class."""
    before = read_evaluation(details, "before_sampled") or StoredEvaluation()
    after = read_evaluation(details, "after_sampled") or StoredEvaluation()
    fields: JSON = {
        "status": str(details["status"]),
        "folder": folder.path,
        "policy": folder.policy if folder.policy.is_dir() else None,
        "steps": int(details.get("rl_steps", 0)),
        "rollouts": int(details["rollouts"]),
        "tokens": int(details["tokens"]),
        "reward_before": before.reward,
        "reward_after": after.reward,
        "success_before": before.success,
        "success_after": after.success,
        "judged_before": before.counts,
        "judged_after": after.counts,
        "failures": dict(details.get("failures") or {}),
        "metrics": tuple(folder.read_metrics()),
        "details": details,
    }
    return kind(**fields | extra)


@dataclass(frozen=True, slots=True, repr=False)
class DevReport:
    """Summary of a few rollouts before training. Its repr is a short table."""

    rollouts: tuple[Rollout, ...] = field(repr=False)

    @property
    def ok(self) -> bool:
        """True if every rollout succeeded and has trainable tokens."""
        return all(r.last.failure is None and self._count_trained_tokens(r) for r in self.rollouts)

    @property
    def calls(self) -> int:
        """Number of model calls in all rollouts."""
        return sum(len(r.last.calls) for r in self.rollouts)

    @property
    def agents(self) -> Mapping[str, int]:
        """Number of model calls by agent name."""
        return Counter(c.agent for r in self.rollouts for c in r.last.calls)

    @property
    def tokens(self) -> int:
        """Number of sampled tokens."""
        return sum(len(c.sampled.token_ids) for r in self.rollouts for c in r.last.calls)

    @property
    def rewards(self) -> list[float | None]:
        """Reward of each rollout, or None if a rollout has no reward."""
        return [None if r.reward is None else r.reward.value for r in self.rollouts]

    @property
    def failures(self) -> list[str]:
        """One line with id, cause and message for each failed rollout."""
        pairs = ((r.id, r.last.failure) for r in self.rollouts)
        return [f"{id}: {f.cause.value}: {f.message}" for id, f in pairs if f is not None]

    def __repr__(self) -> str:
        lines = [
            f"{r.task.id}: {self._describe_calls(r)}, "
            f"reward {'none' if r.reward is None else format(r.reward.value, 'g')}"
            for r in self.rollouts
        ]
        failures = (r.last.failure for r in self.rollouts)
        traces = (user_traceback(f.traceback) for f in failures if f and f.traceback)
        first = next((trace.rstrip() for trace in traces), None)
        return "\n".join([*lines, *self.failures, *([first] if first else [])])

    def _describe_calls(self, rollout: Rollout) -> str:
        calls = rollout.last.calls
        if not calls:
            return "your agent never called llm.endpoint or llm.chat"
        who = ", ".join(dict.fromkeys(call.agent for call in calls))
        made = f"{len(calls)} call{'s' * (len(calls) > 1)} by {who}"
        rows = len(build_rows(calls))
        tokens = self._count_trained_tokens(rollout)
        return f"{made}, {tokens} trained tokens in {rows} row{'s' * (rows > 1)}"

    def _count_trained_tokens(self, rollout: Rollout) -> int:
        names = {c.policy for c in rollout.last.calls if c.policy is not None}
        rows = (row for name in names for row in build_rows(rollout.last.calls, name))
        return sum(row.n_trained for row in rows)
