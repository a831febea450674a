"""Hard limits on the cost of a search: reserved before launch, settled after.

A batch reserves its worst case completely or not at all, so concurrency cannot exceed a limit and
the same search stops at the same place with one runner or eight. Limits on calls, tokens and
dollars need a declared worst case of one rollout and one optimiser call. A full cache costs
nothing, so idle rounds are limited too. Callers are `evaluator.py` and `optimiser.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tutelage.engine.usage import Usage
from tutelage.errors import TutelageError
from tutelage.runs.rounds import Spend

IDLE_ROUNDS = 3
"""Consecutive rounds without a new rollout after which a search ends."""
_SLACK = 1e-9
"""Relative tolerance for the rounding of sums of dollars."""


class BudgetExceeded(TutelageError):
    """Raised if the next step exceeds a limit; the search then ends and keeps its best prompt."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a search; None means unlimited."""

    rollouts: int | None = None
    optimiser_calls: int | None = None
    tokens: int | None = None
    dollars: float | None = None


@dataclass(frozen=True, slots=True)
class WorstCase:
    """Maximum usage of one rollout and of one optimiser call; None if unknown."""

    rollout: Usage | None = None
    optimiser_call: Usage | None = None

    def rollout_cost(self) -> Spend:
        """Return the amount to reserve for one rollout."""
        return SearchBudget.rollout_cost(self.rollout or Usage(0))

    def call_cost(self) -> Spend:
        """Return the amount to reserve for one optimiser call."""
        return SearchBudget.call_cost(self.optimiser_call or Usage())


class SearchBudget:
    """Budget of a search; the sum of spent and reserved amounts never exceeds a limit."""

    def __init__(self, limits: Limits, worst: WorstCase | None = None) -> None:
        self.limits = limits
        self.worst = worst or WorstCase()
        self.spent = Spend()
        self._reserved = Spend()
        self._idle = 0
        self._at_round = 0

    @staticmethod
    def rollout_cost(usage: Usage) -> Spend:
        """Return the cost of one rollout with the given usage."""
        return Spend(rollouts=1, task_calls=usage.calls, tokens=usage.tokens, dollars=usage.dollars)

    @staticmethod
    def call_cost(usage: Usage) -> Spend:
        """Return the cost of one optimiser call with the given usage; retries are not counted."""
        return Spend(optimiser_calls=1, tokens=usage.tokens, dollars=usage.dollars)

    def find_exceeded(self, amount: Spend) -> str:
        """Return the name of a limit that adding the amount would exceed, or an empty string."""
        wanted = self.spent + self._reserved + amount
        for name, total in wanted.to_dict().items():
            limit, asked = getattr(self.limits, name, None), getattr(amount, name)
            if limit is not None and asked > 0 and total > limit * (1 + _SLACK):
                return name
        return ""

    def reserve(self, amount: Spend) -> None:
        """Reserve the full amount. Raises `BudgetExceeded` if it exceeds a limit."""
        if name := self.find_exceeded(amount):
            raise BudgetExceeded(f"the budget for {name} is exhausted; increase it to continue")
        self._reserved = self._reserved + amount

    def settle(self, reserved: Spend, actual: Spend) -> None:
        """Replace a reservation with the actual amount."""
        self._reserved = self._reserved - reserved
        self.spent = self.spent + actual

    def end_round(self) -> None:
        """Count a round. Raises `BudgetExceeded` after too many consecutive rounds without new
        rollouts."""
        self._idle = self._idle + 1 if self.spent.rollouts == self._at_round else 0
        self._at_round = self.spent.rollouts
        if self._idle >= IDLE_ROUNDS:
            raise BudgetExceeded("the last rounds produced no new rollouts")
