"""The steps of a round, which each algorithm fills in for itself.

`loop.py` takes them in order. An object may serve many rounds: what an algorithm remembers from
one to the next, it keeps there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from tutelage.prompts.evaluator import CandidateScore
from tutelage.prompts.lineage import Candidate
from tutelage.prompts.search_state import SearchState

Candidates = Sequence[Candidate]
Scores = Sequence[CandidateScore]


class SearchRound:
    """What a round does. Steps that are not overridden pass on what they were given."""

    def __init__(self, shop: SearchState) -> None:
        self.shop = shop
        self.number = 0
        """Addresses the round's draws and requests."""

    def select(self) -> Candidates:
        """The candidates that new ones are made of."""
        raise NotImplementedError

    async def play(self, parents: Candidates) -> Scores:
        """Play the parents on training tasks, for evidence of what goes wrong."""
        return []

    async def propose(self, parents: Candidates, scores: Scores) -> Candidates:
        """Edits of the parents, those that keep the laws."""
        raise NotImplementedError

    async def compose(self, parents: Candidates, proposed: Candidates) -> Candidates:
        """The candidates that are worth a validation, made of the edits or picked from them."""
        return proposed

    async def validate(self, parents: Candidates, candidates: Candidates) -> Candidates:
        """Play candidates on validation tasks; those that can be kept, the best first."""
        return await self.shop.validate(candidates)

    def keep(self, ranked: Candidates) -> None:
        """Decide which candidates the search continues with."""

    def record(self) -> None:
        """Tell of the round. Raises `BudgetExceeded` after too many that played nothing new."""
        self.shop.end_round()


class Demonstrate(SearchRound):
    """Gives the leader demonstrations, where its agent takes some."""

    def select(self) -> Candidates:
        """The best candidate so far."""
        return self.shop.leaders()[:1]

    async def propose(self, parents: Candidates, scores: Scores) -> Candidates:
        """The leader with other demonstrations."""
        return [c for leader in parents for c in await self.shop.demonstrate(leader, self.number)]


def numbers(most: int | None) -> Iterator[int]:
    """Numbers of rounds from 0, without an end for None."""
    return iter(count() if most is None else range(most))
