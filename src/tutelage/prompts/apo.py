"""APO: a beam of prompts, improved by textual gradients (Pryzant et al. 2023, arXiv 2305.03495).

A round plays each prompt of the beam on the same few training tasks, asks for a critique of its
failures, and turns each critique into edits in two styles. Trials estimate the effect of their
sentences and compose the best (`sentence_model.py`). Then old and new prompts are narrowed together
by successive halving over validation prefixes, with cached and paired scores. The narrow default (2
x 3) spends its budget on depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tutelage.prompts import requests
from tutelage.prompts.compose import compose
from tutelage.prompts.edits import RejectedEdit
from tutelage.prompts.evaluator import CandidateScore
from tutelage.prompts.lineage import Candidate
from tutelage.prompts.optimiser import OptimiserRequest
from tutelage.prompts.search import EditRequest, SearchState, rounds
from tutelage.prompts.selection import successive_halving
from tutelage.runs.rounds import Spend
from tutelage.types import Mode

Played = Sequence[tuple[Candidate, CandidateScore]]
"""Prompts of the beam with their scores."""


@dataclass(frozen=True, slots=True)
class APO:
    """Settings of the search algorithm APO."""

    beam: int = 2
    branches: int = 3
    """Edits per parent and round."""
    shown: int = 4
    """Training rollouts in a critique, failures first."""
    minibatch: int = 6
    """Training tasks per round, from which those are taken."""
    rounds: int | None = None
    trials: int = 30
    """Rollouts per round that estimate the effect of the edits' sentences (`sentence_model.py`);
    with 0 the edits go directly to successive halving."""

    name: ClassVar[str] = "apo"
    address: ClassVar[str] = "apo"
    needs_optimiser: ClassVar[bool] = True

    def proposals(self, rollouts: int, val: int) -> int:
        """Return the number of proposals within a rollout budget; see `Algorithm`."""
        room = max(0, rollouts - val)
        if self.trials:
            return room // (val + self.minibatch + self.trials) * self.branches
        return room // (val + self.minibatch)

    async def search(self, state: SearchState) -> None:
        """Run the search; see `Algorithm`."""
        beam, train = [state.seed], list(state.train)
        for number in rounds(self.rounds):
            rng = state.seeds.child("apo", number).python()
            tasks = rng.sample(train, min(self.minibatch, len(train)))
            scores = await state.score(beam, Mode.TRAIN, tasks)
            proposed = await self._propose(state, [*zip(beam, scores, strict=True)], number)
            if self.trials:
                for child in proposed:
                    state.pool.add_sentences(child.components)
                component = state.names[number % len(state.names)]
                composed = await compose(state, beam[0], component, self.trials, number)
                proposed.sort(key=lambda c: -state.pool.expected_effect(c.components, component))
                room = 0 if composed else 1
                for other in proposed[room:]:
                    other.decide("pooled", "its sentences are tried with all others")
                proposed = [*composed, *proposed[:room]]
            beam = await successive_halving(state, [*beam, *proposed], self.beam)
            for candidate in beam:
                candidate.decide("accepted", f"in the beam after iteration {number + 1}")
            state.end_round()

    async def _propose(self, state: SearchState, scores: Played, number: int) -> list[Candidate]:
        """Propose edits for the prompts of the beam, based on critiques of their failures.
        Components are edited in turn."""
        name = state.names[number % len(state.names)]
        faulty = [(c, s) for c, s in scores if s.can_improve]
        calls = len(faulty) * (1 + self.branches)
        if self.trials and state.calls_left(calls) < calls:
            return []  # what is known already can still be sorted out
        asked = [
            OptimiserRequest(
                "gradient",
                requests.critique(name, c.components[name], s.get_worst(self.shown)),
                f"apo/{number}/{c.id}/gradient",
            )
            for c, s in faulty
        ]
        edits: list[EditRequest] = []
        styles = list(requests.STYLES)
        critiques = await state.optimiser.ask(asked, _parse_critique)
        for (parent, _), critique in zip(faulty, critiques, strict=True):
            if critique.problem:
                state.record_failure(parent, "critique", critique.reason, "", critique.cost)
                continue
            text = parent.components[name]
            for i in range(self.branches):
                style, key = styles[i % len(styles)], f"apo/{number}/{parent.id}/edit/{i}"
                messages = requests.edit(name, text, critique.text, style)
                cost = Spend() if i else critique.cost  # the first edit is charged with it
                edits.append(EditRequest(parent, name, messages, key, style, critique.text, cost))
        return await state.propose_edits(edits)


def _parse_critique(reply: str) -> str:
    """Return the critique of a reply. Raises `RejectedEdit` if it is empty."""
    if not reply.strip():
        raise RejectedEdit("malformed", "the critique is empty")
    return reply.strip()
