"""One prompt search from seed to verdict: plan, baseline, search, winner, held-out test.

`optimise` puts the parts together and knows no algorithm by name. A search that runs out of budget
keeps its best; killed, it is called again with the same journal and goes on where it was. `save`
writes what a person wants to keep. `holdout_test.py` has the test, `search_state.py` what an
algorithm holds.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from tutelage.errors import ConfigError, EngineError
from tutelage.prompts.budget import BudgetExceeded, Limits, SearchBudget, WorstCase
from tutelage.prompts.choice import Algorithm
from tutelage.prompts.contract import Ask, Components, Play, Settings, Splits
from tutelage.prompts.evaluator import EvaluationItem, EvaluationJob, Evaluator, task_hash
from tutelage.prompts.holdout_test import HoldoutResult, run_holdout_test
from tutelage.prompts.journal import SearchJournal
from tutelage.prompts.lineage import Candidate, Lineage
from tutelage.prompts.loop import search
from tutelage.prompts.optimiser import Optimiser
from tutelage.prompts.search_state import SearchState
from tutelage.runs.rounds import Observer, Spend
from tutelage.types import Mode

LEAST_PROPOSALS = 3
MOST_ROLLOUTS = 10**9
"""Rollouts that no search has."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search; `components` are the winner's, whole."""

    components: Components
    best: Candidate
    lineage: Lineage
    spent: Spend
    test_spent: Spend
    ended: str
    test: HoldoutResult
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    """Rollouts that failed, search and test together, by cause."""
    lowest: float = 0.0
    """The lowest reward of a rollout that did not fail, where it is lower than a failure's."""


async def optimise(
    algorithm: Algorithm,
    components: Components,
    splits: Splits,
    play: Play,
    settings: Settings,
    *,
    ask: Ask | None = None,
    journal: SearchJournal | None = None,
    observer: Observer | None = None,
) -> SearchResult:
    """Search, then open the test once.

    Raises `ConfigError` for a plan that cannot work, `RunError` for a journal of another search,
    `EngineError` when seed or test cannot be scored; then fix the cause and call again.
    """
    search_limits, test_spend, _ = plan(algorithm, splits, settings)
    journal = SearchJournal() if journal is None else journal
    journal.open(
        _header(algorithm, components, splits, settings), accept_changes=settings.accept_changes
    )
    budget = SearchBudget(search_limits, settings.worst, elapsed=journal.elapsed())
    evaluator = Evaluator(play, budget, journal, settings, "search", observer)
    optimiser = None if ask is None else Optimiser(ask, budget, journal, settings.asked_at_once)
    shop = SearchState(algorithm.name, components, splits, evaluator, optimiser)
    ended = await _search(algorithm, shop)
    best = await shop.winner()
    for candidate in shop.lineage:
        candidate.cost = candidate.cost + evaluator.spent_by.get(candidate.id, Spend())
    best.decide("winner", "best of the validated candidates")
    set_aside = Limits(
        rollouts=test_spend.rollouts,
        tokens=None if settings.limits.tokens is None else test_spend.tokens,
        dollars=None if settings.limits.dollars is None else test_spend.dollars,
    )
    test_budget = SearchBudget(set_aside, settings.worst)
    tester = Evaluator(play, test_budget, journal, settings, "test", observer)
    whole = shop.regions.join(best.components)
    seed = shop.regions.join(shop.seed.components)
    test = await run_holdout_test(tester, seed, whole, splits.test, shop.seeds)
    failures = evaluator.failures + tester.failures
    return SearchResult(
        whole,
        best,
        shop.lineage,
        budget.spent,
        test_budget.spent,
        ended,
        test,
        dict(sorted(failures.items())),
        min(evaluator.lowest, tester.lowest),
    )


def plan(algorithm: Algorithm, splits: Splits, settings: Settings) -> tuple[Limits, Spend, int]:
    """What the search may spend, the worst case of the held-out test, which is set aside first, and
    the fewest rollouts that a search needs.

    `limits.rollouts` bounds the search alone; tokens, dollars and task calls cover the test too.
    Raises `ConfigError` when fewer than three proposals fit.
    """
    limits = settings.limits
    test = settings.worst.of_rollout() * (2 * len(splits.test) * settings.samples)
    rest: dict[str, float] = {}
    for name in ("task_calls", "tokens", "dollars"):
        limit = getattr(limits, name)
        if limit is None:
            continue
        rest[name] = limit - getattr(test, name)
        if rest[name] < 0:
            raise ConfigError(
                f"the held-out test alone may cost {getattr(test, name):g} {name}, more than the "
                f"budget of {limit:g}; raise it, use fewer test tasks, or lower the worst case of "
                "a rollout (max_turns, max_prompt_tokens, max_tokens)"
            )
    searching = replace(limits, **rest)
    rollouts = _affordable(searching, settings.worst)

    def fit(count: int) -> int:
        return algorithm.proposals(count // settings.samples, len(splits.val))

    least = bisect_left(range(MOST_ROLLOUTS), LEAST_PROPOSALS, key=fit)
    if rollouts is not None and rollouts < least:
        raise ConfigError(
            f"the budget of {rollouts} rollouts is enough for {fit(rollouts)} proposals of "
            f"{algorithm.name}, fewer than {LEAST_PROPOSALS}; raise it to at least {least} "
            f"rollouts, or use fewer than {len(splits.val)} validation tasks"
        )
    return searching, test, least


async def _search(algorithm: Algorithm, shop: SearchState) -> str:
    """Why the search ended. The seed is scored first: without that nothing can be compared."""
    try:
        (score,) = await shop.score([shop.seed], Mode.VAL, shop.val)
        if score.infra_error:
            items = [
                EvaluationItem(Mode.VAL, t, s)
                for t in shop.val
                for s in range(shop.settings.samples)
            ]
            whole = shop.regions.join(shop.seed.components)
            shop.evaluator.forget_infrastructure(EvaluationJob(shop.seed.id, whole, items))
            raise EngineError(
                "cannot score the seed prompt: too many of its rollouts failed because of "
                f"infrastructure, the first with {score.first_loss!r}; fix it, then resume"
            )
        shop.seed.decide("accepted", "the seed")
        await search(algorithm, shop)
    except BudgetExceeded as spent:
        return str(spent)
    finally:
        shop.close_round()
    return "the search ended by itself"


def _affordable(limits: Limits, worst: WorstCase) -> int | None:
    """The rollouts that every ceiling allows in the worst case."""
    one = worst.of_rollout()
    allowed = [
        int(limit // amount)
        for name in ("rollouts", "task_calls", "tokens", "dollars")
        if (limit := getattr(limits, name)) is not None and (amount := getattr(one, name)) > 0
    ]
    return min(allowed, default=None)


def _header(
    algorithm: Algorithm, components: Components, splits: Splits, settings: Settings
) -> dict[str, str]:
    """What must not change under a resume; runners and timeouts may."""
    data = [[task_hash(t) for t in split] for split in (splits.train, splits.val, splits.test)]
    changed = {"failure reward": repr(settings.failure_reward)} if settings.failure_reward else {}
    return changed | {
        "agent, grader, model or sampling": settings.fingerprint,
        "algorithm": repr(algorithm),
        "budget": repr((asdict(settings.limits), asdict(settings.worst))),
        "dataset": hashlib.sha256(repr(data).encode()).hexdigest(),
        "seed prompt": json.dumps(sorted(components.items())),
        "seed or samples": repr((settings.seed, settings.samples)),
    }
