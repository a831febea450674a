"""Audit of rewards: compares the mean reward of logged executions with that of failing at once.

If the executions of a log earn less than giving up, training under this reward does not teach to
solve the task. The published weights with latency in milliseconds are such a reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import get_args

from tutelage.errors import DataError
from tutelage.orchestration.data.prepare import log_files
from tutelage.orchestration.data.rows import read_rows
from tutelage.orchestration.evaluation.rewards import (
    UNSERVED,
    ExecutionResult,
    Preset,
    References,
    compute_reward,
)
from tutelage.statistics.outcome import too_many_lost

PRESETS: tuple[Preset, ...] = get_args(Preset)


@dataclass(frozen=True, slots=True)
class RewardAudit:
    """Mean reward of executions under one preset."""

    preset: Preset
    executions: int
    mean: float
    """Mean reward. Failing at once, before any worker is called, earns 0."""

    @property
    def warning(self) -> str | None:
        """Warning against training under this reward; None if the mean is not negative."""
        if self.mean >= 0:
            return None
        return (
            f"the reward {self.preset!r} rewards the wrong thing: failing immediately earns more "
            "than doing the work. Train with 'normalized', or change the weights"
        )


def audit_results(results: Sequence[ExecutionResult], preset: Preset) -> RewardAudit:
    """Return the audit of executions under a preset. References are the highest cost and the
    longest latency of all executions, or 1 if all are 0. Raises `DataError` without executions."""
    if not results:
        raise DataError("no executions to audit; collect some first")
    cost = max(result.total_cost for result in results)
    latency = max(result.total_latency_ms for result in results) / 1000.0
    references = References(cost or 1.0, latency or 1.0)
    totals = [compute_reward(result, preset, references=references) for result in results]
    return RewardAudit(preset, len(totals), fmean(totals))


def audit_logs(
    logs: Sequence[str | Path], presets: Sequence[Preset] = PRESETS
) -> tuple[list[RewardAudit], int]:
    """Return the audit of each preset on execution logs (files or folders), and the number of
    executions in them. Raises `DataError` if so many executions were lost to server errors that the
    rest may be biased, and `RewardError` if a row is not an execution."""
    rows = [row for path in log_files(logs) for row in read_rows(path)]
    kept = [row for row in rows if row.get("reason") != UNSERVED]
    if rows and too_many_lost(len(kept), len(rows)):
        raise DataError(
            f"only {len(kept)} of {len(rows)} executions were judged because workers' servers did "
            "not answer the others; the rest may be biased, so collect them again"
        )
    results = [ExecutionResult.read(row) for row in kept]
    return [audit_results(results, preset) for preset in presets], len(rows)
