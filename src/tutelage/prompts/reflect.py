"""Pooled reflection: this package's variant of GEPA, the default with an endpoint.

Parents are drawn from GEPA's Pareto front (`gepa.py`). A step is several reflections, each on a few
of the parent's failures. Trials estimate their sentences, and the best form one child
(`sentence_model.py`), which must match the leader on a few validation tasks before a full
validation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tutelage.prompts import requests
from tutelage.prompts.compose import compose
from tutelage.prompts.evaluator import judged_pairs
from tutelage.prompts.gepa import draw_steps, merge
from tutelage.prompts.lineage import Candidate
from tutelage.prompts.search import EditRequest, SearchState
from tutelage.types import Mode, Task

RACE, BEHIND = 8, 0.035
"""Validation tasks on which a child is compared with the leader, and its tolerated deficit in
reward, since they are few."""


@dataclass(frozen=True, slots=True)
class Reflect:
    """Settings of the search algorithm `reflect`."""

    minibatch: int = 6
    """Training tasks per step."""
    shown: int = 3
    """Failures in a reflection."""
    asks: int = 4
    """Reflections per step, each on other failures."""
    trials: int = 30
    """Rollouts per step that estimate the effect of the sentences of all proposals."""
    rounds: int | None = None

    name: ClassVar[str] = "reflect"
    address: ClassVar[str] = "gepa"  # it had this name first, and searches repeat
    needs_optimiser: ClassVar[bool] = True

    def proposals(self, rollouts: int, val: int) -> int:
        """Return the number of proposals within a rollout budget; see `Algorithm`."""
        return max(0, rollouts - val) // (val + self.minibatch + self.trials) * self.asks

    async def search(self, state: SearchState) -> None:
        """Run the search; see `Algorithm`."""
        size, tried = min(self.minibatch, len(state.train)), set[tuple[str, ...]]()
        pass_size = len(state.train) // size
        for number, rng, parent, tasks in draw_steps(state, self.rounds, size, pass_size):
            kept = await self._run_step(state, parent, tasks, number)
            if kept and len(state.names) > 1:
                await merge(state, rng, tried)

    async def _run_step(
        self, state: SearchState, parent: Candidate, tasks: list[Task], number: int
    ) -> bool:
        """Reflect on failures, estimate the effects of the sentences, and validate the composed
        child. Return True if it is accepted. Components are edited in turn."""
        (before,) = await state.score([parent], Mode.TRAIN, tasks)
        if not before.can_improve:
            return False
        name = state.names[number % len(state.names)]
        failed = [pair for pair in before.get_worst(len(tasks)) if pair[1].value < 1]
        rng = state.seeds.child("gepa", number, "shown").python()
        edits: list[EditRequest] = []
        for i in range(state.calls_left(self.asks)):
            shown = rng.sample(failed, min(self.shown, len(failed)))
            messages = requests.reflect(name, parent.components[name], shown)
            edits.append(EditRequest(parent, name, messages, f"gepa/{number}/{i}", "reflect"))
        for child in await state.propose_edits(edits):
            state.pool.add_sentences(child.components)
            child.decide("pooled", "its sentences are tried with all others")
        for child in await compose(state, parent, name, self.trials, number):
            leader = state.validated[state.leaders()[0].id][1]
            few = state.val[:RACE]
            (after,) = await state.score([child], Mode.VAL, few)
            if after.has_infra_error:
                continue
            old, new = judged_pairs(leader.outcomes[: len(after.outcomes)], after.outcomes)
            gap = sum(new) / max(1, len(new)) - sum(old) / max(1, len(new))
            if gap < -BEHIND:
                child.decide("rejected", f"{gap:+.3g} on {len(few)} validation tasks")
            elif await state.validate([child]):
                child.decide("accepted", "composed of the best sentences")
                return True
        return False
