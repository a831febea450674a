"""APO: a beam of prompts, improved by textual gradients (Pryzant et al. 2023, arXiv 2305.03495).

A round plays each prompt of the beam on the same few training tasks, has its failures criticised,
turns each critique into edits in two styles, and narrows old and new together by successive
halving over validation prefixes, every score cached and paired. The narrow default (2 x 3) spends
its budget on depth; `gepa.py` is the search for smaller budgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from tutelage.algorithms.prompt import requests
from tutelage.algorithms.prompt.edits import Rejected, parse
from tutelage.algorithms.prompt.evaluator import Score
from tutelage.algorithms.prompt.lineage import Candidate
from tutelage.algorithms.prompt.optimiser import Request
from tutelage.algorithms.prompt.workshop import PREFIXES, Workshop
from tutelage.types import Mode


@dataclass(frozen=True, slots=True)
class APO:
    """Settings. `prefixes=()` plays every candidate on all validation tasks, as the paper does."""

    beam: int = 2
    branches: int = 3
    """Edits of each parent a round."""
    shown: int = 4
    """Training rollouts that a critique sees, failures first."""
    minibatch: int = 8
    """Training tasks a round, from which those are taken."""
    prefixes: tuple[int, ...] = PREFIXES
    rounds: int | None = None

    name = "apo"
    needs_optimiser = True

    def proposals(self, rollouts: int, val: int) -> int:
        """How many proposals are sure to fit, validated in full."""
        return max(0, rollouts - val) // (val + self.minibatch)

    async def search(self, shop: Workshop) -> None:
        """Runs until the budget or the rounds end. Raises `BudgetSpent` at the former."""
        beam = await shop.validate([shop.seed])
        for number in count() if self.rounds is None else range(self.rounds):
            made = await self._round(shop, beam, number)
            beam = await shop.halve([*beam, *made], self.beam, self.prefixes)
            for candidate in beam:
                shop.lineage.decide(candidate, "accepted", f"in the beam after round {number}")
            shop.budget.end_round()

    async def _round(
        self, shop: Workshop, beam: Sequence[Candidate], number: int
    ) -> list[Candidate]:
        rng = shop.seeds.child("apo", number).python()
        tasks = rng.sample(list(shop.train), min(self.minibatch, len(shop.train)))
        scores = await shop.score(beam, Mode.TRAIN, tasks)
        names = sorted(shop.seed.components)
        component = names[number % len(names)]
        faulty = [(c, s) for c, s in zip(beam, scores, strict=True) if min(s.rewards) < 1]
        asked = [
            Request(
                "gradient",
                requests.critique(component, c.components[component], _failures(s, self.shown)),
                f"apo/{number}/{c.id}/gradient",
            )
            for c, s in faulty
        ]
        critiques = await shop.asker.read(asked, _critique)
        styles = list(requests.STYLES)
        edits = [
            (parent, criticism, styles[i % len(styles)], i)
            for (parent, _), criticism in zip(faulty, critiques, strict=True)
            for i in range(self.branches)
            if criticism.text
        ]
        replies = await shop.asker.read(
            [
                Request(
                    "edit",
                    requests.edit(component, p.components[component], criticism.text, style),
                    f"apo/{number}/{p.id}/edit/{i}",
                )
                for p, criticism, style, i in edits
            ],
            parse,
        )
        made: list[Candidate | None] = []
        for (parent, criticism, style, i), reply in zip(edits, replies, strict=True):
            cost = reply.cost + criticism.cost if i == 0 else reply.cost
            if reply.problem:
                shop.note_failed(parent, style, reply.problem, criticism.text, cost)
            else:
                changes = {component: reply.text}
                made.append(shop.propose([parent], changes, style, criticism.text, cost))
        return [candidate for candidate in made if candidate is not None]


def _failures(score: Score, most: int) -> requests.Shown:
    pairs = zip(score.items, score.episodes, strict=True)
    return sorted(pairs, key=lambda pair: pair[1].value)[:most]


def _critique(reply: str) -> str:
    if not reply.strip():
        raise Rejected("malformed", "the critique is empty")
    return reply.strip()
