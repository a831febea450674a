"""Events of a prompt search: finished rollouts and rounds.

A search works without an observer. `prompts/search.py` and `prompts/evaluator.py` report; displays
and reports observe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from operator import add

from tutelage.statistics.outcome import too_many_lost


@dataclass(frozen=True, slots=True)
class Spend:
    """Resources spent by a prompt search."""

    rollouts: int = 0
    task_calls: int = 0
    optimiser_calls: int = 0
    tokens: int = 0
    dollars: float = 0.0

    def __add__(self, other: Spend) -> Spend:
        return Spend(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: Spend) -> Spend:
        return self + other * -1

    def __mul__(self, factor: int) -> Spend:
        return Spend(*(amount * factor for amount in astuple(self)))

    def to_dict(self) -> dict[str, int | float]:
        """Convert the amounts to JSON data."""
        return asdict(self)


COUNTED = tuple(f.name for f in fields(Spend))


@dataclass(frozen=True, slots=True)
class CandidateSummary:
    """Result of a candidate prompt in a round. Wins, losses and ties are counted against its first
    parent, on validation tasks that both have played."""

    id: str
    operation: str
    decision: str
    reason: str
    tasks: int
    reward: float | None
    exact: float | None
    wins: int
    losses: int
    ties: int


@dataclass(frozen=True, slots=True)
class Round:
    """Round of a prompt search: the rewards of its initial prompt and its candidates."""

    number: int
    """Number of the round, from 1."""
    components: Mapping[str, str]
    split: str
    rewards: tuple[float, ...]
    """Rewards of the judged rollouts."""
    standings: Sequence[CandidateSummary]
    leader: str
    """Id of the best candidate at the end of the round."""
    best: Mapping[str, str]
    """Components of the best candidate."""
    spent: Spend
    lost: int = 0
    """Rollouts of the initial prompt that were lost to infrastructure."""
    samples: int = 1
    """Rollouts per task."""
    available: int = 0
    """Number of tasks in the split, of which a round may play some."""

    @property
    def rollouts(self) -> int:
        """Number of rollouts of the initial prompt."""
        return len(self.rewards) + self.lost

    @property
    def tasks(self) -> str:
        """Number of played tasks as text, such as `6`, or `6 of 20` if the split is larger."""
        tasks = self.rollouts // self.samples
        return f"{tasks} of {self.available}" if tasks < self.available else str(tasks)

    @property
    def average(self) -> float | None:
        """Mean reward, or None if too many rollouts were lost."""
        if too_many_lost(len(self.rewards), self.rollouts):
            return None
        return sum(self.rewards) / len(self.rewards)

    def metrics(self) -> dict[str, float]:
        """Return the mean reward and the numbers of rollouts, or an empty dict without rollouts."""
        if not self.rollouts:
            return {}
        fields = {} if self.average is None else {"reward/mean": self.average}
        return fields | {"rollout/number": self.rollouts, "rollout/judged": len(self.rewards)}


class Observer:
    """Base class for observers of a prompt search. Its methods do nothing and must not block when
    overridden."""

    def on_progress(self, stage: str, done: int, total: int, spent: Spend) -> None:
        """Called with the number of finished rollouts of a batch. `spent` is the cost before it."""

    def on_round(self, found: Round) -> None:
        """Called after a round of the search."""
