"""What the store gives back that is not in `types.py`: runs, metrics, checkpoints, resources.

Plain frozen records, with no link to the database they came from. `store.py` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tutelage.store.status import RunStatus
from tutelage.types import JSON


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
    status: RunStatus
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
class Discarded:
    """How much `Store.discard_after` removed."""

    rollouts: int
    metrics: int
    checkpoints: int
    resources: int


@dataclass(frozen=True, slots=True)
class Totals:
    """What a run's rollouts came to; `tests` of them were on test tasks. Tokens are those of
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
