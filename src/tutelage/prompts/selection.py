"""Selection among many candidates by successive halving on validation tasks.

Fewer candidates are played on more tasks. Dropped candidates are recorded in the lineage.
`search.py` plays and ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from tutelage.prompts.budget import BudgetExceeded
from tutelage.prompts.lineage import Candidate
from tutelage.prompts.search import SearchState

PREFIXES = (6, 12)
"""Validation tasks per stage before all of them."""
_SAME = 1e-9
"""Maximum difference of equal mean rewards due to rounding."""


async def successive_halving(
    state: SearchState, candidates: Sequence[Candidate], keep: int
) -> list[Candidate]:
    """Select candidates by successive halving: all on few validation tasks, the better half on
    more.

    Returns at most `keep`, the best first, each played on all validation tasks. If a stage exceeds
    the budget, half of the candidates are dropped without being played.
    """
    alive = list(candidates)
    for n in [*(n for n in PREFIXES if n < len(state.val)), len(state.val)]:
        tasks, field = state.val[:n], alive
        while True:
            try:
                ranked = await state.rank(field, tasks)
                break
            except BudgetExceeded:
                if len(field) == 1:
                    raise
                field = field[: len(field) // 2]
        kept = ranked[: keep if n == len(state.val) else max(keep, (len(ranked) + 1) // 2)]
        least = min((state.mean(c, tasks) for c in kept), default=0.0)
        for c in alive:
            mean = state.mean(c, tasks)
            if c in kept or c.decision != "proposed":
                continue
            if c not in ranked:
                c.decide("dropped", "not played: the rollouts left are too few")
            elif mean < least - _SAME:
                c.decide("dropped", f"behind on {n} tasks, {mean:.3g} against {least:.3g}")
            else:
                reason = f"no better than what was kept on {n} tasks, {mean:.3g} each"
                c.decide("dropped", reason)
        alive = kept
    return alive
