"""GRIPS: edit search over the sentences of a prompt (Prasad et al. 2023, arXiv 2203.07281).

Each step makes a few random edits of the best prompt: delete a sentence, swap two, add one that was
deleted before or that the bank holds. The best edit is taken when it does better; after `patience`
steps without one the search ends. The paper's paraphrases need a model and are left out. It is the
baseline that `screen.py` has to beat.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tutelage.prompts.bank import GENERIC
from tutelage.prompts.lineage import Candidate
from tutelage.prompts.pool import sentences
from tutelage.prompts.workshop import Workshop


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

    async def search(self, shop: Workshop) -> None:
        """Runs until patience, steps or budget end. Raises `BudgetSpent` at the last."""
        await shop.validate([shop.seed])
        best, waited = shop.seed, 0
        spare = list(self.bank)
        for step in range(self.steps):
            names = shop.names
            component = names[step % len(names)]
            made: list[Candidate] = []
            for i in range(self.candidates):
                rng = shop.seeds.child("grips", step, i).python()
                operation, text = edited(best.components[component], spare, rng)
                child = shop.propose([best], {component: text}, operation)
                made += [] if child is None else [child]
            made += await shop.demonstrate(best, step)
            ranked = await shop.validate(made)
            before = shop.validated[best.id][1].reward
            if ranked and shop.validated[ranked[0].id][1].reward > before:
                kept = {*sentences(ranked[0].components[component])}
                gone = [s for s in sentences(best.components[component]) if s not in kept]
                spare += [s for s in gone if s not in spare]
                best, waited = ranked[0], 0
                shop.lineage.decide(best, "accepted", f"best of iteration {step + 1}")
            else:
                waited += 1
            for child in ranked:
                if child != best:
                    shop.lineage.decide(child, "rejected", f"not the best of iteration {step + 1}")
            if waited > self.patience:
                return
            shop.end_round()


def edited(text: str, spare: list[str], rng: random.Random) -> tuple[str, str]:
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
