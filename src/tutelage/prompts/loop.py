"""One round of a prompt search, on one page.

    parents ─▶ rollouts ─▶ edits ─▶ candidates ─▶ scores ─▶ which stay ─▶ lineage, observer

An algorithm (`apo.py`, `gepa.py`, `screen.py`, `grips.py`) says which rounds there are, and each
round what its steps do (`rounds.py`). They act through the `SearchState`, which plays, asks and
proposes within the budget. What is prepared before and tested after is `run.py`'s.
"""

from __future__ import annotations

from tutelage.prompts.choice import Algorithm
from tutelage.prompts.rounds import SearchRound
from tutelage.prompts.search_state import SearchState


async def search(algorithm: Algorithm, shop: SearchState) -> None:
    """Play rounds until the algorithm has no more. Raises `BudgetExceeded` where one does not
    fit."""
    await shop.validate([shop.seed])
    for step in algorithm.search(shop):
        await search_round(step)


async def search_round(step: SearchRound) -> None:
    """Make candidates of parents, and keep those that do better."""
    parents = step.select()
    scores = await step.play(parents)
    proposed = await step.propose(parents, scores)
    candidates = await step.compose(parents, proposed)
    ranked = await step.validate(parents, candidates)
    step.keep(ranked)
    step.record()
