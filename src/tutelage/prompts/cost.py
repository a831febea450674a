"""What a search may come to, computed before it begins: rollouts, calls, tokens, dollars.

The worst case is a bound, not a guess: cached scores, early ends and prefixes make a search cheaper
and nothing makes it more expensive.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from tutelage.prompts.screen import Screen
from tutelage.prompts.search import MOST_ROLLOUTS, plan
from tutelage.prompts.setup import SearchSetup
from tutelage.runs.rounds import COUNTED, Spend


@dataclass(frozen=True, slots=True)
class SearchCost:
    """The most that search and held-out test can spend; None: no bound is known."""

    rounds: int | None
    search: Spend
    test: Spend
    calls_bounded: bool
    dollars_known: bool
    least: int
    """The fewest rollouts that the search needs."""
    experiment: int | None
    """The fewest rollouts with which `screen` makes its experiment; None for others."""

    @property
    def total(self) -> Spend:
        """Search and test."""
        return self.search + self.test


def search_cost(setup: SearchSetup) -> SearchCost:
    """Return the plan. Raises `ConfigError` for one that cannot work."""
    algorithm, settings, splits = setup.algorithm, setup.settings, setup.splits
    limits, test, least = plan(algorithm, splits, settings)
    one, val = algorithm.cost(len(splits.train), len(splits.val)), len(splits.val)
    bounded = not algorithm.needs_optimiser or limits.optimiser_calls is not None
    assert limits.rollouts is not None, "the configuration bounds the rollouts"
    most, calls = limits.rollouts, limits.optimiser_calls or 0
    if one.rounds is not None and one.rollouts is not None:
        most = min(most, (val + one.rounds * one.rollouts) * settings.samples)
        asked = one.rounds * one.calls
        calls = asked if limits.optimiser_calls is None else min(calls, asked)
        bounded = True
    search = settings.worst.of_rollout() * most + settings.worst.of_call() * calls
    bounds = [(name, limit) for name in COUNTED if (limit := getattr(limits, name)) is not None]
    search = replace(search, **{name: min(getattr(search, name), n) for name, n in bounds})
    known = None not in (*setup.bundle.prices.values(), *setup.prices.values())
    experiment = None
    if isinstance(algorithm, Screen) and algorithm.share > 0:
        numbers = range(MOST_ROLLOUTS)
        experiment = bisect_left(numbers, True, key=algorithm.affords_experiment)
    return SearchCost(one.rounds, search, test, bounded, known, least, experiment)
