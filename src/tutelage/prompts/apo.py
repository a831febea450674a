"""APO: a beam of prompts, improved by textual gradients (Pryzant et al. 2023, arXiv 2305.03495).

A round plays each prompt of the beam on the same few training tasks, has its failures criticised,
and turns each critique into edits in two styles. Trials estimate the effect of their sentences and
compose the best (`sentence_model.py`). Then old and new are narrowed together by successive halving
over validation prefixes, every score cached and paired. The narrow default (2 x 3) spends its
budget on depth; `gepa.py` is the search for smaller budgets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tutelage.prompts import requests
from tutelage.prompts.compose import compose
from tutelage.prompts.edits import RejectedEdit
from tutelage.prompts.failure_attribution import evidence, suspected_component
from tutelage.prompts.lineage import Candidate
from tutelage.prompts.optimiser import OptimiserRequest
from tutelage.prompts.rounds import Candidates, Scores, SearchRound, numbers
from tutelage.prompts.search_state import EditRequest, SearchState
from tutelage.prompts.selection import PREFIXES, successive_halving, ucb_selection
from tutelage.runs.rounds import Spend
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
    """Rollouts a round by which the sentences of all edits are sorted out (`sentence_model.py`);
    with 0 the edits are halved as they are."""
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

    def search(self, shop: SearchState) -> Iterator[SearchRound]:
        """Rounds of the beam, until the budget or `rounds` end."""
        beam = _Beam(shop, self)
        for beam.number in numbers(self.rounds):
            yield beam


class _Beam(SearchRound):
    """A round of the beam; its failures are criticised, and the critiques answered by edits."""

    def __init__(self, shop: SearchState, settings: APO) -> None:
        super().__init__(shop)
        self.settings = settings
        self.beam = [shop.seed]

    def select(self) -> Candidates:
        """The beam."""
        return self.beam

    async def play(self, parents: Candidates) -> Scores:
        """All of the beam on the same few training tasks."""
        train, rng = list(self.shop.train), self.shop.seeds.child("apo", self.number).python()
        tasks = rng.sample(train, min(self.settings.minibatch, len(train)))
        return await self.shop.score(parents, Mode.TRAIN, tasks)

    async def propose(self, parents: Candidates, scores: Scores) -> Candidates:
        """Edits that answer a critique of each parent's failures, then their paraphrases."""
        shop, settings, number = self.shop, self.settings, self.number
        faulty = [
            (c, s, suspected_component(shop.names, [s], number))
            for c, s in zip(parents, scores, strict=True)
            if s.mendable
        ]
        calls = len(faulty) * (1 + settings.branches)
        if settings.trials and shop.asks_left(calls) < calls:
            return []  # what is known already can still be sorted out
        asked = [
            OptimiserRequest(
                "gradient",
                requests.critique(name, c.components[name], evidence(name, s, settings.shown)),
                f"apo/{number}/{c.id}/gradient",
            )
            for c, s, name in faulty
        ]
        edits: list[EditRequest] = []
        critiques = await shop.asker.read(asked, _critique)
        for (parent, _, name), criticism in zip(faulty, critiques, strict=True):
            if criticism.problem:
                shop.note_failed(parent, "critique", criticism.reason, "", criticism.cost)
            else:
                edits += self._edits(parent, name, criticism.text, criticism.cost)
        made = await shop.propose_edits(edits)
        return [child for _, child in made + await self._paraphrased(made)]

    def _edits(
        self, parent: Candidate, component: str, criticism: str, cost: Spend
    ) -> Iterator[EditRequest]:
        """Requests for edits of one critique, which the first of them pays for."""
        text, styles = parent.components[component], list(requests.STYLES)
        for i in range(self.settings.branches):
            style = styles[i % len(styles)]
            yield EditRequest(
                parent,
                component,
                requests.edit(component, text, criticism, style),
                f"apo/{self.number}/{parent.id}/edit/{i}",
                style,
                criticism,
                Spend() if i else cost,
            )

    async def _paraphrased(
        self, made: Sequence[tuple[EditRequest, Candidate]]
    ) -> list[tuple[EditRequest, Candidate]]:
        edits = [
            EditRequest(
                child,
                edit.component,
                requests.paraphrase(edit.component, child.components[edit.component], i),
                f"apo/{self.number}/{child.id}/paraphrase/{i}",
                "paraphrase",
            )
            for edit, child in made
            for i in range(self.settings.paraphrases)
        ]
        return await self.shop.propose_edits(edits)

    async def compose(self, parents: Candidates, proposed: Candidates) -> Candidates:
        """What is composed after trials, with the edits of which the pool expects most."""
        if self.settings.trials:
            proposed = await self._sorted_out(parents, proposed)
        return [*proposed, *await self.shop.demonstrate(parents[0], self.number)]

    async def _sorted_out(
        self, parents: Sequence[Candidate], proposed: Sequence[Candidate]
    ) -> list[Candidate]:
        shop, settings, number = self.shop, self.settings, self.number
        for child in proposed:
            shop.pool.learn(child.components)
        component = _edited(parents, proposed) or shop.names[number % len(shop.names)]
        child = await compose(shop, parents[0], component, settings.trials, number)
        ranked = sorted(proposed, key=lambda c: -shop.pool.expected(c.components, component))
        room = settings.entrants if child else max(1, settings.entrants)
        for other in ranked[room:]:
            other.decide("pooled", "its sentences are tried with all others")
        return [*child, *ranked[:room]]

    async def validate(self, parents: Candidates, candidates: Candidates) -> Candidates:
        """Narrow old and new together to the size of the beam."""
        field, settings = [*parents, *candidates], self.settings
        if settings.selection == "ucb":
            return await ucb_selection(self.shop, field, settings.beam)
        prefixes = () if settings.selection == "brute" else settings.prefixes
        return await successive_halving(self.shop, field, settings.beam, prefixes)

    def keep(self, ranked: Candidates) -> None:
        """What is left is the beam."""
        self.beam = list(ranked)
        for candidate in ranked:
            candidate.decide("accepted", f"in the beam after iteration {self.number + 1}")


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
        raise RejectedEdit("malformed", "the critique is empty")
    return reply.strip()
