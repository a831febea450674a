"""Evaluations in result files: written, read back, and formatted.

Under a name such as `after_sampled` a result has `success_after_sampled` and `reward_after_sampled`
(null if there is none), each with its `..._interval`, and `judged_after_sampled` with the counts of
rollouts, judged ones, losses and failures. `statistics/outcome.py` computes them; everything that
shows a run reads them here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tutelage.statistics.outcome import RewardKind, format_cause, too_many_lost
from tutelage.types import JSON

Interval = tuple[float, float]
TOO_MANY_LOST = (
    "Where more than 1 % of the rollouts were lost there is no rate and no mean: what is left may "
    "be a biased part."
)
_COUNTS = ("rollouts", "judged", "lost", "failed", "reason", "no_calls")


class StoredEvaluation(BaseModel):
    """Evaluation in a result file. Missing values are None."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, allow_inf_nan=False)

    success: float | None = None
    success_interval: Interval | None = Field(default=None, validation_alias="interval")
    reward: float | None = Field(default=None, validation_alias="mean_reward")
    reward_interval: Interval | None = None
    rollouts: int | None = None
    judged: int | None = None
    lost: Mapping[str, int] = Field(default_factory=dict[str, int])
    failed: Mapping[str, int] = Field(default_factory=dict[str, int])
    reason: str = ""
    no_calls: int | None = None

    @property
    def counts(self) -> tuple[int, int] | None:
        """Numbers of judged rollouts and of all rollouts, or None if unknown."""
        if self.rollouts is None or self.judged is None:
            return None
        return self.judged, self.rollouts

    @property
    def is_withheld(self) -> bool:
        """True if too many rollouts were lost to report a rate or a mean."""
        return self.counts is not None and too_many_lost(*self.counts)

    @property
    def lacks_calls(self) -> bool:
        """True if some, but not all, rollouts without a failure made no model call."""
        return 0 < (self.no_calls or 0) < (self.judged or 0) - sum(self.failed.values())

    @property
    def has_problems(self) -> bool:
        """True if some rollouts were lost, failed, or made no model call unlike the others."""
        return bool(self.lost or self.failed) or self.lacks_calls


def evaluation_keys(name: str, record: Mapping[str, Any] | None, kind: RewardKind) -> JSON:
    """Return the result fields of an evaluation. `record` is `Evaluation.record()`, or None if it
    was not measured; `kind` is the kind of rewards in the run."""
    if record is None:
        return {f"success_{name}": None}
    defined, families = kind.has_success, record.get("by_family")
    told = {f"families_{name}": families} if families else {}
    return told | {
        f"success_{name}": record["success"] if defined else None,
        f"success_{name}_interval": record["interval"] if defined else None,
        f"reward_{name}": record["mean_reward"],
        f"reward_{name}_interval": record["reward_interval"],
        f"judged_{name}": {key: record.get(key) for key in _COUNTS},
    }


def read_evaluation(result: Mapping[str, Any], name: str) -> StoredEvaluation | None:
    """Read an evaluation from a result by its name, or return None if it is missing."""
    counts = result.get(f"judged_{name}")
    stored_evaluation = parse_evaluation(
        {
            **(cast("Mapping[str, Any]", counts) if isinstance(counts, dict) else {}),
            "success": result.get(f"success_{name}"),
            "interval": result.get(f"success_{name}_interval"),
            "mean_reward": result.get(f"reward_{name}"),
            "reward_interval": result.get(f"reward_{name}_interval"),
        }
    )
    return None if stored_evaluation == StoredEvaluation() else stored_evaluation


def parse_evaluation(record: Mapping[str, Any]) -> StoredEvaluation:
    """Parse an `Evaluation.record()`. Returns an empty evaluation if it is invalid."""
    with suppress(ValidationError):
        return StoredEvaluation.model_validate({k: v for k, v in record.items() if v is not None})
    return StoredEvaluation()


def is_graded(result: Mapping[str, Any]) -> bool:
    """Return True if the main result of the run is its mean reward."""
    return result.get("graded") is True


def control_estimator(result: Mapping[str, Any]) -> str | None:
    """Return the advantage estimator of the control run, or None if there is no control run."""
    found = result.get("control_estimator")
    return found if isinstance(found, str) and found else None


def format_judged(evaluation: StoredEvaluation) -> str:
    """Format counts as `190 of 200 judged; 10 lost: ...`, or return "" if they are unknown."""
    if evaluation.rollouts is None or evaluation.judged is None:
        return ""
    words = f"{evaluation.judged} of {evaluation.rollouts} judged"
    if evaluation.lost:
        lost = evaluation.rollouts - evaluation.judged
        reason = f" ({evaluation.reason})" if evaluation.reason else ""
        words += f"; {lost} lost: {_format_causes(evaluation.lost)}{reason}"
    if evaluation.failed:
        words += f"; failed, and counted so: {_format_causes(evaluation.failed)}"
    if evaluation.lacks_calls:
        words += f"; warning: {evaluation.no_calls} made no model call and count as graded: "
        words += "give the agent's client llm.endpoint and llm.api_key"
    return words


def _format_causes(causes: Mapping[str, int]) -> str:
    """Format counts of causes as `12 timeout, 1 agent error`."""
    return ", ".join(f"{number} {format_cause(cause)}" for cause, number in causes.items())


def judged_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the numbers of judged rollouts as text, in one line if all were judged."""
    stored_evaluations = {
        key: one for key in EVALUATIONS if (one := read_evaluation(result, key)) is not None
    }
    sizes = {
        m.rollouts if m.judged == m.rollouts and not m.has_problems else None
        for m in stored_evaluations.values()
    }
    each = sizes.pop() if len(sizes) == 1 else None
    if each is not None:
        yield f"judged: {each} of {each} rollouts in each cell, none failed."
        return
    for key, one in stored_evaluations.items():
        if words := format_judged(one):
            when, kind = key.rsplit("_", 1)
            yield f"{when.replace('_', ' ')}, {kind}: {words}."
    if any(one.is_withheld for one in stored_evaluations.values()):
        yield TOO_MANY_LOST


# ---------------------------------------------------------------- what a cell tells

KINDS = ("sampled", "greedy")
NO_TOOLS = "no_tools_greedy"
SIDES = ("before", "demonstrations", "after", "control")
EVALUATIONS = (*(f"{side}_{kind}" for side in SIDES for kind in KINDS), NO_TOOLS)
"""Names of the evaluations of a training in its result."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """Reported quantity of an evaluation: success rate or mean reward."""

    name: str
    value: Callable[[StoredEvaluation], float | None]
    interval: Callable[[StoredEvaluation], Interval | None]

    def value_of(self, result: StoredEvaluation | None) -> float | None:
        """Return the value of an evaluation, or None if there is none."""
        return None if result is None or result.is_withheld else self.value(result)

    def has_value(self, result: StoredEvaluation | None) -> bool:
        """Return True if the evaluation has a mean, or withholds it for lack of rollouts."""
        return result is not None and (result.is_withheld or self.value(result) is not None)

    def text(
        self, result: StoredEvaluation | None, fmt: Callable[[float], str], *, ends: bool = False
    ) -> str:
        """Format the value of an evaluation, optionally with its interval. If too many rollouts
        were lost, the number of judged rollouts is returned."""
        if result is not None and result.is_withheld:
            return f"{result.judged} of {result.rollouts} judged"
        value = self.value_of(result)
        interval = self.format_range(result, fmt) if ends else ""
        message = f" (95 % interval {interval})" if interval else ""
        return "" if value is None else fmt(value) + message

    def format_range(self, result: StoredEvaluation | None, fmt: Callable[[float], str]) -> str:
        """Format the confidence interval as `0.49 to 0.61`."""
        ends = None if result is None or result.is_withheld else self.interval(result)
        return "" if ends is None else f"{fmt(ends[0])} to {fmt(ends[1])}"


SUCCESS = Quantity("success", lambda m: m.success, lambda m: m.success_interval)
REWARD = Quantity("mean reward", lambda m: m.reward, lambda m: m.reward_interval)


def quantities(graded: bool, has_success: bool = True) -> tuple[Quantity, ...]:
    """Return the reported quantities of a run, with its main result first."""
    if not graded:
        return SUCCESS, REWARD
    return (REWARD, SUCCESS) if has_success else (REWARD,)
