"""Many candidates narrowed to few, all played on validation tasks of one order.

`successive_halving` plays fewer candidates on more tasks, `ucb_selection` plays the most promising
on more. What they leave behind is noted in the lineage. `search.py` plays and ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tutelage.prompts.budget import BudgetExceeded
from tutelage.prompts.lineage import Candidate
from tutelage.prompts.search import SearchState
from tutelage.types import Mode, Task

PREFIXES = (6, 12)
"""Validation tasks played before all of them, where candidates are many."""
PULL = 4
"""Validation tasks of one pull of a bandit's arm."""
_SAME = 1e-9
"""How far apart mean rewards may be that are the same but for rounding."""


async def successive_halving(
    state: SearchState,
    candidates: Sequence[Candidate],
    keep: int,
    prefixes: Sequence[int] = PREFIXES,
) -> list[Candidate]:
    """Successive halving: all on few validation tasks, the better half on more.

    Returns at most `keep`, the best first, each played on all validation tasks. Where a stage does
    not fit the budget any more, half of the field is dropped unplayed.
    """
    alive = list(candidates)
    stages = [n for n in prefixes if n < len(state.val)]
    for n in [*stages, len(state.val)]:
        ranked = await _fitting(state, alive, state.val[:n])
        room = keep if n == len(state.val) else max(keep, (len(ranked) + 1) // 2)
        _drop([c for c in alive if c not in ranked], "not played: the rollouts left are too few")
        means = {c: state.mean(c, state.val[:n]) for c in ranked}
        for c in ranked[room:]:
            _drop([c], _compared(means[c], [*means.values()][:room], n))
        alive = ranked[:room]
    return alive


async def ucb_selection(
    state: SearchState, candidates: Sequence[Candidate], keep: int
) -> list[Candidate]:
    """UCB over validation tasks (Pryzant et al. 2023): the most promising is played on more.

    Every candidate is played on the first tasks, then, as often as halving would, the one of the
    highest upper confidence bound on its next few, in one order for all, so that scores stay
    paired. The `keep` best are validated in full.
    """
    alive, size = list(candidates), min(PULL, len(state.val))
    seen = {c.id: size for c in await state.rank(alive, state.val[:size])}
    for _ in range(len(alive) * len(state.val) // (2 * PULL)):
        open_ = [c for c in alive if 0 < seen.get(c.id, 0) < len(state.val)]
        if not open_:
            break
        total = sum(seen.values())

        def bound(c: Candidate, total: int = total) -> float:
            return state.mean(c) + math.sqrt(2 * math.log(total) / seen[c.id]) / 2

        arm = max(open_, key=bound)
        reach = min(len(state.val), seen[arm.id] + PULL)
        await state.score([arm], Mode.VAL, state.val[:reach])
        seen[arm.id] = reach if state.was_played(arm) else 0
    ranked = sorted((c for c in alive if seen.get(c.id)), key=lambda c: -state.mean(c))
    means = [state.mean(c) for c in ranked]
    for c, mean in zip(ranked[keep:], means[keep:], strict=True):
        _drop([c], _compared(mean, means[:keep], seen[c.id]))
    return await state.validate(ranked[:keep])


async def _fitting(
    state: SearchState, alive: Sequence[Candidate], tasks: Sequence[Task]
) -> list[Candidate]:
    field = list(alive)
    while True:
        try:
            return await state.rank(field, tasks)
        except BudgetExceeded as spent:
            if len(field) == 1 or spent.what == "seconds":
                raise
            field = field[: len(field) // 2]


def _compared(mean: float, kept: Sequence[float], tasks: int) -> str:
    """Why a candidate of this mean reward is dropped, and those of the means `kept` are not."""
    if mean < min(kept) - _SAME:
        return f"behind on {tasks} tasks, {mean:.3g} against {min(kept):.3g}"
    return f"no better than what was kept on {tasks} tasks, {mean:.3g} each"


def _drop(candidates: Sequence[Candidate], reason: str) -> None:
    for candidate in candidates:
        if candidate.decision == "proposed":
            candidate.decide("dropped", reason)
