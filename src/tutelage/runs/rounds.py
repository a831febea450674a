"""What a search reports to its observer: rollouts as they end, rounds as they close.

A search decides nothing by it and works without it. `prompts/search.py` and
`prompts/evaluator.py` call, a display or a report listens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from operator import add

from tutelage.statistics.outcome import too_many_lost


@dataclass(frozen=True, slots=True)
class Spend:
    """An amount of everything that is counted."""

    rollouts: int = 0
    task_calls: int = 0
    optimiser_calls: int = 0
    tokens: int = 0
    dollars: float = 0.0

    def __add__(self, other: Spend) -> Spend:
        return Spend(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: Spend) -> Spend:
        return self + other * -1

    def __mul__(self, times: int) -> Spend:
        return Spend(*(amount * times for amount in astuple(self)))

    def to_dict(self) -> dict[str, int | float]:
        """As JSON."""
        return asdict(self)


COUNTED = tuple(f.name for f in fields(Spend))


@dataclass(frozen=True, slots=True)
class CandidateSummary:
    """One candidate of a round. Wins, losses and ties are against its first parent, on the
    validation tasks that both have played."""

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
    """One round: the prompt it began with and what that earned, then what was tried."""

    number: int
    """From 1."""
    components: Mapping[str, str]
    split: str
    rewards: tuple[float, ...]
    """Of the rollouts that were judged."""
    standings: Sequence[CandidateSummary]
    leader: str
    """The best candidate at its end."""
    best: Mapping[str, str]
    """Its components."""
    spent: Spend
    lost: int = 0
    """Rollouts of the prompt that it began with which infrastructure lost: no evidence."""
    samples: int = 1
    """Rollouts of each task."""
    available: int = 0
    """Tasks of the split, of which a round may play some."""

    @property
    def rollouts(self) -> int:
        """How many the prompt that it began with was played on."""
        return len(self.rewards) + self.lost

    @property
    def tasks(self) -> str:
        """How many tasks those rollouts are of, as `6`, or `6 of 20` of a larger split."""
        tasks = self.rollouts // self.samples
        return f"{tasks} of {self.available}" if tasks < self.available else str(tasks)

    @property
    def average(self) -> float | None:
        """The mean reward; None if there is none."""
        if too_many_lost(len(self.rewards), self.rollouts):
            return None
        return sum(self.rewards) / len(self.rewards)

    def metrics(self) -> dict[str, float]:
        """The mean reward, and of how many of how many rollouts; empty where none was played."""
        if not self.rollouts:
            return {}
        fields = {} if self.average is None else {"reward/mean": self.average}
        return fields | {"rollout/number": self.rollouts, "rollout/judged": len(self.rewards)}


class Observer:
    """Receives the events of a search, and drops them: override what you need. Every method returns
    at once."""

    def played(self, stage: str, done: int, total: int, spent: Spend) -> None:
        """`done` of `total` rollouts of a batch have ended; `spent` is what came before it."""

    def round(self, found: Round) -> None:
        """A round has ended."""
