"""Many candidates narrowed to few by successive halving, all played on validation tasks of one
order.

Fewer candidates are played on more tasks. What is left behind is noted in the lineage. `search.py`
plays and ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from tutelage.prompts.budget import BudgetExceeded
from tutelage.prompts.lineage import Candidate
from tutelage.prompts.search import SearchState

PREFIXES = (6, 12)
"""Validation tasks played before all of them, where candidates are many."""
_SAME = 1e-9
"""How far apart mean rewards may be that are the same but for rounding."""


async def successive_halving(
    state: SearchState, candidates: Sequence[Candidate], keep: int
) -> list[Candidate]:
    """Play all on few validation tasks, the better half on more.

    Returns at most `keep`, the best first, each played on all validation tasks. Where a stage does
    not fit the budget any more, half of the field is dropped unplayed.
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
