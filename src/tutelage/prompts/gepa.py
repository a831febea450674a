"""GEPA: reflective search over a Pareto front of prompts (Agrawal et al. 2025, arXiv 2507.19457).

A prompt survives when no other is at least as good on every validation task; parents are drawn from
the front by the number of tasks on which they are best. In the paper a step is one reflection on
three training tasks; the child must do strictly better on the same three before it may cost a full
validation. Here a step is several reflections, whose sentences are sorted out by trials and
composed to one child (`sentence_model.py`), which must keep up with the leader on a few validation
tasks. With two or more components, two members of the front with a common ancestor merge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tutelage.prompts import requests
from tutelage.prompts.compose import compose
from tutelage.prompts.evaluator import CandidateScore, judged_both
from tutelage.prompts.failure_attribution import evidence, suspected_component
from tutelage.prompts.lineage import Candidate, Lineage
from tutelage.prompts.requests import Shown
from tutelage.prompts.rounds import Candidates, Demonstrate, Scores, SearchRound, numbers
from tutelage.prompts.search_state import EditRequest, SearchState
from tutelage.types import Mode

RACE, BEHIND = 8, 0.035
"""Validation tasks on which a child is compared with the leader, and how far behind it may be
there."""


@dataclass(frozen=True, slots=True)
class GEPA:
    """Settings of the search."""

    minibatch: int = 6
    """Training tasks a step."""
    shown: int = 3
    """Failures that a reflection sees, where there are trials."""
    asks: int = 4
    """Reflections a step, each on failures of its own, where there are trials."""
    trials: int = 30
    """Rollouts a step by which the sentences of all proposals are sorted out (`sentence_model.py`).
    With 0, and a minibatch of 3, it is the paper's search: one child a step, which must beat its
    parent on the minibatch."""
    rounds: int | None = None

    name = "gepa"
    needs_optimiser = True

    def proposals(self, rollouts: int, val: int) -> int:
        """How many proposals are sure to fit, validated in full."""
        room = max(0, rollouts - val)
        if self.trials:
            return room // (val + self.minibatch + self.trials) * self.asks
        return room // (val + 2 * self.minibatch)

    def search(self, shop: SearchState) -> Iterator[SearchRound]:
        """Reflections, and a merge after each that did better, until the budget or `rounds` end.

        A reflection is small and often played before; the last of a pass over the training tasks
        is followed by demonstrations, where all of the pass is reported.
        """
        reflection = (_PooledReflection if self.trials else _Reflection)(shop, self)
        merge, demonstrate = _Merge(shop), Demonstrate(shop)
        for number in numbers(self.rounds):
            if not shop.validated:
                return
            reflection.number = demonstrate.number = number
            yield reflection
            if reflection.accepted and len(shop.names) > 1:
                yield merge
            if (number + 1) % reflection.a_pass == 0:
                yield demonstrate


class _Reflection(SearchRound):
    """A reflection on a minibatch; its child must beat its parent there, as in the paper."""

    def __init__(self, shop: SearchState, settings: GEPA) -> None:
        super().__init__(shop)
        self.settings = settings
        self.size = min(settings.minibatch, len(shop.train))
        self.a_pass = len(shop.train) // self.size
        """How many minibatches the training tasks make."""
        self.turns = Counter[str]()
        """How often each candidate was a parent."""
        self.scores: Sequence[CandidateScore] = ()
        """Of the parent on the minibatch."""
        self.component = ""
        """What of the parent is edited; empty where nothing could be better."""
        self.accepted = False

    def select(self) -> Candidates:
        """A member of the front, drawn by the number of tasks on which it is best."""
        wins = frontier(_outcomes(self.shop))
        rng = self.shop.seeds.child("gepa", self.number).python()
        drawn = rng.choices(list(wins), list(wins.values()))[0]
        self.turns[drawn] += 1
        return [self.shop.validated[drawn][0]]

    async def play(self, parents: Candidates) -> Scores:
        """The parent on the next tasks of an endless reading of them, shuffled again each epoch."""
        shop, (epoch, place) = self.shop, divmod(self.number, self.a_pass)
        order = list(shop.train)
        shop.seeds.child("gepa", "epoch", epoch).python().shuffle(order)
        self.tasks = order[place * self.size :][: self.size]
        return await shop.score(parents, Mode.TRAIN, self.tasks)

    async def propose(self, parents: Candidates, scores: Scores) -> Candidates:
        """The parent with the suspect component rewritten from the evidence."""
        (parent,), (before,) = parents, scores
        self.scores, self.component, self.accepted = scores, "", False
        if not before.mendable:
            return []
        self.component = suspected_component(self.shop.names, scores, self.turns[parent.id] - 1)
        made = await self.shop.propose_edits(list(self._edits(parent, before)))
        return [child for _, child in made]

    def _edits(self, parent: Candidate, before: CandidateScore) -> Iterator[EditRequest]:
        """One request, which sees the whole minibatch."""
        yield self._edit(parent, before.evidence, f"gepa/{self.number}")

    def _edit(self, parent: Candidate, shown: Shown, step_key: str) -> EditRequest:
        messages = requests.reflect(self.component, parent.components[self.component], shown)
        return EditRequest(parent, self.component, messages, step_key, "reflect")

    async def validate(self, parents: Candidates, candidates: Candidates) -> Candidates:
        """Play the child on the minibatch, and on all validation tasks where it does better."""
        shop = self.shop
        for child in candidates:
            (after,) = await shop.score([child], Mode.TRAIN, self.tasks)
            if after.infra_error:
                continue
            old, new = judged_both(self.scores[0].outcomes, after.outcomes)
            words = f"{sum(old):.3g} before, {sum(new):.3g} after on the minibatch"
            if len(old) < (whole := len(self.tasks) * shop.settings.samples):
                words += f", {len(old)} of {whole} rollouts judged both times"
            self.accepted = sum(new) > sum(old)
            child.decide("accepted" if self.accepted else "rejected", words)
            if self.accepted:
                return await shop.validate([child])
        return []

    def record(self) -> None:
        """Nothing yet: it is reported with its pass."""


class _PooledReflection(_Reflection):
    """Several reflections on a minibatch, whose sentences are composed to one child."""

    def _edits(self, parent: Candidate, before: CandidateScore) -> Iterator[EditRequest]:
        """Some requests, each of which sees failures of its own."""
        failed = [x for x in evidence(self.component, before, len(self.tasks)) if x[1].value < 1]
        rng = self.shop.seeds.child("gepa", self.number, "shown").python()
        for i in range(self.shop.asks_left(self.settings.asks)):
            shown = rng.sample(failed, min(self.settings.shown, len(failed)))
            yield self._edit(parent, shown, f"gepa/{self.number}/{i}")

    async def compose(self, parents: Candidates, proposed: Candidates) -> Candidates:
        """One child of the best sentences of all that were proposed so far."""
        for child in proposed:
            self.shop.pool.learn(child.components)
            child.decide("pooled", "its sentences are tried with all others")
        if not self.component:
            return []
        trials = self.settings.trials
        return await compose(self.shop, parents[0], self.component, trials, self.number)

    async def validate(self, parents: Candidates, candidates: Candidates) -> Candidates:
        """Play the child on a few validation tasks, and on all where it keeps up with the leader.

        It may be a little behind on the few, for they say little.
        """
        shop, few = self.shop, self.shop.val[:RACE]
        for child in candidates:
            before = shop.validated[shop.leaders()[0].id][1]
            (after,) = await shop.score([child], Mode.VAL, few)
            if after.infra_error:
                continue
            old, new = judged_both(before.outcomes[: len(after.outcomes)], after.outcomes)
            count = max(1, len(new))
            gap = sum(new) / count - sum(old) / count
            if gap >= -BEHIND:
                return await shop.validate([child])
            child.decide("rejected", f"{gap:+.3g} on {len(few)} validation tasks")
        return []

    def keep(self, ranked: Candidates) -> None:
        """Accept what was validated."""
        self.accepted = bool(ranked)
        for child in ranked:
            child.decide("accepted", "composed of the best sentences")


class _Merge(SearchRound):
    """Joins the first pair of the front whose lines changed different components."""

    def select(self) -> Candidates:
        """The front."""
        return [self.shop.validated[i][0] for i in frontier(_outcomes(self.shop))]

    async def propose(self, parents: Candidates, scores: Scores) -> Candidates:
        """The child of the first pair that has one."""
        for one, two in combinations(parents, 2):
            changes = _merged(self.shop.lineage, one, two)
            if changes and (child := self.shop.propose([one, two], changes, "merge")):
                return child
        return []

    def keep(self, ranked: Candidates) -> None:
        """Accept what was validated."""
        for child in ranked:
            child.decide("accepted", "two members of the front merged")

    def record(self) -> None:
        """Nothing yet: it is reported with its pass."""


def _outcomes(shop: SearchState) -> dict[str, tuple[float | None, ...]]:
    """One number a validation task, by candidate."""
    return {i: score.outcomes for i, (_, score) in shop.validated.items()}


def frontier(rewards: Mapping[str, Sequence[float | None]]) -> dict[str, int]:
    """On how many tasks each undominated candidate is best, in the order given.

    A reward of None was not judged, and says nothing of its candidate. A candidate is pruned when
    every task on which it is best has another, kept, best one.
    """
    if not rewards:
        return {}
    best: list[set[str]] = []
    for column in zip(*rewards.values(), strict=True):
        most = max((value for value in column if value is not None), default=None)
        pairs = zip(rewards, column, strict=True)
        best.append({name for name, value in pairs if value is not None and value == most})
    kept = [name for name in rewards if any(name in names for names in best)]
    for name in sorted(kept, key=lambda n: _scaled_sum(rewards[n])):
        others = {*kept} - {name}
        if all(names & others for names in best if name in names):
            kept.remove(name)
    return {name: sum(name in names for names in best) for name in kept}


def _scaled_sum(rewards: Sequence[float | None]) -> float:
    """What the judged ones come to, as if all had been judged and earned as much."""
    judged = [value for value in rewards if value is not None]
    return sum(judged) * (len(rewards) / max(1, len(judged)))


def _merged(lineage: Lineage, one: Candidate, two: Candidate) -> dict[str, str] | None:
    """What changes in `one` when it takes what only `two` changed since their common ancestor.

    None where there is no such ancestor, or where nothing would come of it.
    """

    def ancestors(identity: str) -> list[str]:
        names, queue = list[str](), list(lineage[identity].parents)
        while queue:
            names.append(queue.pop(0))
            queue += lineage[names[-1]].parents
        return names

    above = ancestors(two.id)
    shared = next((a for a in ancestors(one.id) if a in above), None)
    if shared is None or one.id in above or two.id in ancestors(one.id):
        return None
    base = lineage[shared].components
    mine = {n for n in base if one.components[n] != base[n]}
    theirs = {n for n in base if two.components[n] != base[n]}
    taken = {n: two.components[n] for n in sorted(theirs - mine)}
    return taken if taken and mine - theirs else None
