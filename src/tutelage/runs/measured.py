"""Evaluations as result files hold them: written, read back, and put into words, in one place.

Under a name such as `after_sampled` a result has `success_after_sampled` and `reward_after_sampled`
(null where there is none to tell), each with its `..._interval`, and `judged_after_sampled`, which
says how many of how many rollouts were judged, what was lost and what failed.
`statistics/outcome.py` decides what there is to tell; everything that shows a run reads it here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tutelage.statistics.outcome import Kind, too_many_lost
from tutelage.types import JSON

Interval = tuple[float, float]
TOO_MANY_LOST = (
    "Where more than 1 % of the rollouts were lost there is no rate and no mean: what is left may "
    "be a biased part."
)
_COUNTS = ("rollouts", "judged", "lost", "failed", "reason")


@dataclass(frozen=True, slots=True)
class Measured:
    """One evaluation of a result; what the result does not tell is None."""

    success: float | None = None
    success_interval: Interval | None = None
    reward: float | None = None
    reward_interval: Interval | None = None
    rollouts: int | None = None
    judged: int | None = None
    lost: Mapping[str, int] = field(default_factory=dict[str, int])
    failed: Mapping[str, int] = field(default_factory=dict[str, int])
    reason: str = ""

    @property
    def counts(self) -> tuple[int, int] | None:
        """Rollouts that were judged, and all; None where that is not known."""
        known = self.judged is not None and self.rollouts is not None
        return (self.judged or 0, self.rollouts or 0) if known else None

    @property
    def withheld(self) -> bool:
        """Whether so many rollouts were lost that no rate and no mean is told."""
        if self.rollouts is None or self.judged is None:
            return False
        return too_many_lost(self.judged, self.rollouts)

    @property
    def eventful(self) -> bool:
        """Whether some rollouts were lost or failed."""
        return bool(self.lost or self.failed)


def written(name: str, record: Mapping[str, Any] | None, kind: Kind) -> JSON:
    """The keys of an evaluation in a result; `record` is `Evaluation.record()`, None where it was
    not measured. `kind` is the whole run's."""
    if record is None:
        return {f"success_{name}": None}
    defined = kind.has_success
    return {
        f"success_{name}": record["success"] if defined else None,
        f"success_{name}_interval": record["interval"] if defined else None,
        f"reward_{name}": record["mean_reward"],
        f"reward_{name}_interval": record["reward_interval"],
        f"judged_{name}": {key: record[key] for key in _COUNTS},
    }


def read(result: Mapping[str, Any], name: str) -> Measured | None:
    """The evaluation of that name; None where the result has none. Raises nothing for its sake."""
    counts = result.get(f"judged_{name}")
    found = measured(
        {
            **(cast("Mapping[str, Any]", counts) if isinstance(counts, dict) else {}),
            "success": result.get(f"success_{name}"),
            "interval": result.get(f"success_{name}_interval"),
            "mean_reward": result.get(f"reward_{name}"),
            "reward_interval": result.get(f"reward_{name}_interval"),
        }
    )
    return None if found == Measured() else found


def measured(record: Mapping[str, Any]) -> Measured:
    """What `Evaluation.record()` tells. Raises nothing for its sake."""
    return Measured(
        success=_number(record.get("success")),
        success_interval=_interval(record.get("interval")),
        reward=_number(record.get("mean_reward")),
        reward_interval=_interval(record.get("reward_interval")),
        rollouts=_count(record.get("rollouts")),
        judged=_count(record.get("judged")),
        lost=_counts(record.get("lost")),
        failed=_counts(record.get("failed")),
        reason=str(record.get("reason") or ""),
    )


def is_graded(result: Mapping[str, Any]) -> bool:
    """Whether the run's headline is its mean reward."""
    return result.get("graded") is True


def defines_success(result: Mapping[str, Any]) -> bool:
    """Whether the run has a success beside its mean reward."""
    rates = (v for k, v in result.items() if k.startswith("success_") and isinstance(v, float))
    return not is_graded(result) or any(True for _ in rates)


def control_estimator(result: Mapping[str, Any]) -> str | None:
    """What the control trained with; None without one."""
    found = result.get("control_estimator")
    return found if isinstance(found, str) and found else None


def judged_words(found: Measured) -> str:
    """`190 of 200 judged; 10 lost: 10 reward error (...)`; empty where counts are not known."""
    if found.rollouts is None or found.judged is None:
        return ""
    words = f"{found.judged} of {found.rollouts} judged"
    if found.lost:
        lost = found.rollouts - found.judged
        reason = f" ({found.reason})" if found.reason else ""
        words += f"; {lost} lost: {causes_words(found.lost)}{reason}"
    if found.failed:
        words += f"; failed, and counted so: {causes_words(found.failed)}"
    return words


def causes_words(causes: Mapping[str, int]) -> str:
    """`12 timeout, 1 agent error`."""
    return ", ".join(f"{number} {cause.replace('_', ' ')}" for cause, number in causes.items())


def all_judged(found: Iterable[Measured]) -> int | None:
    """How many rollouts each of these had, where that is one number and all were judged without a
    failure; None else, and where counts are not known."""
    sizes = {m.rollouts if m.judged == m.rollouts and not m.eventful else None for m in found}
    return sizes.pop() if len(sizes) == 1 else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _interval(value: Any) -> Interval | None:
    if not isinstance(value, list | tuple):
        return None
    ends = [_number(end) for end in cast("list[Any]", value)]
    if len(ends) != 2 or ends[0] is None or ends[1] is None or ends[0] > ends[1]:
        return None
    return ends[0], ends[1]


def _counts(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        return {}
    pairs = ((str(k), _count(v)) for k, v in cast("dict[Any, Any]", value).items())
    return {name: number for name, number in pairs if number}
