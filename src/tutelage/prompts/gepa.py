"""GEPA: reflective search over a Pareto front of prompts (Agrawal et al. 2025, arXiv 2507.19457).

The search as published, with the defaults of gepa 0.1.4. A prompt survives if no other is at least
as good on every validation task; parents are drawn from the front by the number of tasks on which
they are best. A step is one reflection on three training tasks; the child must be strictly better
on the same three before a full validation. Components take turns. With two or more, two members of
the front with a common ancestor are merged after a successful step. `reflect.py` is this package's
variant.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tutelage.prompts import requests
from tutelage.prompts.evaluator import CandidateScore, judged_pairs
from tutelage.prompts.lineage import Candidate, Lineage
from tutelage.prompts.search import EditRequest, SearchState, rounds
from tutelage.types import Mode, Task

MERGE_ATTEMPTS = 10
MERGE_TASKS = 5
"""Validation tasks on which a merged prompt must match both parents."""


@dataclass(frozen=True, slots=True)
class GEPA:
    """Settings of the search algorithm GEPA; the defaults are those of the paper."""

    minibatch: int = 3
    """Training tasks per step."""
    merges: int = 5
    """Maximum accepted merges."""
    rounds: int | None = None

    name: ClassVar[str] = "gepa"
    address: ClassVar[str] = "gepa"
    needs_optimiser: ClassVar[bool] = True

    def proposals(self, rollouts: int, val: int) -> int:
        """Return the number of proposals within a rollout budget; see `Algorithm`."""
        return max(0, rollouts - val) // (val + 2 * self.minibatch)

    async def search(self, state: SearchState) -> None:
        """Run the search; see `Algorithm`."""
        pass_size = -(-len(state.train) // self.minibatch)
        turns = {state.seed.id: 0}
        """Number of the component that each candidate is edited in next."""
        merged, tried = 0, set[tuple[str, ...]]()
        for number, rng, parent, tasks in draw_steps(state, self.rounds, self.minibatch, pass_size):
            (before,) = await state.score([parent], Mode.TRAIN, tasks)
            accepted = False
            if before.can_improve:
                name = state.names[turns[parent.id]]
                turns[parent.id] = (turns[parent.id] + 1) % len(state.names)
                messages = requests.reflect(name, parent.components[name], before.evidence)
                edit = EditRequest(parent, name, messages, f"gepa/{number}", "reflect")
                for child in await state.propose_edits([edit]):
                    turns[child.id] = turns[parent.id]
                    accepted = await _validate_child(state, child, before, tasks)
            if accepted and len(state.names) > 1 and merged < self.merges:
                for child in await merge(state, rng, tried):
                    merged += 1
                    turns[child.id] = max(turns[parent] for parent in child.parents)


def draw_steps(
    state: SearchState, limit: int | None, size: int, pass_size: int
) -> Iterator[tuple[int, random.Random, Candidate, list[Task]]]:
    """Yield the number, random generator, parent and training tasks of each step. A reported round
    is one pass over the training tasks and consists of `pass_size` steps."""
    for number in rounds(limit):
        if not state.validated:
            return
        rng = state.seeds.child("gepa", number).python()
        # The parent is drawn by the number of validation tasks on which it is best.
        wins = frontier({i: score.outcomes for i, (_, score) in state.validated.items()})
        parent, _ = state.validated[rng.choices(list(wins), list(wins.values()))[0]]
        # Training tasks are shuffled again each epoch; the last minibatch repeats its own.
        epoch, place = divmod(number, pass_size)
        order = list(state.train)
        state.seeds.child("gepa", "epoch", epoch).python().shuffle(order)
        order += (order[::-1] * size)[: -len(order) % size]
        yield number, rng, parent, order[place * size :][:size]
        if (number + 1) % pass_size == 0:
            state.end_round()


async def _validate_child(
    state: SearchState, child: Candidate, before: CandidateScore, tasks: Sequence[Task]
) -> bool:
    """Evaluate a child on its parent's minibatch and, if it is better, on all validation tasks.
    Return True if it is accepted."""
    (after,) = await state.score([child], Mode.TRAIN, tasks)
    if after.has_infra_error:
        return False
    old, new = judged_pairs(before.outcomes, after.outcomes)
    words = f"{sum(old):.3g} before, {sum(new):.3g} after on the minibatch"
    if len(old) < (whole := len(before.items)):
        words += f", {len(old)} of {whole} rollouts judged both times"
    accepted = sum(new) > sum(old)
    child.decide("accepted" if accepted else "rejected", words)
    return accepted and bool(await state.validate([child]))


def frontier(rewards: Mapping[str, Sequence[float | None]]) -> dict[str, int]:
    """Return the number of tasks on which each non-dominated candidate is best, in the order of
    `rewards`.

    A reward of None was not judged and is ignored. A candidate is pruned if every task on which it
    is best has another remaining best candidate.
    """
    if not rewards:
        return {}
    best: list[set[str]] = []
    for column in zip(*rewards.values(), strict=True):
        most = max((value for value in column if value is not None), default=None)
        pairs = zip(rewards, column, strict=True)
        best.append({name for name, value in pairs if value is not None and value == most})

    def mean(name: str) -> float:
        judged = [value for value in rewards[name] if value is not None]
        return sum(judged) / max(1, len(judged))

    kept = [name for name in rewards if any(name in names for names in best)]
    for name in sorted(kept, key=mean):
        others = {*kept} - {name}
        if all(names & others for names in best if name in names):
            kept.remove(name)
    return {name: sum(name in names for names in best) for name in kept}


async def merge(
    state: SearchState, rng: random.Random, history: set[tuple[str, ...]]
) -> list[Candidate]:
    """Merge two candidates of the front that changed different components of a common ancestor.
    Return the child if it matches both on a few validation tasks; `history` contains earlier
    merges."""
    outcomes = {i: score.outcomes for i, (_, score) in state.validated.items()}
    front = [state.validated[i][0] for i in frontier(outcomes)]
    for _ in range(MERGE_ATTEMPTS if len(front) > 1 else 0):
        one, two = sorted(rng.sample(front, 2), key=state.lineage.index)
        above = _find_ancestors(state.lineage, two)
        shared = [
            base
            for base in _find_ancestors(state.lineage, one)
            if base in above
            and state.mean(base) <= min(state.mean(one), state.mean(two))
            and any(
                text in (one.components[n], two.components[n])
                and one.components[n] != two.components[n]
                for n, text in base.components.items()
            )
        ]
        if one in above or two in _find_ancestors(state.lineage, one) or not shared:
            continue
        (base,) = rng.choices(shared, [max(1e-9, state.mean(base)) for base in shared])
        better = max(one, two, key=lambda c: (state.mean(c), rng.random()))
        changes: dict[str, str] = {}
        for name, text in base.components.items():
            mine, theirs = one.components[name], two.components[name]
            if mine == text:
                changes[name] = theirs
            elif theirs not in (text, mine):
                changes[name] = better.components[name]
        mark = (one.id, two.id, *changes.values())
        if mark in history:
            continue
        history.add(mark)
        return [
            child
            for child in state.propose([one, two], changes, "merge")
            if await _validate_merge(state, child, one, two, rng)
        ]
    return []


async def _validate_merge(
    state: SearchState, child: Candidate, first: Candidate, second: Candidate, rng: random.Random
) -> bool:
    """Evaluate a merged prompt on tasks that each parent wins and on ties, then on all tasks.
    Return True if it is accepted."""
    sides: dict[int, list[Task]] = {1: [], -1: [], 0: []}
    for task in state.val:
        gap = state.mean(first, [task]) - state.mean(second, [task])
        sides[(gap > 0) - (gap < 0)].append(task)
    few: list[Task] = []
    for side in sides.values():
        few += rng.sample(side, min(len(side), 2, MERGE_TASKS - len(few)))
    rest = [task for task in state.val if task not in few]
    few += rng.sample(rest, min(len(rest), MERGE_TASKS - len(few)))
    (score,) = await state.score([child], Mode.VAL, few)
    if score.has_infra_error:
        return False
    least = max(state.mean(first, few), state.mean(second, few))
    if score.reward < least:
        child.decide("rejected", f"{score.reward:.3g} on {len(few)} tasks, a parent {least:.3g}")
        return False
    child.decide("accepted", "two members of the front merged")
    return bool(await state.validate([child]))


def _find_ancestors(lineage: Lineage, candidate: Candidate) -> list[Candidate]:
    """Return all ancestors of a candidate."""
    parents = [one for one in lineage if one.id in candidate.parents]
    return [*parents, *(above for one in parents for above in _find_ancestors(lineage, one))]
