"""Record types of the store that are not in `types.py`: runs, metrics, summaries, training rows.

They are plain frozen dataclasses without a connection to the database. The fields of a record with
a table define its columns (`schema.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tutelage.types import JSON, FailureCause, Rollout, RolloutStatus


@dataclass(frozen=True, slots=True)
class RunRow:
    """A training or evaluation run, with `created` and `updated` in seconds since 1970."""

    id: str
    name: str
    recipe: str
    algorithm: str
    config: JSON
    seed: int
    folder: str
    status: RolloutStatus
    result: JSON | None
    created: float
    updated: float


@dataclass(frozen=True, slots=True)
class MetricsRow:
    """The metrics of one step."""

    step: int
    values: JSON


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """The path of a step's checkpoint."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class ResourceRow:
    """One version of a named resource, created in the training step `step`."""

    name: str
    version: int
    step: int
    kind: str
    data: JSON


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event stored under a key. The events of a key are numbered."""

    key: str
    number: int
    data: JSON


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """The outcome of a rollout, from its last attempt."""

    status: RolloutStatus
    reward: float | None
    turns: int
    """Number of model calls."""
    tokens: int
    """Number of sampled tokens."""
    cause: FailureCause | None
    """Cause of the failure."""
    policy_version: int | None
    """Oldest policy version that sampled any of its tokens; None if no call belongs to a trained
    policy."""

    @classmethod
    def from_rollout(cls, rollout: Rollout) -> RolloutSummary:
        """Create the summary of a rollout."""
        last, reward = rollout.last, rollout.reward
        return cls(
            status=RolloutStatus(last.status),
            reward=None if reward is None else reward.value,
            turns=len(last.calls),
            tokens=sum(len(call.sampled.token_ids) for call in last.calls),
            cause=None if last.failure is None else FailureCause(last.failure.cause),
            policy_version=min(
                (c.sampled.policy_version for c in last.calls if c.policy is not None), default=None
            ),
        )


@dataclass(frozen=True, slots=True)
class FailureCount:
    """Number of failed rollouts with one cause, and the message of the first rollout.

    The cause of cancelled rollouts is None.
    """

    cause: FailureCause | None
    number: int
    example: str


PerToken = Literal["advantages", "logprobs", "entropies", "importance_weights"]


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A training row of one step, with its advantage and per-token values.

    Per-token values cover the trained tokens, in order, packed little-endian; `values` unpacks
    them. They are None if the row was not scored because nothing could be learned from it.
    """

    step: int
    """Step of its rollouts and metrics in the store."""
    policy: str
    """Name of the trained policy."""
    position: int
    """Position in the batch of the step."""
    rollout_id: str
    tokens: int
    """Number of trained tokens."""
    advantage: float
    """Mean advantage of its tokens."""
    advantages: bytes | None = None
    """float32; None if `advantage` applies to every token."""
    logprobs: bytes | None = None
    """float32: the trainer's log-probability before the step, at the sampling temperature."""
    entropies: bytes | None = None
    """float16: entropy of the sampling distribution when the row was first scored."""
    importance_weights: bytes | None = None
    """float16: factors of the loss that correct for the difference of sampler and trainer; None
    (all 1) if the row was not scored or the correction is off."""

    def values(self, name: PerToken) -> tuple[float, ...] | None:
        """Return the per-token values of a field, or None if not recorded."""
        data: bytes | None = getattr(self, name)
        if data is None:
            return None
        width = "e" if name in ("entropies", "importance_weights") else "f"
        return struct.unpack(f"<{self.tokens}{width}", data)


@dataclass(frozen=True, slots=True)
class Totals:
    """Total counts of a run's rollouts, calls and tokens.

    `tests` is the number of rollouts on test tasks. Tokens are counted only for local policies; the
    counts of remote servers are in the run's result.
    """

    rollouts: int
    tests: int
    calls: int
    prompt_tokens: int
    sampled_tokens: int


@dataclass(frozen=True, slots=True)
class Grade:
    """Reward of a rollout, the requested part of this reward, and the cause of a failure."""

    label: str
    task: str
    fields: Mapping[str, Any]
    reward: float | None
    part: float | None
    failure: str | None
