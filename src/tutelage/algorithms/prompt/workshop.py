"""What an algorithm holds while it searches: the seed, the splits, and safe ways to act.

`propose` applies the laws of `edits.py` and notes every proposal, `score` plays candidates through
the evaluator, `halve` narrows many to few over nested prefixes of the validation tasks. The sealed
test is not here, so no algorithm can look at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan

from tutelage.algorithms.prompt.budget import Budget, BudgetSpent, Spend
from tutelage.algorithms.prompt.edits import Regions, Rejected, Rules
from tutelage.algorithms.prompt.evaluator import Evaluator, Item, Job, Score
from tutelage.algorithms.prompt.lineage import Candidate, Lineage
from tutelage.algorithms.prompt.optimiser import Optimiser
from tutelage.errors import ConfigError
from tutelage.seeds import SeedTree
from tutelage.types import Mode, Task

PREFIXES = (6, 12)
"""Validation tasks played before all of them, where candidates are many."""
FINALISTS = 3


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
    _seen: set[tuple[tuple[str, str], ...]] = field(
        default_factory=set[tuple[tuple[str, str], ...]]
    )

    def __post_init__(self) -> None:
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
        return candidate

    def note_failed(
        self, parent: Candidate, operation: str, problem: str, critique: str, cost: Spend
    ) -> None:
        """A proposal that never became a text, kept in the lineage with its reason."""
        lost = self.lineage.add(parent.components, [parent], operation, critique, cost)
        self.lineage.decide(lost, "rejected", f"malformed: {problem}")

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
            self.lineage.score(candidate, "val fresh" if fresh else split.value, score)
            if score.infra_error:
                reason = "too many rollouts were lost to infrastructure; it is not scored"
                self.lineage.decide(candidate, "infra_error", reason)
                self.lineage[candidate].scores.clear()
                self.validated.pop(candidate.id, None)
            elif split is Mode.VAL and not fresh and len(tasks) == len(self.val):
                self.validated[candidate.id] = (candidate, score)
        return scores

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
        return [nan if score.infra_error else score.reward for score in scores]

    async def validate(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Play candidates on all validation tasks; the best first, lost ones left out."""
        return await self._ranked(candidates, self.val)

    async def halve(
        self,
        candidates: Sequence[Candidate],
        keep: int,
        prefixes: Sequence[int] = PREFIXES,
    ) -> list[Candidate]:
        """Successive halving: all on few validation tasks, the better half on more.

        Returns at most `keep`, the best first, each played on all validation tasks. Where a stage
        does not fit the budget any more, half of the field is dropped unplayed.
        """
        alive = list(candidates)
        stages = [n for n in prefixes if n < len(self.val)]
        for n in [*stages, len(self.val)]:
            ranked = await self._fitting(alive, self.val[:n])
            room = keep if n == len(self.val) else max(keep, (len(ranked) + 1) // 2)
            self._drop([c for c in alive if c not in ranked[:room]], f"behind on {n} tasks")
            alive = ranked[:room]
        return alive

    async def _fitting(self, alive: Sequence[Candidate], tasks: Sequence[Task]) -> list[Candidate]:
        field_ = list(alive)
        while True:
            try:
                return await self._ranked(field_, tasks)
            except BudgetSpent as spent:
                if len(field_) == 1 or spent.what == "seconds":
                    raise
                field_ = field_[: len(field_) // 2]

    async def _ranked(
        self, candidates: Sequence[Candidate], tasks: Sequence[Task]
    ) -> list[Candidate]:
        scores = await self.score(candidates, Mode.VAL, tasks)
        usable = [
            (s.reward, c) for s, c in zip(scores, candidates, strict=True) if not s.infra_error
        ]
        return [c for _, c in sorted(usable, key=lambda pair: -pair[0])]

    def _drop(self, candidates: Sequence[Candidate], reason: str) -> None:
        for candidate in candidates:
            if self.lineage[candidate].decision == "proposed":
                self.lineage.decide(candidate, "dropped", reason)

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
        return max(zip(scores, finalists, strict=True), key=lambda pair: pair[0].reward)[1]
