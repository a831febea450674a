"""What calls to models cost, and what a run spends: counted in calls, tokens and US dollars.

`Usage` is of one rollout or one call; `Spend` adds up everything that a budget knows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tutelage.types import JSON


@dataclass(frozen=True, slots=True)
class Usage:
    """What one rollout or one optimiser call cost: model calls, tokens, US dollars."""

    calls: int = 1
    tokens: int = 0
    dollars: float = 0.0


def usage_to_dict(usage: Usage) -> JSON:
    """As JSON."""
    return {"calls": usage.calls, "tokens": usage.tokens, "dollars": usage.dollars}


@dataclass(frozen=True, slots=True)
class Spend:
    """An amount of everything that is counted."""

    rollouts: int = 0
    task_calls: int = 0
    optimiser_calls: int = 0
    tokens: int = 0
    dollars: float = 0.0

    def __add__(self, other: Spend) -> Spend:
        return Spend(
            self.rollouts + other.rollouts,
            self.task_calls + other.task_calls,
            self.optimiser_calls + other.optimiser_calls,
            self.tokens + other.tokens,
            self.dollars + other.dollars,
        )

    def __sub__(self, other: Spend) -> Spend:
        return self + other * -1

    def __mul__(self, times: int) -> Spend:
        return Spend(
            self.rollouts * times,
            self.task_calls * times,
            self.optimiser_calls * times,
            self.tokens * times,
            self.dollars * times,
        )

    def amounts(self) -> tuple[int, int, int, int, float]:
        """The numbers in the order of the fields."""
        return self.rollouts, self.task_calls, self.optimiser_calls, self.tokens, self.dollars

    def to_dict(self) -> dict[str, int | float]:
        """As JSON."""
        return dict(zip(COUNTED, self.amounts(), strict=True))


COUNTED = tuple(f.name for f in fields(Spend))
