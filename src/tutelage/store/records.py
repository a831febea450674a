"""What the store returns that is not in `types.py`: runs, metrics, summaries, training rows.

Plain frozen records, with no link to the database they came from. Each that has a table declares
its columns by its fields (`schema.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tutelage.types import JSON, FailureCause, Rollout, RolloutStatus


@dataclass(frozen=True, slots=True)
class RunRow:
    """One training or evaluation; `created` and `updated` are seconds since 1970."""

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
    """Where the checkpoint of one step lies."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class ResourceRow:
    """One version of a named resource; `step` is the training step that made it."""

    name: str
    version: int
    step: int
    kind: str
    data: JSON


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event, the `number`-th under its key."""

    key: str
    number: int
    data: JSON


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """The result of a rollout, by the attempt that counts."""

    status: RolloutStatus
    reward: float | None
    turns: int
    """Calls to models."""
    tokens: int
    """Tokens that models sampled."""
    cause: FailureCause | None
    """Why it failed."""
    policy_version: int | None
    """The oldest version of a policy that sampled any of its tokens; None where no call may train
    one."""

    @classmethod
    def of(cls, rollout: Rollout) -> RolloutSummary:
        """The summary of a rollout."""
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
    """How many rollouts failed for one cause (None: they were cancelled before they could), and
    what the first of them said."""

    cause: FailureCause | None
    number: int
    example: str


PerToken = Literal["advantages", "logprobs", "entropies", "importance_weights"]


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One row of a training step: what it was worth, and what the trainer made of its tokens.

    The numbers of tokens are those of the trained ones, in order, packed little-endian: `numbers`
    unpacks them. They are None where the row was not scored because nothing could be learned from
    it, and after the tokens that `trainer.record_tokens` grants a run.
    """

    step: int
    """Under which step the store has its rollouts and metrics."""
    policy: str
    """Which policy learned from it."""
    position: int
    """In the step's batch."""
    rollout_id: str
    tokens: int
    """How many are trained."""
    advantage: float
    """That of its tokens; their mean where they differ."""
    advantages: bytes | None = None
    """float32; None: `advantage` for each."""
    logprobs: bytes | None = None
    """float32: the trainer's log-probability before the step, at the sampling temperature."""
    entropies: bytes | None = None
    """float16: of the distribution that it was drawn from, as the row was first scored."""
    importance_weights: bytes | None = None
    """float16: what its loss was multiplied by for the difference of sampler and trainer; None
    where the row was not scored or no correction is on: 1 for each."""

    def numbers(self, name: PerToken) -> tuple[float, ...] | None:
        """One number for each trained token; None if there are none."""
        data: bytes | None = getattr(self, name)
        if data is None:
            return None
        width = "e" if name in ("entropies", "importance_weights") else "f"
        return struct.unpack(f"<{self.tokens}{width}", data)


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of a run's rollouts; `tests` of them were on test tasks. Tokens are those of
    policies sampled here: what a remote server counted stands in the run's result."""

    rollouts: int
    tests: int
    calls: int
    prompt_tokens: int
    sampled_tokens: int


@dataclass(frozen=True, slots=True)
class Grade:
    """One rollout's reward, the part of it that was asked for where there is one, and why it
    failed."""

    label: str
    task: str
    fields: Mapping[str, Any]
    reward: float | None
    part: float | None
    failure: str | None
