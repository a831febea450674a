"""Does a reward want what it should? Its terms, the reward of failing at once, and the ranking of
policies.

Four policies run the same workflows: random, cheapest, best (the most skilled worker) and an oracle
that knows which answers are right and takes the cheapest of them. A reward under which the oracle
is not first trains something else than to do the task well, and training under it warns. The
published weights with latency in milliseconds are such a reward: `published_example` is its own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import Any, get_args

from tutelage.errors import ConfigError, DataError
from tutelage.orchestration.evaluation.judged import UNSERVED
from tutelage.orchestration.evaluation.rewards import (
    ExecutionResult,
    Preset,
    References,
    RewardWeights,
    reward_parts,
)
from tutelage.orchestration.execution.executor import Executor
from tutelage.orchestration.execution.record import Execution
from tutelage.orchestration.execution.workers import Subtask, Worker, WorkerPool
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import Plan
from tutelage.orchestration.routing.contract import (
    RandomRouter,
    RankedRouter,
    Router,
    cheapest,
    most_accurate,
)
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import mean_interval
from tutelage.statistics.outcome import too_many_lost

PRESETS: tuple[Preset, ...] = get_args(Preset)
ORACLE = "oracle"
TERMS = ("success", "cost", "latency", "shaped")
FAILING = "failing at once"
LOSING = 0.25
"""Share of successes below failing at once from which on a reward is warned of."""
_TIE = 1e-9


@dataclass(frozen=True, slots=True)
class RewardAudit:
    """What one preset makes of the same executions."""

    preset: Preset
    executions: int
    """How many `mean` and `variance` are of; all are judged."""
    mean: float
    interval: tuple[float, float] | None
    """95 % interval of the mean; None for a single execution."""
    fail_at_once: float
    """Reward of giving up before anything is asked."""
    losing: float
    """Share of the successes (of the oracle's, where there is a ranking) that earn less than
    failing at once; 0 when there are none."""
    succeeded: int
    variance: Mapping[str, float]
    """Share of each term in the summed variances of the terms; all 0 when nothing varies."""
    ranking: tuple[tuple[str, float], ...] = ()
    """Policies with their mean reward, the best first, failing at once among them; empty for logs,
    which have one policy."""

    @property
    def failing_wins(self) -> bool:
        """Whether giving up at once earns more than the executions did on average."""
        return self.fail_at_once > self.mean

    @property
    def oracle_on_top(self) -> bool | None:
        """Whether no policy earns more than the oracle; None without a ranking."""
        means = dict(self.ranking)
        return means[ORACLE] >= max(means.values()) - _TIE if ORACLE in means else None

    @property
    def warning(self) -> str | None:
        """What is wrong with training under this reward, None when nothing was found."""
        names: list[str] = []
        if self.oracle_on_top is False:
            names.append(f"{self.ranking[0][0]!r} earns more than the oracle")
        if self.oracle_on_top is None and self.failing_wins:
            names.append("failing at once earns more than doing the work")
        elif self.losing > LOSING:
            share = f"{100 * self.losing:.0f} %"
            names.append(f"{share} of the successes earn less than failing at once")
        if not names:
            return None
        return (
            f"the reward {self.preset!r} rewards the wrong thing: {'; '.join(names)}. "
            "Train under 'normalized', or change the weights"
        )


def published_example() -> ExecutionResult:
    """The example execution of the published log format: -1.7045 under `seed`."""
    outputs = {"0": "a", "1": "b", "2": "c"}
    return ExecutionResult(True, outputs, 0.045, 1200.0, verified_fraction=1.0)


def audit_results(
    results: Sequence[ExecutionResult],
    preset: Preset,
    *,
    weights: RewardWeights | None = None,
    ranking: Mapping[str, float] | None = None,
    judged: Sequence[ExecutionResult] | None = None,
) -> RewardAudit:
    """The audit of one preset on executions; `judged` are those whose successes are weighed against
    failing at once, all of them by default.

    Where an execution has no references, the highest cost and the longest latency of all replace
    them. Raises `DataError` when there is nothing to audit.
    """
    if not results:
        raise DataError("there are no executions to audit; collect some first")
    earn = _earnings(results, preset, weights)
    parts = [earn(result) for result in results]
    totals = [math.fsum(terms.values()) for terms in parts]
    nothing = math.fsum(earn(ExecutionResult(False)).values())
    weighed = results if judged is None else judged
    good = [math.fsum(earn(result).values()) for result in weighed if result.success]
    variances = {term: pvariance([terms[term] for terms in parts]) for term in TERMS}
    whole = math.fsum(variances.values())
    ordered = sorted((ranking or {}).items(), key=lambda pair: -pair[1])
    return RewardAudit(
        preset=preset,
        executions=len(totals),
        mean=fmean(totals),
        interval=mean_interval(totals, [str(place) for place in range(len(totals))]),
        fail_at_once=nothing,
        losing=sum(total < nothing for total in good) / len(good) if good else 0.0,
        succeeded=len(good),
        variance={term: value / whole if whole else 0.0 for term, value in variances.items()},
        ranking=tuple(ordered),
    )


def audit_policies(
    by_policy: Mapping[str, Sequence[ExecutionResult]],
    preset: Preset,
    *,
    weights: RewardWeights | None = None,
) -> RewardAudit:
    """The audit of one preset on executions of the same workflows by several policies.

    The terms are those of the random policy's executions, or of all if there is none, as that is
    what training begins with.
    """
    everything = [result for results in by_policy.values() for result in results]
    if not everything:
        raise DataError("there are no executions to audit; run at least one workflow")
    earn = _earnings(everything, preset, weights)
    means = {
        name: fmean(math.fsum(earn(result).values()) for result in results)
        for name, results in by_policy.items()
    }
    means[FAILING] = math.fsum(earn(ExecutionResult(False)).values())
    shown = by_policy.get("random") or everything
    return audit_results(
        shown, preset, weights=weights, ranking=means, judged=by_policy.get(ORACLE)
    )


def _earnings(
    results: Sequence[ExecutionResult], preset: Preset, weights: RewardWeights | None
) -> Callable[[ExecutionResult], dict[str, float]]:
    """The terms of a result's reward, against its own references where it has them.

    Else against the highest cost and the longest latency among these results; 1 where all are 0.
    """
    cost = max(result.total_cost for result in results)
    latency = max(result.total_latency_ms for result in results) / 1000.0
    plain = References(cost or 1.0, latency or 1.0)

    def earn(result: ExecutionResult) -> dict[str, float]:
        own: References | None = getattr(result, "references", None)
        return reward_parts(result, preset=preset, weights=weights, references=own or plain)

    return earn


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


def audit_routers(pool: WorkerPool) -> dict[str, Router]:
    """The policies that are ranked. Raises `ConfigError` for a pool without the truth.

    The oracle knows which answers are right and takes the cheapest of them.
    """
    knows: Callable[[Worker, Subtask], bool] | None = getattr(pool, "knows", None)
    if knows is None:
        raise ConfigError(
            f"the pool {pool.name!r} does not know which answers are right, so there is no oracle "
            "to rank; audit its logs instead: --logs FILE"
        )
    return {
        "random": RandomRouter(escalate=False),
        "cheapest": cheapest(escalate=False),
        "best": most_accurate(escalate=False),
        ORACLE: RankedRouter(
            lambda s, i: s.estimates[i].cost if knows(s.workers[i], s.work) else math.inf
        ),
    }


async def run_policies(
    pool: WorkerPool, plans: Sequence[Plan], seeds: SeedTree, catalog: Catalog | None = None
) -> dict[str, list[Execution]]:
    """Let every policy execute the same plans, at the same places of the seed tree.

    Raises `ConfigError` for a pool without the truth.
    """
    executions: dict[str, list[Execution]] = {}
    for name, router in audit_routers(pool).items():
        executor = Executor(pool, router, catalog=catalog)
        executions[name] = await asyncio.gather(
            *(executor.run(p, seeds=seeds.child("flow", i)) for i, p in enumerate(plans))
        )
    return executions
