"""APO: a beam of prompts, improved by textual gradients (Pryzant et al. 2023, arXiv 2305.03495).

A round plays each prompt of the beam on the same few training tasks, has its failures criticised,
and turns each critique into edits in two styles. Trials sort out their sentences and compose the
best (`pool.py`). Then old and new are narrowed together by successive halving over validation
prefixes, every score cached and paired. The narrow default (2 x 3) spends
its budget on depth; `gepa.py` is the search for smaller budgets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from tutelage.prompts import requests
from tutelage.prompts.blame import evidence, suspect
from tutelage.prompts.compose import compose
from tutelage.prompts.edits import Rejected, parse
from tutelage.prompts.lineage import Candidate
from tutelage.prompts.narrowing import PREFIXES, bandit, halve
from tutelage.prompts.optimiser import Request
from tutelage.prompts.workshop import Workshop
from tutelage.types import Mode


@dataclass(frozen=True, slots=True)
class APO:
    """Settings. `prefixes=()` plays every candidate on all validation tasks, as the paper does."""

    beam: int = 2
    branches: int = 3
    """Edits of each parent a round."""
    shown: int = 4
    """Training rollouts that a critique sees, failures first."""
    minibatch: int = 6
    """Training tasks a round, from which those are taken."""
    prefixes: tuple[int, ...] = PREFIXES
    rounds: int | None = None
    selection: Literal["halving", "brute", "ucb"] = "halving"
    """How candidates are narrowed: over prefixes, all in full, or as a bandit's arms."""
    trials: int = 30
    """Rollouts a round by which the sentences of all edits are sorted out (`pool.py`); with 0 the
    edits are halved as they are."""
    entrants: int = 0
    """Where there are trials: edits a round that are validated beside what was composed."""
    paraphrases: int = 0
    """Monte-Carlo paraphrases of each edit, which look for better words of the same content."""

    name = "apo"
    needs_optimiser = True

    def proposals(self, rollouts: int, val: int) -> int:
        """How many proposals are sure to fit, validated in full."""
        room = max(0, rollouts - val)
        if self.trials:
            return room // (val + self.minibatch + self.trials) * self.branches
        return room // (val + self.minibatch)

    async def search(self, shop: Workshop) -> None:
        """Runs until the budget or the rounds end. Raises `BudgetSpent` at the former."""
        beam = await shop.validate([shop.seed])
        for number in count() if self.rounds is None else range(self.rounds):
            made = await self._round(shop, beam, number)
            if self.trials:
                made = await self._sorted_out(shop, beam, made, number)
            made += await shop.demonstrate(beam[0], number)
            beam = await self._narrowed(shop, [*beam, *made])
            for candidate in beam:
                shop.lineage.decide(
                    candidate, "accepted", f"in the beam after iteration {number + 1}"
                )
            shop.end_round()

    async def _sorted_out(
        self, shop: Workshop, beam: Sequence[Candidate], made: Sequence[Candidate], number: int
    ) -> list[Candidate]:
        """What is composed after trials, and the edits of which the pool expects most."""
        for child in made:
            shop.pool.learn(child.components)
        component = _edited(beam, made) or shop.names[number % len(shop.names)]
        child = await compose(shop, beam[0], component, self.trials, number)
        ranked = sorted(made, key=lambda c: -shop.pool.expected(c.components, component))
        room = self.entrants if child is not None else max(1, self.entrants)
        for other in ranked[room:]:
            shop.lineage.decide(other, "pooled", "its sentences are tried with all others")
        return [*([] if child is None else [child]), *ranked[:room]]

    async def _narrowed(self, shop: Workshop, field: Sequence[Candidate]) -> list[Candidate]:
        if self.selection == "ucb":
            return await bandit(shop, field, self.beam)
        prefixes = () if self.selection == "brute" else self.prefixes
        return await halve(shop, field, self.beam, prefixes)

    async def _round(
        self, shop: Workshop, beam: Sequence[Candidate], number: int
    ) -> list[Candidate]:
        rng = shop.seeds.child("apo", number).python()
        tasks = rng.sample(list(shop.train), min(self.minibatch, len(shop.train)))
        scores = await shop.score(beam, Mode.TRAIN, tasks)
        names = shop.names
        faulty = [
            (c, s, suspect(names, [s], number))
            for c, s in zip(beam, scores, strict=True)
            if s.mendable
        ]
        asked = [
            Request(
                "gradient",
                requests.critique(name, c.components[name], evidence(name, s, self.shown)),
                f"apo/{number}/{c.id}/gradient",
            )
            for c, s, name in faulty
        ]
        calls = len(asked) * (1 + self.branches)
        if self.trials and shop.asks_left(calls) < calls:
            return []  # what is known already can still be sorted out
        critiques = await shop.asker.read(asked, _critique)
        for (parent, _, _), lost in zip(faulty, critiques, strict=True):
            if lost.problem:
                shop.note_failed(parent, "critique", lost.reason, "", lost.cost)
        styles = list(requests.STYLES)
        edits = [
            (parent, name, criticism, styles[i % len(styles)], i)
            for (parent, _, name), criticism in zip(faulty, critiques, strict=True)
            for i in range(self.branches)
            if criticism.text
        ]
        replies = await shop.asker.read(
            [
                Request(
                    "edit",
                    requests.edit(name, p.components[name], criticism.text, style),
                    f"apo/{number}/{p.id}/edit/{i}",
                )
                for p, name, criticism, style, i in edits
            ],
            parse,
        )
        made: list[tuple[Candidate, str]] = []
        for (parent, name, criticism, style, i), reply in zip(edits, replies, strict=True):
            cost = reply.cost + criticism.cost if i == 0 else reply.cost
            if reply.problem:
                shop.note_failed(parent, style, reply.reason, criticism.text, cost)
            else:
                child = shop.propose([parent], {name: reply.text}, style, criticism.text, cost)
                made += [] if child is None else [(child, name)]
        children = [child for child, _ in made]
        return children + await self._paraphrased(shop, made, number)

    async def _paraphrased(
        self, shop: Workshop, children: Sequence[tuple[Candidate, str]], number: int
    ) -> list[Candidate]:
        asked = [(*child, i) for child in children for i in range(self.paraphrases)]
        replies = await shop.asker.read(
            [
                Request(
                    "edit",
                    requests.paraphrase(name, child.components[name], i),
                    f"apo/{number}/{child.id}/paraphrase/{i}",
                )
                for child, name, i in asked
            ],
            parse,
        )
        made: list[Candidate | None] = []
        for (child, name, _), reply in zip(asked, replies, strict=True):
            if reply.problem:
                shop.note_failed(child, "paraphrase", reply.reason, "", reply.cost)
            else:
                changes = {name: reply.text}
                made.append(shop.propose([child], changes, "paraphrase", "", reply.cost))
        return [candidate for candidate in made if candidate is not None]


def _edited(beam: Sequence[Candidate], made: Sequence[Candidate]) -> str | None:
    """The component that most edits changed; None without any."""
    known = [parent.components for parent in beam]
    changed = Counter(
        name
        for child in made
        for name, text in child.components.items()
        if all(components[name] != text for components in known)
    )
    return min(changed, key=lambda name: (-changed[name], name), default=None)


def _critique(reply: str) -> str:
    if not reply.strip():
        raise Rejected("malformed", "the critique is empty")
    return reply.strip()
