"""How far rollouts may be behind the policy that learns from them, in versions, and how far they
are.

Each call says which versions sampled it (`engine/versions.py`), and a row knows the oldest and the
newest of its calls. Pure functions: `asynchronous.py` admits and drops by them, `learner.py`
reports what they say of a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from tutelage.engine.versions import newest_version
from tutelage.policy.row import Row
from tutelage.types import Rollout, Sampled


def staleness_metrics(rows: Sequence[Row], version: int) -> dict[str, float]:
    """How many versions the oldest token of a row is behind the policy that learns from it: the
    mean and the largest of the rows."""
    behind = [version - row.oldest_version for row in rows]
    return {"staleness/mean": sum(behind) / len(behind), "staleness/max": float(max(behind))}


def admission_limit(step: int, staleness: int, size: int, steps: int | None) -> int:
    """Groups that may be accepted or running before step `step` is done, counted from 0: those of
    the steps until it and of `staleness` more, `size` each, of `steps` in all where that is known.
    """
    ahead = step + 1 + staleness
    return size * (ahead if steps is None else min(ahead, steps))


def versions_behind(group: Sequence[Rollout], version: int) -> int:
    """How many versions the oldest token of a group is behind."""
    return version - min((s.policy_version for s in _sampled(group)), default=version)


def comes_after(group: Sequence[Rollout], version: int) -> bool:
    """Whether a version later than this one sampled any token of a group."""
    return any(newest_version(sampled) > version for sampled in _sampled(group))


def _sampled(group: Sequence[Rollout]) -> list[Sampled]:
    """What a policy that is trained sampled in the attempts that count."""
    return [c.sampled for r in group for c in r.last.calls if c.policy is not None]
