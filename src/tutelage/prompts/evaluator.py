"""The evaluation of candidates: journal, cache, budget and runners.

A search is a pure function of its seed and of the answers it received, so a resume is a replay: the
algorithm starts again, answers in the journal are reused, and the same decisions follow, byte for
byte. A batch is split into slots (candidate, task, sample) in a fixed order; unknown slots are
reserved together, played by any number of runners, stored one by one, and settled in slot order:
results, cost and the place where a budget stops the search do not depend on the number of runners.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from tutelage.engine.usage import Usage
from tutelage.errors import EngineError, RewardError, StoreError
from tutelage.prompts.budget import SearchBudget
from tutelage.prompts.contract import Components, Episode, Play, RolloutSlot, Settings
from tutelage.runs.rounds import Observer, Spend
from tutelage.store import Store
from tutelage.types import JSON, FailureCause, Mode, Task

EVENTS = "search"
"""The key of a search's events in the store."""
INFRASTRUCTURE_SHARE = 0.2
"""Share of infrastructure failures above which a candidate is not scored."""
LOST_IN_A_ROW = 16
"""Consecutive rollouts lost to infrastructure after which the search stops."""
_CAUSES = {EngineError: FailureCause.ENGINE_ERROR, RewardError: FailureCause.REWARD_ERROR}
"""Failure causes of exceptions of a `Play`; all others are agent errors."""


class SearchJournal:
    """Journal of finished rollouts and optimiser replies by step key, stored as events of a run.
    Without a store, the entries are kept in memory and the search cannot be resumed.

    A key covers everything that the answer depends on (`cache_key`, `OptimiserRequest.key`), so
    another agent, grader, task or request finds no answer.
    """

    def __init__(self, store: Store | None = None, run_id: str = "") -> None:
        self._store, self._run_id = store, run_id
        self._answers: dict[str, Any] = {}
        elapsed = 0.0
        for event in store.events(run_id, EVENTS) if store else ():
            self._apply_event(event)
            elapsed = max(elapsed, event.get("elapsed", 0.0))
        self._began = time.monotonic() - elapsed

    def elapsed(self) -> float:
        """Return the duration of the search in seconds, including the time before a resume."""
        return time.monotonic() - self._began

    def get(self, key: str) -> Any:
        """Return the stored answer for a step key, or None."""
        return self._answers.get(key)

    def put(self, key: str, answer: JSON) -> None:
        """Store an answer and replace an earlier one. It is on disk when the call returns."""
        self._append_event({"step": key, "answer": answer, "elapsed": self.elapsed()})

    def forget(self, keys: Sequence[str]) -> None:
        """Remove answers from the journal, so that a resume repeats their requests."""
        self._append_event({"forget": list(keys)})

    def _append_event(self, event: JSON) -> None:
        """Store an event and apply it to the answers."""
        if self._store is not None:
            self._store.put_events(self._run_id, EVENTS, [event])
        self._apply_event(event)

    def _apply_event(self, event: JSON) -> None:
        """Update the answers with an event."""
        for key in event.get("forget", ()):
            self._answers.pop(key, None)
        if "step" in event:
            self._answers[event["step"]] = event["answer"]


@dataclass(frozen=True, slots=True)
class EvaluationItem:
    """Task, split and sample number of one rollout."""

    split: Mode
    task: Task
    sample: int = 0


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """Candidate and the items for its evaluation."""

    candidate: str
    components: Components
    items: Sequence[EvaluationItem]


@dataclass(frozen=True, slots=True)
class CandidateScore:
    """Episodes of a candidate, in the same order as its items."""

    items: tuple[EvaluationItem, ...]
    episodes: tuple[Episode, ...]

    @property
    def outcomes(self) -> tuple[float | None, ...]:
        """Return one reward per item, or None for an item lost to an infrastructure failure."""
        return tuple(None if e.lost else e.value for e in self.episodes)

    @property
    def judged(self) -> tuple[Episode, ...]:
        """Return the episodes that were not lost to infrastructure failures."""
        return tuple(e for e in self.episodes if not e.lost)

    @property
    def evidence(self) -> list[tuple[EvaluationItem, Episode]]:
        """Return the judged episodes with their items."""
        pairs = zip(self.items, self.episodes, strict=True)
        return [(item, episode) for item, episode in pairs if not episode.lost]

    def get_worst(self, count: int) -> list[tuple[EvaluationItem, Episode]]:
        """Return up to `count` judged episodes with the lowest rewards, with their items."""
        return sorted(self.evidence, key=lambda pair: pair[1].value)[:count]

    @property
    def reward(self) -> float:
        """Return the mean reward of the judged episodes, or 0 if there are none."""
        return sum(e.value for e in self.judged) / max(1, len(self.judged))

    @property
    def exact(self) -> float | None:
        """Return the share of right answers, or None if a graded reward does not define them."""
        if any(e.exact is None for e in self.episodes):
            return None
        return sum(bool(e.exact) for e in self.judged) / max(1, len(self.judged))

    @property
    def can_improve(self) -> bool:
        """Return True if an edit could improve the reward of an episode."""
        return not self.has_infra_error and any(e.value < 1 for e in self.judged)

    @property
    def has_infra_error(self) -> bool:
        """Return True if too many rollouts were lost to score the candidate."""
        lost = len(self.episodes) - len(self.judged)
        return lost > INFRASTRUCTURE_SHARE * len(self.episodes)

    @property
    def first_error(self) -> str:
        """Return the error message of the first lost rollout, or an empty string."""
        return next((e.feedback for e in self.episodes if e.lost), "")


def judged_pairs(
    first: Iterable[float | None], second: Iterable[float | None]
) -> tuple[list[float], list[float]]:
    """Return both sequences of rewards, without pairs in which a rollout was lost."""
    pairs = zip(first, second, strict=True)
    kept = [(a, b) for a, b in pairs if a is not None and b is not None]
    return [a for a, _ in kept], [b for _, b in kept]


def cache_key(components: Components, item: EvaluationItem, fingerprint: str) -> str:
    """Return the journal key of a rollout.

    Covers every component, the split and content of the task, the sample, and the fingerprint of
    agent, grader, model and sampling parameters: never a position in a list.
    """
    # The id counts once, as a resume reads it back.
    fields = {n: value for n, value in item.task.fields.items() if n != "id"}
    task = _hash_json([item.task.id, fields])
    parts = [sorted(components.items()), item.split, task, item.sample, fingerprint]
    return "play/" + _hash_json(parts)


def _hash_json(value: object) -> str:
    """Return a hash of a value, serialized as JSON with sorted keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=repr)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


class Evaluator:
    """Evaluates batches of rollouts. `name` is the stage of the search: search, test or confirm."""

    def __init__(
        self,
        play: Play,
        budget: SearchBudget,
        journal: SearchJournal,
        settings: Settings,
        name: str = "search",
        observer: Observer | None = None,
    ) -> None:
        self.observer = observer or Observer()
        self._play, self._name = play, name
        self.budget, self.journal, self.settings = budget, journal, settings
        self._known: dict[str, Episode] = {}
        self._lock = asyncio.Lock()
        self._lost: list[str] = []
        """Keys of the last consecutive rollouts that infrastructure lost."""
        self.spent_by: dict[str, Spend] = {}
        """Cost by candidate id."""

    async def evaluate(self, jobs: Sequence[EvaluationJob]) -> list[CandidateScore]:
        """Return one score per job. Raises `BudgetExceeded` before a rollout that exceeds the
        budget, and `EngineError` if the endpoint or the grader fails repeatedly; a resume then
        repeats those rollouts."""
        async with self._lock:
            slots = [
                (cache_key(job.components, item, self.settings.fingerprint), job, item)
                for job in jobs
                for item in job.items
            ]
            new: dict[str, tuple[EvaluationJob, EvaluationItem]] = {}
            for key, job, item in slots:
                if key not in self._known:
                    new.setdefault(key, (job, item))
            worst = self.budget.worst.rollout_cost()
            self.budget.reserve(worst * len(new))
            done = {k: Episode.from_dict(d) for k in new if (d := self.journal.get(k)) is not None}
            # Runners draw from one queue, so none waits while a slot is left.
            queue = iter([(key, *slot) for key, slot in new.items() if key not in done])

            async def runner() -> None:
                for key, job, item in queue:
                    done[key] = episode = await self._play_item(job, item)
                    self.journal.put(key, asdict(episode))
                    self.observer.on_progress(self._name, len(done), len(new), self.budget.spent)
                    self._lost = [*self._lost, key] if episode.lost else []
                    if len(self._lost) >= LOST_IN_A_ROW:
                        self.journal.forget(self._lost)
                        raise EngineError(
                            f"the last {len(self._lost)} rollouts all failed because of "
                            f"infrastructure, the latest with {episode.feedback!r}; fix it, then "
                            "resume"
                        )

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(self.settings.runners, len(new) - len(done))):
                        group.create_task(runner())
            except* (StoreError, EngineError) as lost:
                raise lost.exceptions[0] from None
            for key, (job, _) in new.items():
                actual = SearchBudget.rollout_cost(done[key].usage)
                self.budget.settle(worst, actual)
                self.spent_by[job.candidate] = self.spent_by.get(job.candidate, Spend()) + actual
            self._known |= done
            episodes = iter([self._known[key] for key, _, _ in slots])
            return [
                CandidateScore(tuple(j.items), tuple(next(episodes) for _ in j.items)) for j in jobs
            ]

    def forget_lost(self) -> None:
        """Remove rollouts lost to infrastructure failures from the journal, so that a resume
        repeats them."""
        self.journal.forget([key for key, episode in self._known.items() if episode.lost])

    async def _play_item(self, job: EvaluationJob, item: EvaluationItem) -> Episode:
        """Run one item of a job; an exception of the agent becomes a failed episode."""
        slot_key = cache_key(job.components, item, fingerprint="")
        slot = RolloutSlot(job.candidate, item.split, item.sample, slot_key)
        frozen = MappingProxyType(dict(job.components))
        try:
            episode = await self._play(frozen, item.task, slot)
        except StoreError:
            raise
        except Exception as error:
            # Any exception of an agent is data about its prompt, never a crash.
            cause = next((c for kind, c in _CAUSES.items() if isinstance(error, kind)), None)
            episode = Episode(
                None,
                feedback=f"{type(error).__name__}: {error}",
                failure=cause or FailureCause.AGENT_ERROR,
                # Its usage is unknown, so the worst case is charged: the ceiling stays a ceiling.
                usage=self.budget.worst.rollout or Usage(),
            )
        reward = episode.reward
        if episode.failure is None and (reward is None or not math.isfinite(reward)):
            text = f"the grader gave {reward!r}, which is no reward. {episode.feedback}".strip()
            episode = replace(episode, feedback=text, failure=FailureCause.REWARD_ERROR)
        if episode.failure is not None:
            return replace(episode, reward=self.settings.failure_reward, exact=False)
        return episode
