"""What an algorithm holds while it searches: the seed, the splits, and safe ways to act.

`propose` applies the laws of `edits.py` and notes every proposal, `score` plays candidates through
the evaluator; `selection.py` narrows many to few. The held-out test is not here, so no algorithm
can look at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from math import nan

from tutelage.errors import ConfigError
from tutelage.prompts.budget import BudgetExceeded
from tutelage.prompts.contract import Components, Splits
from tutelage.prompts.edits import EditableRegions, EditRules, RejectedEdit, parse, question
from tutelage.prompts.evaluator import (
    CandidateScore,
    EvaluationItem,
    EvaluationJob,
    Evaluator,
    judged_both,
)
from tutelage.prompts.lineage import Candidate, Lineage
from tutelage.prompts.optimiser import Optimiser, OptimiserRequest
from tutelage.prompts.sentence_model import SentenceModel
from tutelage.prompts.shots import DEMONSTRATIONS, LENGTH, Demonstrations, Shot
from tutelage.runs.rounds import CandidateSummary, Round, Spend
from tutelage.seeds import SeedTree
from tutelage.types import Message, Mode, Task

FINALISTS = 3
TRIED = 8
"""Training tasks that a prompt is played on to find demonstrations, where none are known."""


@dataclass(frozen=True, slots=True)
class EditRequest:
    """A request for a new text of one component of `parent`."""

    parent: Candidate
    component: str
    messages: Sequence[Message]
    step_key: str
    operation: str
    critique: str = ""
    cost: Spend = field(default_factory=Spend)
    """What the critique cost, where this edit is to pay for it."""


class SearchState:
    """One search. `validated` holds the scores on all validation tasks, by candidate id."""

    def __init__(
        self,
        algorithm: str,
        components: Components,
        splits: Splits,
        evaluator: Evaluator,
        optimiser: Optimiser | None = None,
    ) -> None:
        """`algorithm` addresses the draws. Raises `ConfigError` for regions that do not pair."""
        self.settings = evaluator.settings
        self.train, self.val = splits.train, splits.val
        self.evaluator, self.budget, self.optimiser = evaluator, evaluator.budget, optimiser
        self.seeds = SeedTree(self.settings.seed).child("prompt", algorithm)
        self.regions = EditableRegions(components)
        self.lineage = Lineage(self.seeds)
        self.seed = self.lineage.add(self.regions.parts)
        """The first line of the lineage."""
        self.rules = EditRules(self.seed.components, [*splits.train, *splits.val])
        self.pool = SentenceModel(self.seed.components)
        """Every rollout by the sentences it was played with."""
        self.validated: dict[str, tuple[Candidate, CandidateScore]] = {}
        self._proposed = {_content(self.seed.components): self.seed}
        self._values: dict[str, dict[tuple[str, int], float | None]] = {}
        """Validation rewards by candidate, task and sample; None where infrastructure lost it."""
        self._trained: dict[str, CandidateScore] = {}
        """The latest scores on training tasks."""
        self._solved: dict[str, Shot] = {}
        """Exact training rollouts by task, the latest."""
        self._rounds = 0
        self._told = 1
        """Entries of the lineage that earlier rounds have reported, and the seed."""
        self._base = self.seed
        """The prompt that the round began with."""

    @property
    def asker(self) -> Optimiser:
        """The optimiser LLM. Raises `ConfigError` where the search has none."""
        if self.optimiser is None:
            raise ConfigError(
                "this algorithm needs an optimiser LLM; set an endpoint, or use 'screen' or "
                "'grips', which need no LLM"
            )
        return self.optimiser

    @property
    def names(self) -> list[str]:
        """The components that a text can be written for, in order: all but the demonstrations."""
        return sorted(n for n in self.seed.components if n != DEMONSTRATIONS)

    async def demonstrate(self, parent: Candidate, number: int) -> list[Candidate]:
        """`parent` with demonstrations drawn from exact training rollouts; nothing where the agent
        takes none, or none was exact. `number` addresses the draw."""
        if not self.settings.demonstrations or DEMONSTRATIONS not in parent.components:
            return []
        if not self._solved:
            await self.score([parent], Mode.TRAIN, self.train[:TRIED])
        known = sorted(self._solved.values(), key=lambda shot: shot.task)
        if not known:
            return []
        rng = self.seeds.child("demonstrations", number).python()
        drawn = rng.sample(known, min(self.settings.demonstrations, len(known)))
        text = Demonstrations(tuple(drawn)).text()
        return self.propose([parent], {DEMONSTRATIONS: text}, "demonstrations")

    def asks_left(self, most: int) -> int:
        """How many of `most` optimiser calls the budget allows."""
        limit = self.budget.limits.optimiser_calls
        return most if limit is None else min(most, limit - self.budget.spent.optimiser_calls)

    def propose(
        self,
        parents: Sequence[Candidate],
        changes: dict[str, str],
        operation: str,
        critique: str = "",
        cost: Spend | None = None,
    ) -> list[Candidate]:
        """A new candidate with these components changed; none where it is rejected."""
        made = dict(parents[0].components)
        refused: RejectedEdit | None = None
        for name, text in changes.items():
            try:
                made[name] = self.rules.safe(name, text)
            except RejectedEdit as error:
                made[name], refused = text, error
        candidate = self.lineage.add(made, parents, operation, critique, cost)
        content = _content(made)
        if refused is None and content in self._proposed:
            refused = RejectedEdit("duplicate", "the same text was proposed before")
        if refused is not None:
            candidate.decide("rejected", f"{refused.law}: {refused.reason}")
            return []
        self._proposed[content] = candidate
        return [candidate]

    async def propose_edits(
        self, edits: Sequence[EditRequest]
    ) -> list[tuple[EditRequest, Candidate]]:
        """Ask for all edits at once; those that keep the laws, with their candidates."""
        asked = [OptimiserRequest("edit", edit.messages, edit.step_key) for edit in edits]
        made: list[tuple[EditRequest, Candidate]] = []
        for edit, reply in zip(edits, await self.asker.read(asked, parse), strict=True):
            parent, cost = edit.parent, reply.cost + edit.cost
            if reply.problem:
                self.note_failed(parent, edit.operation, reply.reason, edit.critique, cost)
                continue
            changes = {edit.component: reply.text}
            child = self.propose([parent], changes, edit.operation, edit.critique, cost)
            made += [(edit, candidate) for candidate in child]
        return made

    def was_played(self, candidate: Candidate) -> bool:
        """Whether it has rewards of validation tasks."""
        return candidate.id in self._values

    def unvalidated(self, parent: Candidate, component: str, text: str) -> Candidate | None:
        """The candidate that already has this text, where no validation task was played with it."""
        known = self._proposed.get(_content({**parent.components, component: text}))
        return None if known in (None, self.seed) or self.was_played(known) else known

    def note_failed(
        self, parent: Candidate, operation: str, reason: str, critique: str, cost: Spend
    ) -> None:
        """A proposal that never became a text, kept in the lineage with its reason."""
        lost = self.lineage.add(parent.components, [parent], operation, critique, cost)
        lost.decide("rejected", reason)

    async def score(
        self,
        candidates: Sequence[Candidate],
        split: Mode,
        tasks: Sequence[Task],
        first_sample: int = 0,
    ) -> list[CandidateScore]:
        """Play candidates on the same items. Infrastructure failures past the share are noted."""
        samples = range(first_sample, first_sample + self.settings.samples)
        items = [EvaluationItem(split, task, sample) for task in tasks for sample in samples]
        jobs = [EvaluationJob(c.id, self.regions.join(c.components), items) for c in candidates]
        scores = await self.evaluator.evaluate(jobs)
        for candidate, score in zip(candidates, scores, strict=True):
            candidate.note("val fresh" if first_sample else split.value, score)
            if score.infra_error:
                self._values.pop(candidate.id, None)
                self.validated.pop(candidate.id, None)
                reason = "too many rollouts were lost to infrastructure; it is not scored"
                candidate.decide("infra_error", reason)
                candidate.scores.clear()
                continue
            self._note(candidate.components, score)
            if split is Mode.TRAIN:
                self._trained[candidate.id] = score
                self._remember(score)
            elif not first_sample:
                pairs = zip(items, score.outcomes, strict=True)
                known = self._values.setdefault(candidate.id, {})
                known |= {(item.task.id, item.sample): outcome for item, outcome in pairs}
                if len(tasks) == len(self.val):
                    self.validated[candidate.id] = (candidate, score)
        return scores

    def _note(self, components: Components, score: CandidateScore) -> None:
        """Tell the pool what was judged."""
        for item, episode in score.evidence:
            self.pool.note(components, f"{item.split}/{item.task.id}", episode.value)

    def _remember(self, score: CandidateScore) -> None:
        """Keep what a demonstration can be made of, of each task the first."""
        self._solved |= {
            item.task.id: Shot(item.task.id, question(item.task), episode.trace)
            for item, episode in reversed([*zip(score.items, score.episodes, strict=True)])
            if episode.exact and episode.trace and len(episode.trace) <= LENGTH
        }

    def end_round(self) -> None:
        """Tell of the round and count it. Raises `BudgetExceeded` after too many idle ones."""
        self._tell()
        self.budget.end_round()

    def close_round(self) -> None:
        """Tell of what was tried since the last round ended, if anything was."""
        if len(self.lineage) > self._told:
            self._tell()

    def _tell(self) -> None:
        entries = list(self.lineage)[self._told :]
        self._told += len(entries)
        self._rounds += 1
        base, leader = self._base, next(iter(self.leaders()), self.seed)
        trained = self._trained.get(base.id)
        played = self._values.get(base.id, {}).values() if trained is None else trained.outcomes
        rewards = tuple(value for value in played if value is not None)
        self.evaluator.observer.round(
            Round(
                number=self._rounds,
                components=self.regions.join(base.components),
                split="val" if trained is None else "train",
                rewards=rewards,
                standings=tuple(self._standing(entry) for entry in entries),
                leader=leader.id,
                best=self.regions.join(leader.components),
                spent=self.budget.spent,
                lost=len(played) - len(rewards),
                samples=self.settings.samples,
                available=len(self.val if trained is None else self.train),
            )
        )
        self._base = leader
        self._trained.clear()

    def _standing(self, entry: Candidate) -> CandidateSummary:
        mine = self._values.get(entry.id, {})
        theirs = self._values.get(entry.parents[0], {}) if entry.parents else {}
        ours, old = judged_both(mine.values(), map(theirs.get, mine))
        score = entry.scores.get("val", {})
        return CandidateSummary(
            id=entry.id,
            operation=entry.operation,
            decision=entry.decision,
            reason=entry.reason,
            tasks=sum(value is not None for value in mine.values()),
            reward=score.get("reward"),
            exact=score.get("exact"),
            wins=sum(a > b for a, b in zip(ours, old, strict=True)),
            losses=sum(a < b for a, b in zip(ours, old, strict=True)),
            ties=sum(a == b for a, b in zip(ours, old, strict=True)),
        )

    async def experiment(self, component: str, texts: Sequence[str]) -> list[float]:
        """Each text played on one training task, in turn: one reward a text, NaN where lost."""
        made = [{**self.seed.components, component: text} for text in texts]
        scores = await self._try(self.seed, "experiment", len(texts), zip(made, cycle(self.train)))
        return [nan if score.infra_error else score.reward for score in scores]

    async def try_out(
        self, parent: Candidate, component: str, texts: Sequence[str], tasks: Sequence[Task]
    ) -> None:
        """Play each text on its training task, for the pool alone; those that are not safe are
        left out."""
        plays: list[tuple[Components, Task]] = []
        for text, task in zip(texts, tasks, strict=True):
            with suppress(RejectedEdit):
                safe = self.rules.safe(component, text)
                plays.append(({**parent.components, component: safe}, task))
        scores = await self._try(parent, "trials", len(texts), plays, self.settings.samples)
        for (components, _), score in zip(plays, scores, strict=True):
            if not score.infra_error:
                self._note(components, score)

    async def _try(
        self,
        parent: Candidate,
        operation: str,
        texts: int,
        plays: Iterable[tuple[Components, Task]],
        samples: int = 1,
    ) -> list[CandidateScore]:
        """Play texts on a training task each, all together: one entry of the lineage."""
        entry = self.lineage.add(parent.components, [parent], operation)
        entry.decide("experiment", f"{texts} texts, one training task each")
        jobs = [
            EvaluationJob(
                entry.id,
                self.regions.join(c),
                [EvaluationItem(Mode.TRAIN, t, s) for s in range(samples)],
            )
            for c, t in plays
        ]
        scores = await self.evaluator.evaluate(jobs)
        for score in scores:
            self._remember(score)
        return scores

    async def validate(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Play candidates on all validation tasks; the best first, lost ones left out."""
        return await self.rank(candidates, self.val)

    async def rank(
        self, candidates: Sequence[Candidate], tasks: Sequence[Task], first_sample: int = 0
    ) -> list[Candidate]:
        """Play candidates on validation tasks; the best first, lost ones left out."""
        scores = await self.score(candidates, Mode.VAL, tasks, first_sample)
        pairs = zip(scores, candidates, strict=True)
        usable = [(score.reward, c) for score, c in pairs if not score.infra_error]
        return [c for _, c in sorted(usable, key=lambda pair: -pair[0])]

    def reward(self, candidate: Candidate) -> float:
        """The mean reward of a candidate that was played on all validation tasks."""
        return self.validated[candidate.id][1].reward

    def mean(self, candidate: Candidate, tasks: Sequence[Task] = ()) -> float:
        """The mean reward of the validation tasks that a candidate was played on, or of those of
        them that are among `tasks`; 0 of none."""
        played = self._values.get(candidate.id, {}).items()
        some = {task.id for task in tasks or self.val}
        values = [v for (task, _), v in played if v is not None and task in some]
        return sum(values) / max(1, len(values))

    def leaders(self) -> list[Candidate]:
        """Validated candidates, the best first; of equals the earlier."""
        ranked = sorted(self.validated.values(), key=lambda pair: -pair[1].reward)
        return [candidate for candidate, _ in ranked]

    async def winner(self) -> Candidate:
        """The best candidate; where the agent samples, the best of the finalists on fresh draws."""
        leaders = self.leaders() or [self.seed]
        if self.settings.samples == 1 or len(leaders) == 1:
            return leaders[0]
        with suppress(BudgetExceeded):
            ranked = await self.rank(leaders[:FINALISTS], self.val, self.settings.samples)
            leaders = ranked or leaders
        return leaders[0]


def _content(components: Components) -> tuple[tuple[str, str], ...]:
    """What makes two candidates the same."""
    return tuple(sorted(components.items()))
