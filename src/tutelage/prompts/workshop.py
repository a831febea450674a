"""What an algorithm holds while it searches: the seed, the splits, and safe ways to act.

`propose` applies the laws of `edits.py` and notes every proposal, `score` plays candidates through
the evaluator; `narrowing.py` narrows many to few. The sealed test is not here, so no algorithm can
look at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

from tutelage.engine.usage import Spend
from tutelage.errors import ConfigError
from tutelage.prompts.budget import Budget, BudgetSpent
from tutelage.prompts.contract import Components
from tutelage.prompts.edits import Regions, Rejected, Rules, parse, question
from tutelage.prompts.evaluator import Evaluator, Item, Job, Score
from tutelage.prompts.lineage import Candidate, Entry, Lineage
from tutelage.prompts.optimiser import Optimiser, Request
from tutelage.prompts.pool import Pool
from tutelage.prompts.shots import DEMONSTRATIONS, Demonstrations, Shot, shots_of
from tutelage.runs.rounds import Nobody, Observer, Round, Standing
from tutelage.seeds import SeedTree
from tutelage.types import Message, Mode, Task

FINALISTS = 3
RACE, BEHIND = 8, 0.035
"""Validation tasks of a challenge, and how far behind a challenger may be on them."""
TRIED = 8
"""Training tasks that a prompt is played on to find demonstrations, where none are known."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A request for a new text of one component of `parent`."""

    parent: Candidate
    component: str
    messages: Sequence[Message]
    step_key: str
    operation: str
    critique: str = ""
    cost: Spend = field(default_factory=Spend)
    """What the critique cost, where this edit is to pay for it."""


@dataclass(slots=True)
class Workshop:
    """One search. `validated` holds the scores on all validation tasks, by candidate id."""

    seed: Candidate
    train: Sequence[Task]
    val: Sequence[Task]
    evaluator: Evaluator
    budget: Budget
    lineage: Lineage
    rules: Rules
    regions: Regions
    seeds: SeedTree
    optimiser: Optimiser | None = None
    samples: int = 1
    """Rollouts a task; more than 1 where the agent samples."""
    validated: dict[str, tuple[Candidate, Score]] = field(
        default_factory=dict[str, tuple[Candidate, Score]]
    )
    observer: Observer = field(default_factory=Nobody)
    demonstrations: int = 0
    """Shots at most that the component `demonstrations` may hold, where there is one."""
    _seen: set[tuple[tuple[str, str], ...]] = field(
        default_factory=set[tuple[tuple[str, str], ...]]
    )
    _values: dict[str, dict[tuple[str, int], float]] = field(
        default_factory=dict[str, dict[tuple[str, int], float]]
    )
    """Validation rewards of what was judged, by candidate, task and sample."""
    _lost: dict[str, set[tuple[str, int]]] = field(default_factory=dict[str, set[tuple[str, int]]])
    """Validation rollouts that infrastructure lost, in the same way."""
    _trained: dict[str, Score] = field(default_factory=dict[str, Score])
    """The latest scores on training tasks."""
    _solved: dict[str, Shot] = field(default_factory=dict[str, Shot])
    """Exact training rollouts by task, the latest."""
    _rounds: int = 0
    _told: int = 1
    """Entries of the lineage that earlier rounds have told of; the seed is none of a round's."""
    _base: Candidate | None = None

    _proposed: dict[tuple[tuple[str, str], ...], Candidate] = field(
        default_factory=dict[tuple[tuple[str, str], ...], Candidate]
    )
    pool: Pool = field(init=False)
    """Every rollout by the sentences it was played with."""

    def __post_init__(self) -> None:
        self.pool = Pool(self.seed.components)
        self._seen.add(tuple(sorted(self.seed.components.items())))

    @property
    def asker(self) -> Optimiser:
        """The optimiser LLM. Raises `ConfigError` where the search has none."""
        if self.optimiser is None:
            raise ConfigError(
                "this algorithm asks an optimiser LLM and there is none: name an endpoint, or use "
                "'screen' or 'grips', which need no LLM"
            )
        return self.optimiser

    @property
    def names(self) -> list[str]:
        """The components that a text can be written for, in order: all but the demonstrations."""
        return sorted(n for n in self.seed.components if n != DEMONSTRATIONS)

    async def demonstrate(self, parent: Candidate, number: int) -> list[Candidate]:
        """`parent` with demonstrations drawn from exact training rollouts; nothing where the agent
        takes none, or none was exact. `number` addresses the draw."""
        if not self.demonstrations or DEMONSTRATIONS not in parent.components:
            return []
        if not self._solved:
            await self.score([parent], Mode.TRAIN, self.train[:TRIED])
        known = sorted(self._solved.values(), key=lambda shot: shot.task)
        if not known:
            return []
        rng = self.seeds.child("demonstrations", number).python()
        drawn = rng.sample(known, min(self.demonstrations, len(known)))
        text = Demonstrations(tuple(drawn)).text()
        child = self.propose([parent], {DEMONSTRATIONS: text}, "demonstrations")
        return [] if child is None else [child]

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
    ) -> Candidate | None:
        """A new candidate with these components changed, or None: rejected, with its reason."""
        made = dict(parents[0].components)
        refused: Rejected | None = None
        for name, text in changes.items():
            try:
                made[name] = self.rules.safe(name, text)
            except Rejected as error:
                made[name], refused = text, error
        candidate = self.lineage.add(made, parents, operation, critique, cost)
        content = tuple(sorted(made.items()))
        if refused is None and content in self._seen:
            refused = Rejected("duplicate", "the same text was proposed before")
        if refused is not None:
            self.lineage.decide(candidate, "rejected", f"{refused.law}: {refused.reason}")
            return None
        self._seen.add(content)
        self._proposed[content] = candidate
        return candidate

    async def propose_edits(self, edits: Sequence[Edit]) -> list[tuple[Edit, Candidate]]:
        """Ask for all edits at once; those that keep the laws, with their candidates."""
        asked = [Request("edit", edit.messages, edit.step_key) for edit in edits]
        made: list[tuple[Edit, Candidate]] = []
        for edit, reply in zip(edits, await self.asker.read(asked, parse), strict=True):
            parent, cost = edit.parent, reply.cost + edit.cost
            if reply.problem:
                self.note_failed(parent, edit.operation, reply.reason, edit.critique, cost)
                continue
            changes = {edit.component: reply.text}
            child = self.propose([parent], changes, edit.operation, edit.critique, cost)
            if child is not None:
                made.append((edit, child))
        return made

    def was_played(self, candidate: Candidate) -> bool:
        """Whether it has rewards of validation tasks."""
        return candidate.id in self._values

    def unvalidated(self, parent: Candidate, component: str, text: str) -> Candidate | None:
        """The candidate that already has this text, where no validation task was played with it."""
        content = tuple(sorted({**parent.components, component: text}.items()))
        known = self._proposed.get(content)
        return known if known is not None and known.id not in self._values else None

    def note_failed(
        self, parent: Candidate, operation: str, reason: str, critique: str, cost: Spend
    ) -> None:
        """A proposal that never became a text, kept in the lineage with its reason."""
        lost = self.lineage.add(parent.components, [parent], operation, critique, cost)
        self.lineage.decide(lost, "rejected", reason)

    async def score(
        self,
        candidates: Sequence[Candidate],
        split: Mode,
        tasks: Sequence[Task],
        first_sample: int = 0,
    ) -> list[Score]:
        """Play candidates on the same items. Infrastructure failures past the share are noted."""
        samples = range(first_sample, first_sample + self.samples)
        items = [Item(split, task, sample) for task in tasks for sample in samples]
        jobs = [Job(c.id, self.regions.join(c.components), items) for c in candidates]
        scores = await self.evaluator.evaluate(jobs)
        for candidate, score in zip(candidates, scores, strict=True):
            fresh = first_sample > 0
            self._keep(candidate, split, score, fresh)
            self.lineage.score(candidate, "val fresh" if fresh else split.value, score)
            if score.infra_error:
                reason = "too many rollouts were lost to infrastructure; it is not scored"
                self.lineage.decide(candidate, "infra_error", reason)
                self.lineage[candidate].scores.clear()
                self.validated.pop(candidate.id, None)
            elif split is Mode.VAL and not fresh and len(tasks) == len(self.val):
                self.validated[candidate.id] = (candidate, score)
        return scores

    def _keep(self, candidate: Candidate, split: Mode, score: Score, fresh: bool) -> None:
        if not score.infra_error:
            self._note(candidate.components, score)
        if score.infra_error:
            self._values.pop(candidate.id, None)
            self._lost.pop(candidate.id, None)
        elif split is Mode.TRAIN:
            self._trained[candidate.id] = score
            self._remember(score)
        elif not fresh:
            known = self._values.setdefault(candidate.id, {})
            lost = self._lost.setdefault(candidate.id, set())
            for item, episode in zip(score.items, score.episodes, strict=True):
                at = (item.task.id, item.sample)
                if episode.lost:
                    lost.add(at)
                else:
                    known[at] = episode.value

    def _note(self, components: Components, score: Score) -> None:
        """Tell the pool what was judged."""
        for item, episode in zip(score.items, score.episodes, strict=True):
            if not episode.lost:
                self.pool.note(components, f"{item.split}/{item.task.id}", episode.value)

    def _remember(self, score: Score) -> None:
        solved = [
            (item.task.id, question(item.task), episode.trace)
            for item, episode in zip(score.items, score.episodes, strict=True)
            if episode.exact
        ]
        self._solved |= {shot.task: shot for shot in shots_of(solved)}

    def end_round(self) -> None:
        """Tell of the round and count it. Raises `BudgetSpent` after too many idle ones."""
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
        base = self._base or self.seed
        leader = next(iter(self.leaders()), self.seed)
        told = self._trained.get(base.id)
        rewards = tuple(self._values.get(base.id, {}).values())
        lost = len(self._lost.get(base.id, ()))
        if told is not None:
            rewards = tuple(e.value for e in told.judged)
            lost = len(told.episodes) - len(rewards)
        self.observer.round(
            Round(
                number=self._rounds,
                components=self.regions.join(base.components),
                split="val" if told is None else "train",
                rewards=rewards,
                standings=tuple(self._standing(entry) for entry in entries),
                leader=leader.id,
                best=self.regions.join(leader.components),
                spent=self.budget.spent,
                lost=lost,
            )
        )
        self._base = leader
        self._trained.clear()

    def _standing(self, entry: Entry) -> Standing:
        mine = self._values.get(entry.id, {})
        theirs = self._values.get(entry.parents[0], {}) if entry.parents else {}
        gaps = [value - theirs[at] for at, value in mine.items() if at in theirs]
        score = entry.scores.get("val", {})
        return Standing(
            id=entry.id,
            operation=entry.operation,
            decision=entry.decision,
            reason=entry.reason,
            tasks=len(mine),
            reward=score.get("reward"),
            exact=score.get("exact"),
            wins=sum(gap > 0 for gap in gaps),
            losses=sum(gap < 0 for gap in gaps),
            ties=sum(gap == 0 for gap in gaps),
        )

    async def experiment(self, component: str, texts: Sequence[str]) -> list[float]:
        """Each text played on one training task, in turn: one reward a text, NaN where lost.

        All go out together. The lineage keeps the experiment as one entry, with its cost.
        """
        entry = self.lineage.add(self.seed.components, [self.seed], "experiment")
        self.lineage.decide(entry, "experiment", f"{len(texts)} texts, one training task each")
        jobs = [
            Job(
                entry.id,
                self.regions.join({**self.seed.components, component: text}),
                [Item(Mode.TRAIN, self.train[i % len(self.train)])],
            )
            for i, text in enumerate(texts)
        ]
        scores = await self.evaluator.evaluate(jobs)
        for score in scores:
            self._remember(score)
        return [nan if score.infra_error else score.reward for score in scores]

    async def try_out(
        self, parent: Candidate, component: str, texts: Sequence[str], tasks: Sequence[Task]
    ) -> None:
        """Play each text on its training task, for the pool alone; one entry in the lineage.

        A text that is not safe is left out.
        """
        entry = self.lineage.add(parent.components, [parent], "trials")
        self.lineage.decide(entry, "experiment", f"{len(texts)} texts, one training task each")
        jobs: list[Job] = []
        made: list[Components] = []
        for text, task in zip(texts, tasks, strict=True):
            try:
                components = {**parent.components, component: self.rules.safe(component, text)}
            except Rejected:
                continue
            made.append(components)
            items = [Item(Mode.TRAIN, task, sample) for sample in range(self.samples)]
            jobs.append(Job(entry.id, self.regions.join(components), items))
        scores = await self.evaluator.evaluate(jobs)
        for components, score in zip(made, scores, strict=True):
            self._remember(score)
            if not score.infra_error:
                self._note(components, score)

    async def challenge(self, child: Candidate) -> bool:
        """Play a child on a few validation tasks, and on all where it keeps up with the leader.

        The child may be a little behind on the few, for they say little. True where it was
        validated.
        """
        few = self.val[:RACE]
        leader = self.leaders()[0]
        known = self._values[leader.id]
        (score,) = await self.score([child], Mode.VAL, few)
        if score.infra_error:
            return False
        gap = _gap(score, known)
        if gap < -BEHIND:
            self.lineage.decide(child, "rejected", f"{gap:+.3g} on {len(few)} validation tasks")
            return False
        await self.validate([child])
        return child.id in self.validated

    async def validate(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Play candidates on all validation tasks; the best first, lost ones left out."""
        return await self.rank(candidates, self.val)

    async def rank(self, candidates: Sequence[Candidate], tasks: Sequence[Task]) -> list[Candidate]:
        """Play candidates on validation tasks; the best first, lost ones left out."""
        scores = await self.score(candidates, Mode.VAL, tasks)
        usable = [
            (s.reward, c) for s, c in zip(scores, candidates, strict=True) if not s.infra_error
        ]
        return [c for _, c in sorted(usable, key=lambda pair: -pair[0])]

    def reward(self, candidate: Candidate) -> float:
        """The mean reward of a candidate that was played on all validation tasks."""
        return self.validated[candidate.id][1].reward

    def mean(self, candidate: Candidate) -> float:
        """The mean reward of the validation tasks that a candidate was played on; 0 of none."""
        values = self._values.get(candidate.id, {})
        return sum(values.values()) / max(1, len(values))

    def leaders(self) -> list[Candidate]:
        """Validated candidates, the best first; of equals the earlier."""
        ranked = sorted(self.validated.values(), key=lambda pair: -pair[1].reward)
        return [candidate for candidate, _ in ranked]

    async def winner(self) -> Candidate:
        """The best candidate; where the agent samples, the best of the finalists on fresh draws."""
        leaders = self.leaders() or [self.seed]
        if self.samples == 1 or len(leaders) == 1:
            return leaders[0]
        finalists = leaders[:FINALISTS]
        try:
            scores = await self.score(finalists, Mode.VAL, self.val, self.samples)
        except BudgetSpent:
            return leaders[0]
        pairs = zip(scores, finalists, strict=True)
        judged = [(score.reward, finalist) for score, finalist in pairs if not score.infra_error]
        return max(judged, key=lambda pair: pair[0], default=(0.0, leaders[0]))[1]


def _gap(score: Score, known: Mapping[tuple[str, int], float]) -> float:
    """By how much a score is above known rewards of the same items, lost ones left out."""
    pairs = [
        (episode.value, known[at])
        for item, episode in zip(score.items, score.episodes, strict=True)
        if not episode.lost and (at := (item.task.id, item.sample)) in known
    ]
    count = max(1, len(pairs))
    return sum(ours for ours, _ in pairs) / count - sum(theirs for _, theirs in pairs) / count
