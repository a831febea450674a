"""What a reward makes of executions: its terms, and whether failing at once earns more than work.

A reward under which a quarter of the successes, or the executions on average, earn less than giving
up trains something else than to do the task well. The published weights with latency in
milliseconds are such a reward: `published_example` is its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any, get_args

from tutelage.errors import DataError
from tutelage.orchestration.data.prepare import log_files
from tutelage.orchestration.data.rows import read_rows
from tutelage.orchestration.evaluation.judged import UNSERVED
from tutelage.orchestration.evaluation.rewards import (
    ExecutionResult,
    Preset,
    References,
    RewardWeights,
    reward_parts,
)
from tutelage.statistics.intervals import mean_interval
from tutelage.statistics.outcome import too_many_lost

PRESETS: tuple[Preset, ...] = get_args(Preset)
TERMS = ("success", "cost", "latency", "shaped")
LOSING = 0.25
"""Share of successes below failing at once from which on a reward is warned of."""


@dataclass(frozen=True, slots=True)
class RewardAudit:
    """What one preset makes of some executions."""

    preset: Preset
    executions: int
    mean: float
    interval: tuple[float, float] | None
    """95 % interval of the mean; None for a single execution."""
    fail_at_once: float
    """Reward of giving up before anything is asked."""
    losing: float
    """Share of the successes that earn less than failing at once; 0 when there are none."""
    succeeded: int
    variance: Mapping[str, float]
    """Share of each term in the summed variances of the terms; all 0 when nothing varies."""

    @property
    def warning(self) -> str | None:
        """What is wrong with training under this reward, None when nothing was found."""
        if self.fail_at_once > self.mean:
            reason = "failing at once earns more than doing the work"
        elif self.losing > LOSING:
            share = f"{100 * self.losing:.0f} %"
            reason = f"{share} of the successes earn less than failing at once"
        else:
            return None
        return (
            f"the reward {self.preset!r} rewards the wrong thing: {reason}. Train under "
            "'normalized', or change the weights"
        )


def published_example() -> ExecutionResult:
    """Return the example execution of the published log format: -1.7045 under `seed`."""
    outputs = {"0": "a", "1": "b", "2": "c"}
    return ExecutionResult(True, outputs, 0.045, 1200.0, verified_fraction=1.0)


def audit_results(
    results: Sequence[ExecutionResult], preset: Preset, *, weights: RewardWeights | None = None
) -> RewardAudit:
    """Return what a preset makes of executions.

    Where an execution has no references, the highest cost and the longest latency of all replace
    them, 1 where all are 0. Raises `DataError` when there is nothing to audit.
    """
    if not results:
        raise DataError("there are no executions to audit; collect some first")
    cost = max(result.total_cost for result in results)
    latency = max(result.total_latency_ms for result in results) / 1000.0
    plain = References(cost or 1.0, latency or 1.0)

    def earned(result: ExecutionResult) -> dict[str, float]:
        own: References | None = getattr(result, "references", None)
        return reward_parts(result, preset=preset, weights=weights, references=own or plain)

    parts = [earned(result) for result in results]
    totals = [math.fsum(terms.values()) for terms in parts]
    nothing = math.fsum(earned(ExecutionResult(False)).values())
    good = [total for result, total in zip(results, totals, strict=True) if result.success]
    variances = {term: pvariance([terms[term] for terms in parts]) for term in TERMS}
    whole = math.fsum(variances.values())
    return RewardAudit(
        preset=preset,
        executions=len(totals),
        mean=fmean(totals),
        interval=mean_interval(totals, [str(place) for place in range(len(totals))]),
        fail_at_once=nothing,
        losing=sum(total < nothing for total in good) / len(good) if good else 0.0,
        succeeded=len(good),
        variance={term: value / whole if whole else 0.0 for term, value in variances.items()},
    )


def judged_results(rows: Sequence[Mapping[str, Any]]) -> list[ExecutionResult]:
    """The results that lines of an execution log hold, without those that a worker's server lost.

    Raises `DataError` with the line, and where too many were lost for the others to tell what a
    reward wants.
    """
    kept = {n: row for n, row in enumerate(rows, 1) if row.get("reason") != UNSERVED}
    if rows and too_many_lost(len(kept), len(rows)):
        raise DataError(
            f"only {len(kept)} of {len(rows)} executions were judged: the workers' servers did not "
            "answer the others. What is left may be a biased part; collect them again"
        )
    execution_results: list[ExecutionResult] = []
    for number, row in kept.items():
        try:
            fields: Mapping[str, Any] = row["execution_result"]
            execution_results.append(
                ExecutionResult(
                    bool(fields["success"]),
                    dict(fields.get("outputs") or {}),
                    float(fields["total_cost"]),
                    float(fields["total_latency_ms"]),
                    float(fields.get("verified_fraction", float(bool(fields["success"])))),
                )
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"line {number} is no execution: bad or missing {error}") from error
    return execution_results


def audit_logs(
    logs: Sequence[str | Path], presets: Sequence[Preset] = PRESETS
) -> tuple[list[RewardAudit], int]:
    """Return what each preset makes of the executions of logs, files or folders with one, and how
    many executions they have. Raises `DataError` as `judged_results` does."""
    rows = [row for path in log_files(logs) for row in read_rows(path)]
    results = judged_results(rows)
    return [audit_results(results, preset) for preset in presets], len(rows)
