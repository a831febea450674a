"""GEPA: reflective search over a Pareto front of prompts (Agrawal et al. 2025, arXiv 2507.19457).

A prompt survives when no other is at least as good on every validation task; parents are drawn from
the front by the number of tasks on which they are best. In the paper a step is one reflection on
three training tasks; the child must do strictly better on the same three before it may cost a full
validation. Here a step is several reflections, whose sentences are sorted out by trials and
composed to one child (`pool.py`), which must keep up with the leader on a few validation tasks.
With two or more components, two members of the front with a common ancestor merge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, count

from tutelage.prompts import requests
from tutelage.prompts.blame import evidence, suspect
from tutelage.prompts.compose import compose
from tutelage.prompts.edits import parse
from tutelage.prompts.lineage import Candidate, Lineage
from tutelage.prompts.optimiser import Request
from tutelage.prompts.workshop import Workshop
from tutelage.types import Mode, Task


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
    """Rollouts a step by which the sentences of all proposals are sorted out (`pool.py`). With 0,
    and a minibatch of 3, it is the paper's search: one child a step, which must beat its parent on
    the minibatch."""
    rounds: int | None = None

    name = "gepa"
    needs_optimiser = True

    def proposals(self, rollouts: int, val: int) -> int:
        """How many proposals are sure to fit, validated in full."""
        room = max(0, rollouts - val)
        if self.trials:
            return room // (val + self.minibatch + self.trials) * self.asks
        return room // (val + 2 * self.minibatch)

    async def search(self, shop: Workshop) -> None:
        """Runs until the budget or the rounds end. Raises `BudgetSpent` at the former."""
        await shop.validate([shop.seed])
        turns = {}
        for number in count() if self.rounds is None else range(self.rounds):
            rng = shop.seeds.child("gepa", number).python()
            wins = frontier({i: s.outcomes for i, (_, s) in shop.validated.items()})
            if not wins:
                return
            drawn = rng.choices(list(wins), list(wins.values()))[0]
            parent = shop.validated[drawn][0]
            names = shop.names
            turn = turns.setdefault(drawn, 0)
            turns[drawn] += 1
            step = self._pooled if self.trials else self._step
            tasks = _minibatch(shop, number, self.minibatch)
            if await step(shop, parent, turn, tasks, number) and len(names) > 1:
                await self._merge(shop)
            # A step is small and often played before; a round is one pass over the training tasks.
            if (number + 1) % _steps_a_pass(shop, self.minibatch) == 0:
                await shop.validate(await shop.demonstrate(shop.leaders()[0], number))
                shop.end_round()

    async def _step(
        self, shop: Workshop, parent: Candidate, turn: int, tasks: Sequence[Task], number: int
    ) -> bool:
        (before,) = await shop.score([parent], Mode.TRAIN, tasks)
        if not before.mendable:
            return False
        component = suspect(shop.names, [before], turn)
        shown = before.evidence
        messages = requests.reflect(component, parent.components[component], shown)
        (reply,) = await shop.asker.read([Request("edit", messages, f"gepa/{number}")], parse)
        if reply.problem:
            shop.note_failed(parent, "reflect", reply.reason, "", reply.cost)
            return False
        child = shop.propose([parent], {component: reply.text}, "reflect", "", reply.cost)
        if child is None:
            return False
        (after,) = await shop.score([child], Mode.TRAIN, tasks)
        if after.infra_error:
            return False
        old, new = before.beside(after)
        words = f"{sum(old):.3g} before, {sum(new):.3g} after on the minibatch"
        if len(old) < len(tasks) * shop.samples:
            words += f", {len(old)} of {len(tasks) * shop.samples} rollouts judged both times"
        if not sum(new) > sum(old):
            shop.lineage.decide(child, "rejected", words)
            return False
        shop.lineage.decide(child, "accepted", words)
        await shop.validate([child])
        return True

    async def _pooled(
        self, shop: Workshop, parent: Candidate, turn: int, tasks: Sequence[Task], number: int
    ) -> bool:
        (before,) = await shop.score([parent], Mode.TRAIN, tasks)
        if not before.mendable:
            return False
        component = suspect(shop.names, [before], turn)
        failed = [x for x in evidence(component, before, len(tasks)) if x[1].value < 1]
        rng = shop.seeds.child("gepa", number, "shown").python()
        asked = [
            Request(
                "edit",
                requests.reflect(
                    component,
                    parent.components[component],
                    rng.sample(failed, min(self.shown, len(failed))),
                ),
                f"gepa/{number}/{i}",
            )
            for i in range(shop.asks_left(self.asks))
        ]
        for reply in await shop.asker.read(asked, parse):
            if reply.problem:
                shop.note_failed(parent, "reflect", reply.reason, "", reply.cost)
                continue
            child = shop.propose([parent], {component: reply.text}, "reflect", "", reply.cost)
            if child is not None:
                shop.pool.learn(child.components)
                shop.lineage.decide(child, "pooled", "its sentences are tried with all others")
        child = await compose(shop, parent, component, self.trials, number)
        if child is None or not await shop.challenge(child):
            return False
        shop.lineage.decide(child, "accepted", "composed of the best sentences")
        return True

    async def _merge(self, shop: Workshop) -> None:
        """Join the first pair of the front whose lines changed different components."""
        scores = {i: s.outcomes for i, (_, s) in shop.validated.items()}
        front = [shop.validated[i][0] for i in frontier(scores)]
        for one, two in combinations(front, 2):
            changes = merged(shop.lineage, one, two)
            if changes is None:
                continue
            child = shop.propose([one, two], changes, "merge")
            if child is None:
                continue
            await shop.validate([child])
            shop.lineage.decide(child, "accepted", "two members of the front merged")
            return


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


def merged(lineage: Lineage, one: Candidate, two: Candidate) -> dict[str, str] | None:
    """What changes in `one` when it takes what only `two` changed since their common ancestor.

    None where there is no such ancestor, or where nothing would come of it.
    """
    lines = {entry.id: entry for entry in lineage}

    def ancestors(identity: str) -> list[str]:
        found, queue = list[str](), list(lines[identity].parents)
        while queue:
            found.append(queue.pop(0))
            queue += lines[found[-1]].parents
        return found

    above = ancestors(two.id)
    shared = next((a for a in ancestors(one.id) if a in above), None)
    if shared is None or one.id in above or two.id in ancestors(one.id):
        return None
    base = lines[shared].components
    mine = {n for n in base if one.components[n] != base[n]}
    theirs = {n for n in base if two.components[n] != base[n]}
    taken = {n: two.components[n] for n in sorted(theirs - mine)}
    return taken if taken and mine - theirs else None


def _minibatch(shop: Workshop, number: int, size: int) -> list[Task]:
    """The next tasks of an endless reading of the training tasks, shuffled anew each epoch."""
    size = min(size, len(shop.train))
    a_pass = _steps_a_pass(shop, size)
    order = list(shop.train)
    shop.seeds.child("gepa", "epoch", number // a_pass).python().shuffle(order)
    at = number % a_pass * size
    return order[at : at + size]


def _steps_a_pass(shop: Workshop, size: int) -> int:
    """How many minibatches the training tasks make."""
    return max(1, len(shop.train) // size)
