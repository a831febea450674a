"""The only way to rollouts: cache, budget, journal and runners in one place.

A batch is cut into slots (candidate, task, sample) in a fixed order. Slots already known cost
nothing; the others are reserved together, played by however many runners there are, journalled one
by one as they finish, and settled in slot order: so results, spending and the place where a budget
stops the search do not depend on the number of runners. A failure counts the search's
`failure_reward`, and its text becomes evidence. `contract.py` has the nouns, `search_state.py` is
what algorithms hold.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from tutelage.engine.usage import Usage
from tutelage.errors import EngineError, RewardError, StoreError
from tutelage.prompts.budget import BudgetExceeded, SearchBudget
from tutelage.prompts.contract import Components, Episode, Play, RolloutSlot, Settings
from tutelage.prompts.journal import SearchJournal
from tutelage.runs.rounds import Observer, Spend
from tutelage.types import FailureCause, Mode, Task

INFRASTRUCTURE_SHARE = 0.2
"""Above this share of infrastructure failures a candidate is not scored at all."""
LOST_IN_A_ROW = 16
"""Rollouts lost to infrastructure one after another, after which nobody is taken to be there."""


@dataclass(frozen=True, slots=True)
class EvaluationItem:
    """A task of a split, and which repeat of it."""

    split: Mode
    task: Task
    sample: int = 0


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """A candidate and the items it is to be played on."""

    candidate: str
    components: Components
    items: Sequence[EvaluationItem]


@dataclass(frozen=True, slots=True)
class CandidateScore:
    """What a candidate earned on items, paired with them by position."""

    items: tuple[EvaluationItem, ...]
    episodes: tuple[Episode, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """One number an item."""
        return tuple(e.value for e in self.episodes)

    @property
    def judged(self) -> tuple[Episode, ...]:
        """The episodes that infrastructure did not lose."""
        return tuple(e for e in self.episodes if not e.lost)

    @property
    def evidence(self) -> list[tuple[EvaluationItem, Episode]]:
        """What was judged, with its items."""
        pairs = zip(self.items, self.episodes, strict=True)
        return [(item, episode) for item, episode in pairs if not episode.lost]

    @property
    def reward(self) -> float:
        """The mean reward of what was judged; 0 of nothing."""
        return sum(e.value for e in self.judged) / max(1, len(self.judged))

    @property
    def outcomes(self) -> tuple[float | None, ...]:
        """One number an item; None where infrastructure lost it."""
        return tuple(None if e.lost else e.value for e in self.episodes)

    @property
    def mendable(self) -> bool:
        """Whether there is evidence that something could be better."""
        return not self.infra_error and any(e.value < 1 for e in self.judged)

    @property
    def has_exact(self) -> bool:
        """Whether each episode says if it was right."""
        return all(e.exact is not None for e in self.episodes)

    @property
    def exact(self) -> float | None:
        """The share of right answers; None where a graded reward does not say what is right."""
        if not self.has_exact:
            return None
        return sum(bool(e.exact) for e in self.judged) / max(1, len(self.judged))

    @property
    def infra_error(self) -> bool:
        """Whether so much failed around the agent that this is no evidence about it."""
        lost = len(self.episodes) - len(self.judged)
        return lost > INFRASTRUCTURE_SHARE * len(self.episodes)

    @property
    def first_loss(self) -> str:
        """What infrastructure said where it lost a rollout; empty without one."""
        lost = (e for e in self.episodes if e.failure is not None and e.failure.infrastructure)
        return next((e.feedback for e in lost), "")


def judged_both(
    ours: Iterable[float | None], theirs: Iterable[float | None]
) -> tuple[list[float], list[float]]:
    """The rewards of both, in one order, where neither was lost to infrastructure."""
    pairs = zip(ours, theirs, strict=True)
    both = [(one, two) for one, two in pairs if one is not None and two is not None]
    return [one for one, _ in both], [two for _, two in both]


def cache_key(components: Components, item: EvaluationItem, fingerprint: str) -> str:
    """The step key of a rollout.

    Covers every component, the split and content of the task, the sample, and the fingerprint of
    agent, grader, model and sampling parameters: never a position in a list.
    """
    said = [sorted(components.items()), item.split, task_hash(item.task), item.sample, fingerprint]
    return "play/" + _digest(said)


def task_hash(task: Task) -> str:
    """A hash of what a task holds, its id included: once, as a resume reads it back."""
    return _digest([task.id, {n: value for n, value in task.fields.items() if n != "id"}])


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=repr)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


class Evaluator:
    """Plays batches. `spent_by` says what each candidate cost."""

    def __init__(
        self,
        play: Play,
        budget: SearchBudget,
        journal: SearchJournal,
        settings: Settings,
        name: str = "search",
        observer: Observer | None = None,
    ) -> None:
        """`name` tells evaluators of one journal apart."""
        self.observer = observer or Observer()
        self._play = play
        self.budget, self.journal, self.settings = budget, journal, settings
        self._name = name
        self._known: dict[str, Episode] = {}
        self._batches = 0
        self._turn = asyncio.Lock()
        self._lost: list[str] = []
        """Keys of the rollouts that infrastructure lost since the last one that it did not."""
        self.spent_by: dict[str, Spend] = {}
        self.failures = Counter[str]()
        """Rollouts that failed, by cause."""
        self.lowest = settings.failure_reward
        """The lowest reward of a rollout that did not fail, where it is lower than a failure's."""

    async def evaluate(self, jobs: Sequence[EvaluationJob]) -> list[CandidateScore]:
        """One score a job. Raises `BudgetExceeded` before anything is played that does not fit, and
        `EngineError` where endpoint or grader serve nobody any more: a resume then plays again."""
        async with self._turn:
            slots = [
                (cache_key(job.components, item, self.settings.fingerprint), job, item)
                for job in jobs
                for item in job.items
            ]
            new: dict[str, tuple[EvaluationJob, EvaluationItem]] = {}
            for key, job, item in slots:
                if key not in self._known:
                    new.setdefault(key, (job, item))
            if new:
                await self._play_batch(new)
            episodes = iter([self._known[key] for key, _, _ in slots])
            return [
                CandidateScore(tuple(j.items), tuple(next(episodes) for _ in j.items)) for j in jobs
            ]

    def forget_infrastructure(self, job: EvaluationJob) -> None:
        """Drop lost rollouts of a candidate from the journal, so that a resume plays them again."""
        keys = [cache_key(job.components, item, self.settings.fingerprint) for item in job.items]
        lost = [k for k in keys if (c := self._known[k].failure) is not None and c.infrastructure]
        self.journal.forget(lost)

    async def _play_batch(self, new: Mapping[str, tuple[EvaluationJob, EvaluationItem]]) -> None:
        worst = self.budget.worst.of_rollout()
        self.budget.reserve(worst * len(new))
        stop_key = f"stop/{self._name}/{self._batches}"
        self._batches += 1
        done = {k: Episode.from_dict(d) for k in new if (d := self.journal.get(k)) is not None}
        stopped = self.journal.get(stop_key) is not None
        if not stopped and len(done) < len(new):
            stopped = not await self._run_in_time(new, done)
            if stopped:
                self.journal.put(stop_key, {}, self.budget.elapsed())
        for key, (job, _) in new.items():
            actual = SearchBudget.rollout(done[key].usage) if key in done else Spend()
            self.budget.settle(worst, actual)
            self.spent_by[job.candidate] = self.spent_by.get(job.candidate, Spend()) + actual
            if key in done:
                self._note(done[key])
        if stopped:
            raise BudgetExceeded("seconds")
        self._known.update((key, done[key]) for key in new)

    def _note(self, episode: Episode) -> None:
        """Count a failure, or look at the reward."""
        if episode.failure is None:
            self.lowest = min(self.lowest, episode.value)
        else:
            self.failures[episode.failure.value] += 1

    async def _run_in_time(
        self, new: Mapping[str, tuple[EvaluationJob, EvaluationItem]], done: dict[str, Episode]
    ) -> bool:
        """Whether all was played before the deadline of the search; at it, runners are stopped."""
        left = self.budget.seconds_left()
        if left is None or left > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._run(new, done)
                return True
        return False

    async def _run(
        self, new: Mapping[str, tuple[EvaluationJob, EvaluationItem]], done: dict[str, Episode]
    ) -> None:
        """Runners draw from one queue, so that none waits while a slot is left."""
        queue = iter([(key, *slot) for key, slot in new.items() if key not in done])

        async def runner() -> None:
            for key, job, item in queue:
                episode = await self._episode(job, item)
                await self.journal.recorded()
                self.journal.put(key, asdict(episode), self.budget.elapsed())
                done[key] = episode
                self.observer.played(self._name, len(done), len(new), self.budget.spent)
                self._check_served(key, episode)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.settings.runners, len(new) - len(done))):
                    group.create_task(runner())
        except* (StoreError, EngineError) as lost:
            raise lost.exceptions[0] from None

    def _check_served(self, key: str, episode: Episode) -> None:
        if episode.failure is None or not episode.failure.infrastructure:
            self._lost.clear()
            return
        self._lost.append(key)
        if len(self._lost) >= LOST_IN_A_ROW:
            self.journal.forget(self._lost)
            raise EngineError(
                f"the last {len(self._lost)} rollouts all failed because of infrastructure, the "
                f"latest with {episode.feedback!r}; fix it, then resume"
            )

    async def _episode(self, job: EvaluationJob, item: EvaluationItem) -> Episode:
        drawn = cache_key(job.components, item, fingerprint="")
        slot = RolloutSlot(job.candidate, item.split, item.sample, drawn)
        try:
            async with asyncio.timeout(self.settings.timeout):
                frozen = MappingProxyType(dict(job.components))
                episode = await self._play(frozen, item.task, slot)
        except TimeoutError:
            text = f"the rollout ran past its deadline of {self.settings.timeout:g} s"
            return self._failed(FailureCause.TIMEOUT, text)
        except EngineError as error:
            return self._failed(FailureCause.ENGINE_ERROR, _words(error))
        except RewardError as error:
            return self._failed(FailureCause.REWARD_ERROR, _words(error))
        except Exception as error:
            # Whatever an agent raises is data about the prompt it was given, never a crash.
            return self._failed(FailureCause.AGENT_ERROR, _words(error))
        if episode.failure is not None:
            return replace(episode, reward=self.settings.failure_reward, exact=False)
        if episode.reward is None or not math.isfinite(episode.reward):
            text = f"the grader gave {episode.reward!r}, which is no reward. {episode.feedback}"
            failed = self._failed(FailureCause.REWARD_ERROR, text.strip())
            return replace(failed, trace=episode.trace, usage=episode.usage)
        return episode

    def _failed(self, cause: FailureCause, text: str) -> Episode:
        # What it used is not known, so the worst case is charged: the ceiling stays a ceiling.
        usage = self.budget.worst.rollout or Usage()
        return Episode(self.settings.failure_reward, feedback=text, failure=cause, usage=usage)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
