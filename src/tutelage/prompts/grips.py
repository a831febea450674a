"""GRIPS: edit search over the sentences of a prompt (Prasad et al. 2023, arXiv 2203.07281).

Each step makes a few random edits of the best prompt: delete a sentence, swap two, add one that was
deleted before or that the bank holds. The best edit is taken when it does better; after `patience`
steps without one the search ends. The paper's paraphrases need a model and are left out. It is the
baseline that `screen.py` has to beat.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tutelage.prompts.bank import GENERIC
from tutelage.prompts.lineage import Candidate
from tutelage.prompts.rounds import Candidates, Scores, SearchRound
from tutelage.prompts.search_state import SearchState
from tutelage.prompts.sentence_model import sentences


@dataclass(frozen=True, slots=True)
class GRIPS:
    """Settings, the paper's by default."""

    bank: tuple[str, ...] = GENERIC
    candidates: int = 5
    steps: int = 10
    patience: int = 2

    name = "grips"
    needs_optimiser = False

    def proposals(self, rollouts: int, val: int) -> int:
        """How many proposals are sure to fit, validated in full."""
        return max(0, rollouts - val) // val

    def search(self, shop: SearchState) -> Iterator[SearchRound]:
        """Steps, until patience, steps or budget end."""
        edits = _Edits(shop, self)
        for edits.number in range(self.steps):
            yield edits
            if edits.over:
                return


class _Edits(SearchRound):
    """A step: random edits of the best prompt, of which the best may take its place."""

    def __init__(self, shop: SearchState, settings: GRIPS) -> None:
        super().__init__(shop)
        self.settings = settings
        self.best, self.waited = shop.seed, 0
        self.spare = list(settings.bank)
        """Sentences that an edit may add."""

    @property
    def over(self) -> bool:
        """Whether too many steps found nothing better."""
        return self.waited > self.settings.patience

    @property
    def component(self) -> str:
        """The component whose turn it is."""
        return self.shop.names[self.number % len(self.shop.names)]

    def select(self) -> Candidates:
        """The best prompt."""
        return [self.best]

    async def propose(self, parents: Candidates, scores: Scores) -> Candidates:
        """Random edits of it, and demonstrations."""
        made: list[Candidate] = []
        for i in range(self.settings.candidates):
            rng = self.shop.seeds.child("grips", self.number, i).python()
            operation, text = _edited(self.best.components[self.component], self.spare, rng)
            made += self.shop.propose(parents, {self.component: text}, operation)
        return made + await self.shop.demonstrate(self.best, self.number)

    def keep(self, ranked: Candidates) -> None:
        """The best edit, where it does better."""
        shop, before, reason = self.shop, self.best, f"best of iteration {self.number + 1}"
        self.waited += 1
        if ranked and shop.reward(ranked[0]) > shop.reward(before):
            self.best, self.waited = ranked[0], 0
            kept = {*sentences(self.best.components[self.component])}
            gone = [s for s in sentences(before.components[self.component]) if s not in kept]
            self.spare += [s for s in gone if s not in self.spare]
            self.best.decide("accepted", reason)
        better = "no better than the best so far" if self.waited else f"not the {reason}"
        for child in ranked:
            if child != self.best:
                child.decide("rejected", better)

    def record(self) -> None:
        """Tell of the step; of the last one the search tells as it ends."""
        if not self.over:
            super().record()


def _edited(text: str, spare: list[str], rng: random.Random) -> tuple[str, str]:
    """One random edit that is possible: its name and the new text."""
    parts = sentences(text)
    possible = ["add"] * bool(spare)
    possible += ["delete"] * (len(parts) > 1) + ["swap"] * (len(parts) > 1)
    operation = rng.choice(possible or ["none"])
    if operation == "add":
        parts.insert(rng.randint(0, len(parts)), rng.choice(spare))
    elif operation == "delete":
        del parts[rng.randrange(len(parts))]
    elif operation == "swap":
        i, j = rng.sample(range(len(parts)), 2)
        parts[i], parts[j] = parts[j], parts[i]
    return operation, "\n".join(parts)
