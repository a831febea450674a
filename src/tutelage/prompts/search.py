"""A prompt search from seed to verdict: plan, baseline, algorithm, winner, held-out test.

`optimise` runs these parts for any algorithm. An algorithm (`apo.py`, `gepa.py`, `reflect.py`,
`screen.py`) acts through `SearchState`: `propose` applies the rules of `edits.py` and records every
proposal in the lineage, `score` plays candidates through the evaluator. The test tasks are not in
the state, so no algorithm can use them. A search that exceeds its budget keeps its best prompt; an
interrupted one continues when called again with the same journal.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar, Protocol, cast

from tutelage.errors import ConfigError, EngineError
from tutelage.prompts.budget import BudgetExceeded, Limits, SearchBudget
from tutelage.prompts.contract import Ask, Components, Play, Settings, Splits
from tutelage.prompts.edits import EditRules, RejectedEdit, parse_edit
from tutelage.prompts.evaluator import (
    CandidateScore,
    EvaluationItem,
    EvaluationJob,
    Evaluator,
    SearchJournal,
    judged_pairs,
)
from tutelage.prompts.holdout_test import HoldoutResult, run_holdout_test
from tutelage.prompts.lineage import Candidate, Lineage
from tutelage.prompts.optimiser import Optimiser, OptimiserRequest
from tutelage.prompts.sentence_model import SentenceModel
from tutelage.runs.rounds import CandidateSummary, Observer, Round, Spend
from tutelage.seeds import SeedTree
from tutelage.types import Message, Mode, Task

FINALISTS = 3
LEAST_PROPOSALS = 3
MOST_ROLLOUTS = 10**9
"""Upper bound of the rollouts of a search."""


class Algorithm(Protocol):
    """Interface of a search algorithm with its settings."""

    name: ClassVar[str]
    """The value of `--algorithm`."""
    address: ClassVar[str]
    """Its address in the seed tree."""
    needs_optimiser: ClassVar[bool]

    @property
    def rounds(self) -> int | None:
        """Return the maximum number of rounds, or None if only the budget limits them."""
        ...

    def proposals(self, rollouts: int, val: int) -> int:
        """Return the minimum number of proposals that fit, each validated on all `val` tasks."""
        ...

    async def search(self, state: SearchState) -> None:
        """Propose and score candidates. Raises `BudgetExceeded` when the budget is exhausted."""


@dataclass(frozen=True, slots=True)
class EditRequest:
    """Request for a new text of one component of `parent`."""

    parent: Candidate
    component: str
    messages: Sequence[Message]
    step_key: str
    operation: str
    critique: str = ""
    cost: Spend = field(default_factory=Spend)
    """The cost of the critique, if this edit pays for it."""


class SearchState:
    """State of a search, used by its algorithm."""

    def __init__(
        self,
        address: str,
        components: Components,
        splits: Splits,
        evaluator: Evaluator,
        optimiser: Optimiser,
    ) -> None:
        """Create the state. `address` is the address of its random draws in the seed tree."""
        self.settings = evaluator.settings
        self.train, self.val = splits.train, splits.val
        self.evaluator, self.budget, self.optimiser = evaluator, evaluator.budget, optimiser
        self.seeds = SeedTree(self.settings.seed).child("prompt", address)
        self.lineage = Lineage(self.seeds)
        self.seed = self.lineage.add(components)
        """The seed prompt, first in the lineage."""
        self.names = sorted(self.seed.components)
        """The components that can be edited."""
        self.rules = EditRules(self.seed.components, [*splits.train, *splits.val])
        self.pool = SentenceModel(self.seed.components)
        """Effects of sentences, learned from all rollouts."""
        self.validated: dict[str, tuple[Candidate, CandidateScore]] = {}
        """Scores on all validation tasks, by candidate id."""
        self._proposed = {_components_key(self.seed.components): self.seed}
        self._values: dict[str, dict[tuple[str, int], float | None]] = {}
        """Validation rewards by candidate, task and sample; None if infrastructure lost it."""
        self._trained: dict[str, CandidateScore] = {}
        """The round's latest scores on training tasks."""
        self._rounds = 0
        self._reported = 1
        """Number of reported entries of the lineage, with the seed."""
        self._base = self.seed
        """The leader at the beginning of the round."""

    def calls_left(self, calls: int) -> int:
        """Return the number of optimiser calls that the budget allows, at most `calls`."""
        limit = self.budget.limits.optimiser_calls
        return calls if limit is None else min(calls, limit - self.budget.spent.optimiser_calls)

    # Proposals

    def propose(
        self,
        parents: Sequence[Candidate],
        changes: Mapping[str, str],
        operation: str,
        critique: str = "",
        cost: Spend | None = None,
    ) -> list[Candidate]:
        """Propose a candidate with changed components; the list is empty if it is rejected."""
        components = dict(parents[0].components)
        refused: RejectedEdit | None = None
        for name, text in changes.items():
            try:
                components[name] = self.rules.check_edit(name, text)
            except RejectedEdit as error:
                components[name], refused = text, error
        candidate = self.lineage.add(components, parents, operation, critique, cost)
        content = _components_key(components)
        if refused is None and content in self._proposed:
            refused = RejectedEdit("duplicate", "the same text was proposed before")
        if refused is not None:
            candidate.decide("rejected", f"{refused.rule}: {refused.reason}")
            return []
        self._proposed[content] = candidate
        return [candidate]

    async def propose_edits(self, edits: Sequence[EditRequest]) -> list[Candidate]:
        """Request all edits at once and return the accepted candidates."""
        requests = [OptimiserRequest("edit", edit.messages, edit.step_key) for edit in edits]
        made: list[Candidate] = []
        for edit, reply in zip(edits, await self.optimiser.ask(requests, parse_edit), strict=True):
            parent, cost = edit.parent, reply.cost + edit.cost
            if reply.problem:
                self.record_failure(parent, edit.operation, reply.reason, edit.critique, cost)
                continue
            changes = {edit.component: reply.text}
            made += self.propose([parent], changes, edit.operation, edit.critique, cost)
        return made

    def record_failure(
        self, parent: Candidate, operation: str, reason: str, critique: str, cost: Spend
    ) -> None:
        """Record a proposal without a text in the lineage."""
        failed = self.lineage.add(parent.components, [parent], operation, critique, cost)
        failed.decide("rejected", reason)

    def find_unvalidated(self, parent: Candidate, component: str, text: str) -> Candidate | None:
        """Return the existing candidate with this text if it was not validated, else None."""
        known = self._proposed.get(_components_key({**parent.components, component: text}))
        return None if known is None or known is self.seed or known.id in self._values else known

    # Scores

    async def score(
        self,
        candidates: Sequence[Candidate],
        split: Mode,
        tasks: Sequence[Task],
        first_sample: int = 0,
    ) -> list[CandidateScore]:
        """Evaluate candidates on the same items and record their scores."""
        samples = range(first_sample, first_sample + self.settings.samples)
        items = [EvaluationItem(split, task, sample) for task in tasks for sample in samples]
        jobs = [EvaluationJob(c.id, c.components, items) for c in candidates]
        scores = await self.evaluator.evaluate(jobs)
        for candidate, score in zip(candidates, scores, strict=True):
            candidate.record_score("val fresh" if first_sample else split.value, score)
            if score.has_infra_error:
                self._values.pop(candidate.id, None)
                self.validated.pop(candidate.id, None)
                reason = "too many rollouts were lost to infrastructure; it is not scored"
                candidate.decide("infra_error", reason)
                candidate.scores.clear()
                continue
            self._update_model(candidate.components, score)
            if split is Mode.TRAIN:
                self._trained[candidate.id] = score
            elif not first_sample:
                pairs = zip(items, score.outcomes, strict=True)
                known = self._values.setdefault(candidate.id, {})
                known |= {(item.task.id, item.sample): outcome for item, outcome in pairs}
                if len(tasks) == len(self.val):
                    self.validated[candidate.id] = (candidate, score)
        return scores

    def _update_model(self, components: Components, score: CandidateScore) -> None:
        """Add the rollouts of a score to the sentence model."""
        for item, episode in score.evidence:
            self.pool.add_rollout(components, f"{item.split}/{item.task.id}", episode.value)

    async def rank(
        self, candidates: Sequence[Candidate], tasks: Sequence[Task], first_sample: int = 0
    ) -> list[Candidate]:
        """Evaluate candidates on validation tasks and return the scored ones, best first."""
        scores = await self.score(candidates, Mode.VAL, tasks, first_sample)
        pairs = zip(scores, candidates, strict=True)
        usable = [(score.reward, c) for score, c in pairs if not score.has_infra_error]
        return [c for _, c in sorted(usable, key=lambda pair: -pair[0])]

    async def validate(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Evaluate candidates on all validation tasks and return the scored ones, best first."""
        return await self.rank(candidates, self.val)

    async def try_texts(
        self,
        parent: Candidate,
        component: str,
        texts: Sequence[str],
        tasks: Iterable[Task],
        operation: str,
    ) -> list[float]:
        """Evaluate each text on one training task, as a single entry of the lineage. Return the
        rewards, with NaN for an unsafe text or a lost rollout; the other rewards update the
        sentence model."""
        entry = self.lineage.add(parent.components, [parent], operation)
        entry.decide("experiment", f"{len(texts)} texts, one training task each")
        played: dict[int, tuple[Components, EvaluationJob]] = {}
        for number, (text, task) in enumerate(zip(texts, tasks, strict=False)):
            with suppress(RejectedEdit):
                made = {**parent.components, component: self.rules.check_edit(component, text)}
                items = [EvaluationItem(Mode.TRAIN, task)]
                played[number] = made, EvaluationJob(entry.id, made, items)
        scores = await self.evaluator.evaluate([job for _, job in played.values()])
        rewards = [math.nan] * len(texts)
        for (number, (made, _)), score in zip(played.items(), scores, strict=True):
            if not score.has_infra_error:
                rewards[number] = score.reward
                self._update_model(made, score)
        return rewards

    def mean(self, candidate: Candidate, tasks: Sequence[Task] = ()) -> float:
        """Return the mean reward of a candidate on its validation tasks, optionally only those in
        `tasks`; 0 if there are none."""
        played = self._values.get(candidate.id, {}).items()
        some = {task.id for task in tasks or self.val}
        values = [v for (task, _), v in played if v is not None and task in some]
        return sum(values) / max(1, len(values))

    def leaders(self) -> list[Candidate]:
        """Return the validated candidates, best first; ties keep their order."""
        ranked = sorted(self.validated.values(), key=lambda pair: -pair[1].reward)
        return [candidate for candidate, _ in ranked]

    async def winner(self) -> Candidate:
        """Return the best candidate; if the agent samples, rank finalists on fresh samples."""
        leaders = self.leaders() or [self.seed]
        if self.settings.samples > 1 and len(leaders) > 1:
            with suppress(BudgetExceeded):
                ranked = await self.rank(leaders[:FINALISTS], self.val, self.settings.samples)
                leaders = ranked or leaders
        return leaders[0]

    # Rounds

    def end_round(self) -> None:
        """Report and count a round. Raises `BudgetExceeded` after too many idle rounds."""
        self._report()
        self.budget.end_round()

    def close_round(self) -> None:
        """Report the candidates since the last round, if any."""
        if len(self.lineage) > self._reported:
            self._report()

    def _report(self) -> None:
        """Report a round to the observer."""
        entries = list(self.lineage)[self._reported :]
        self._reported += len(entries)
        self._rounds += 1
        base, leader = self._base, next(iter(self.leaders()), self.seed)
        trained = self._trained.get(base.id)
        played = self._values.get(base.id, {}).values() if trained is None else trained.outcomes
        rewards = tuple(value for value in played if value is not None)
        self.evaluator.observer.on_round(
            Round(
                number=self._rounds,
                components=base.components,
                split="val" if trained is None else "train",
                rewards=rewards,
                standings=tuple(self._summarise(entry) for entry in entries),
                leader=leader.id,
                best=leader.components,
                spent=self.budget.spent,
                lost=len(played) - len(rewards),
                samples=self.settings.samples,
                available=len(self.val if trained is None else self.train),
            )
        )
        self._base = leader
        self._trained.clear()

    def _summarise(self, entry: Candidate) -> CandidateSummary:
        """Summarise a candidate; wins, losses and ties are relative to its first parent."""
        values = self._values.get(entry.id, {})
        before = self._values.get(entry.parents[0], {}) if entry.parents else {}
        pairs = [*zip(*judged_pairs(values.values(), map(before.get, values)), strict=True)]
        score = entry.scores.get("val", {})
        return CandidateSummary(
            id=entry.id,
            operation=entry.operation,
            decision=entry.decision,
            reason=entry.reason,
            tasks=sum(value is not None for value in values.values()),
            reward=score.get("reward"),
            exact=score.get("exact"),
            wins=sum(a > b for a, b in pairs),
            losses=sum(a < b for a, b in pairs),
            ties=sum(a == b for a, b in pairs),
        )


def rounds(limit: int | None) -> Iterator[int]:
    """Iterate over the round numbers from 0; the iteration is endless if `limit` is None."""
    return iter(count() if limit is None else range(limit))


def _components_key(components: Components) -> tuple[tuple[str, str], ...]:
    """Return the components as a hashable key."""
    return tuple(sorted(components.items()))


# ---------------------------------------------------------------- from seed to verdict


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search; `components` are the texts of the winner."""

    components: Components
    best: Candidate
    lineage: Lineage
    spent: Spend
    test_spent: Spend
    ended: str
    test: HoldoutResult


async def optimise(
    algorithm: Algorithm,
    components: Components,
    splits: Splits,
    play: Play,
    settings: Settings,
    *,
    ask: Ask | None = None,
    journal: SearchJournal | None = None,
    observer: Observer | None = None,
) -> SearchResult:
    """Search for better prompts, then run the held-out test once.

    Raises `ConfigError` for a plan that does not fit its budget, `EngineError` if seed or test
    cannot be scored; call again after fixing the cause.
    """
    if ask is None and algorithm.needs_optimiser:
        raise ConfigError(
            f"{algorithm.name} needs an optimiser LLM; set an endpoint, or use 'screen', which "
            "needs no LLM"
        )
    planned = plan(algorithm, splits, settings)
    journal = SearchJournal() if journal is None else journal
    budget = SearchBudget(planned.limits, settings.worst)
    evaluator = Evaluator(play, budget, journal, settings, "search", observer)
    # An algorithm that needs none asks nothing.
    optimiser = Optimiser(cast("Ask", ask), budget, journal)
    state = SearchState(algorithm.address, components, splits, evaluator, optimiser)
    ended = "the search ended by itself"
    try:
        (score,) = await state.score([state.seed], Mode.VAL, state.val)
        if score.has_infra_error:
            evaluator.forget_lost()
            raise EngineError(
                "cannot score the seed prompt: too many of its rollouts failed because of "
                f"infrastructure, the first with {score.first_error!r}; fix it, then resume"
            )
        state.seed.decide("accepted", "the seed")
        await state.validate([state.seed])
        await algorithm.search(state)
    except BudgetExceeded as spent:
        ended = str(spent)
    finally:
        state.close_round()
    best = await state.winner()
    for candidate in state.lineage:
        candidate.cost = candidate.cost + evaluator.spent_by.get(candidate.id, Spend())
    best.decide("winner", "best of the validated candidates")
    # What `plan` has set aside is the worst case, so it cannot be overshot.
    test_budget = SearchBudget(Limits(rollouts=planned.test.rollouts), settings.worst)
    tester = Evaluator(play, test_budget, journal, settings, "test", observer)
    seed, whole = state.seed.components, best.components
    test = await run_holdout_test(tester, seed, whole, splits.test, state.seeds)
    return SearchResult(whole, best, state.lineage, budget.spent, test_budget.spent, ended, test)


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Limits of a search, and upper bounds of the costs of the search and of its held-out test.
    Cached scores and early ends can make the search cheaper."""

    limits: Limits
    """Limits of the search, without the test's share."""
    search: Spend
    """Without the optimiser's calls if only the rollouts limit them."""
    test: Spend
    least: int
    """The fewest rollouts that the search needs."""


def plan(algorithm: Algorithm, splits: Splits, settings: Settings) -> SearchPlan:
    """Plan a search. `limits.rollouts` applies to the search alone; the limits on tokens and
    dollars include the test. Raises `ConfigError` if fewer than three proposals fit the budget, or
    if a limit requires an unknown worst case."""
    limits, one, val = settings.limits, settings.worst.rollout_cost(), len(splits.val)
    test = one * (2 * len(splits.test) * settings.samples)
    rest: dict[str, float] = {}
    rollouts = MOST_ROLLOUTS if limits.rollouts is None else limits.rollouts
    for name in ("tokens", "dollars"):
        limit, amount = getattr(limits, name), getattr(one, name)
        if limit is None:
            continue
        if settings.worst.rollout is None:
            raise ConfigError(
                f"the budget for {name} can only be enforced if the worst case of a rollout is "
                "known; pass WorstCase(rollout=Usage(...)), or limit rollouts"
            )
        rest[name] = limit - getattr(test, name)
        if rest[name] < 0:
            raise ConfigError(
                f"the held-out test alone may cost {getattr(test, name):g} {name}, more than the "
                f"budget of {limit:g}; raise it, use fewer test tasks, or lower the worst case of "
                "a rollout (max_turns, max_prompt_tokens, max_tokens)"
            )
        rollouts = int(min(rollouts, rest[name] // amount if amount else rollouts))

    def fit(rollouts: int) -> int:
        return algorithm.proposals(rollouts // settings.samples, val)

    least = bisect_left(range(MOST_ROLLOUTS), LEAST_PROPOSALS, key=fit)
    if rollouts < least:
        raise ConfigError(
            f"the budget of {rollouts} rollouts allows only {fit(rollouts)} proposals of "
            f"{algorithm.name}, fewer than {LEAST_PROPOSALS}; increase it to at least {least} "
            f"rollouts, or use fewer than {val} validation tasks"
        )
    calls = (limits.optimiser_calls or 0) if algorithm.needs_optimiser else 0
    most = (one * rollouts + settings.worst.call_cost() * calls).to_dict()
    capped: dict[str, Any] = {n: min(v, rest.get(n, v)) for n, v in most.items()}
    return SearchPlan(replace(limits, **rest), Spend(**capped), test, least)
