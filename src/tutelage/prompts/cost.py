"""What a search may come to, worked out before it begins: rollouts, calls, tokens, dollars.

The worst case is a bound, not a guess: cached scores, early ends and prefixes make a search cheaper
and nothing makes it more expensive. It is printed first, so that nobody finds out on the bill.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from tutelage.prompts.apo import APO
from tutelage.prompts.choice import Algorithm
from tutelage.prompts.gepa import GEPA
from tutelage.prompts.grips import GRIPS
from tutelage.prompts.run import MOST_ROLLOUTS, plan
from tutelage.prompts.screen import Screen
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
    """Those from which on `screen` makes its experiment."""

    @property
    def total(self) -> Spend:
        """Both."""
        return self.search + self.test


def search_cost(setup: SearchSetup) -> SearchCost:
    """The plan. Raises `ConfigError` for one that cannot work."""
    limits, test, least = plan(setup.algorithm, setup.splits, setup.settings)
    rounds, rollouts, calls = _most(setup)
    settings = setup.settings
    most = min(n for n in (rollouts, limits.rollouts) if n is not None)
    asked = [n for n in (calls, limits.optimiser_calls) if n is not None]
    worst = settings.worst
    search = worst.of_rollout() * most + worst.of_call() * min(asked, default=0)
    bounds = [(name, limit) for name in COUNTED if (limit := getattr(limits, name)) is not None]
    capped = replace(search, **{name: min(getattr(search, name), n) for name, n in bounds})
    prices = [*setup.bundle.prices.values(), *setup.prices.values()]
    known = all(price is not None for price in prices)
    bounded = bool(asked) or not setup.algorithm.needs_optimiser
    return SearchCost(rounds, capped, test, bounded, known, least, _experiment(setup.algorithm))


def _experiment(algorithm: Algorithm) -> int | None:
    """The fewest rollouts with which `screen` makes its experiment; None for other algorithms."""
    if not isinstance(algorithm, Screen) or algorithm.share <= 0:
        return None
    return bisect_left(range(MOST_ROLLOUTS), True, key=algorithm.affords_experiment)


def _most(setup: SearchSetup) -> tuple[int | None, int | None, int | None]:
    """Rounds, and what they can come to: rollouts, optimiser calls."""
    algorithm, val = setup.algorithm, len(setup.splits.val)
    repeats, shown = setup.settings.samples, int(setup.settings.demonstrations > 0)
    if isinstance(algorithm, APO):
        edits = algorithm.beam * algorithm.branches
        tried = edits * (1 + algorithm.paraphrases)
        train = min(algorithm.minibatch, len(setup.splits.train))
        if algorithm.trials:
            played = algorithm.trials + (1 + min(algorithm.entrants, tried) + shown) * val
        else:
            played = (tried + shown) * val
        rounds, each = algorithm.rounds, algorithm.beam * train + played
        asked = 2 * (algorithm.beam + tried)
    elif isinstance(algorithm, GEPA):
        rounds, each = algorithm.rounds, 2 * algorithm.minibatch + (2 + shown) * val
        each += algorithm.trials
        asked = 2 * algorithm.asks if algorithm.trials else 2
    elif isinstance(algorithm, GRIPS):
        rounds, each, asked = algorithm.steps, (algorithm.candidates + shown) * val, 0
    else:
        return algorithm.rounds, None, 0
    if rounds is None:
        return None, None, None if asked else 0
    return rounds, (val + rounds * each) * repeats, rounds * asked
