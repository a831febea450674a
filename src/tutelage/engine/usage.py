"""What calls to models cost, and what a run spends: counted in calls, tokens and US dollars.

`Usage` is of one rollout or one call; `Spend` adds up everything that a budget knows.
"""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, fields
from operator import add


@dataclass(frozen=True, slots=True)
class Usage:
    """What one rollout or one optimiser call cost: model calls, tokens, US dollars."""

    calls: int = 1
    tokens: int = 0
    dollars: float = 0.0


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
