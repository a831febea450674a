"""Hard ceilings on what a search may spend: reserved before launch, settled after.

A batch reserves its worst case as a whole or not at all, so concurrency cannot overshoot and the
same search stops at the same place with one runner or eight. Ceilings on calls, tokens and dollars
are as hard as the worst case declared for one rollout and one optimiser call; without one they are
refused. A full cache spends nothing, so idle rounds are capped too. Callers are `evaluator.py` and
`optimiser.py`; what is spent by kill and resume alike comes out of `journal.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tutelage.engine.usage import Usage
from tutelage.errors import ConfigError, TutelageError
from tutelage.runs.rounds import COUNTED, Spend

IDLE = "idle rounds"
_SLACK = 1e-9
"""Relative room for the rounding of sums of dollars."""


class BudgetExceeded(TutelageError):
    """The next step does not fit; a search ends here and keeps its best. `what` ran out."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        if self.what == IDLE:
            return "there was nothing new to play in the last rounds"
        return f"the budget of {self.what} is spent; raise it to continue the search"


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings; None is none. `seconds` is wall time of the search over all its resumes."""

    rollouts: int | None = None
    task_calls: int | None = None
    optimiser_calls: int | None = None
    tokens: int | None = None
    dollars: float | None = None
    seconds: float | None = None
    idle_rounds: int = 3
    """How many rounds in a row may play nothing new."""

    def __post_init__(self) -> None:
        for name in (*COUNTED, "seconds"):
            limit = getattr(self, name)
            if limit is not None and not limit >= 0:
                raise ConfigError(f"the budget {name}={limit!r} must be 0 or more")
        if self.idle_rounds < 1:
            raise ConfigError(f"idle_rounds={self.idle_rounds!r} must be at least 1")


@dataclass(frozen=True, slots=True)
class WorstCase:
    """The most that one rollout and one optimiser call can cost; None: nobody knows."""

    rollout: Usage | None = None
    optimiser_call: Usage | None = None

    def of_rollout(self) -> Spend:
        """Reserved for one rollout."""
        return SearchBudget.rollout(self.rollout or Usage(0))

    def of_call(self) -> Spend:
        """Reserved for one optimiser call."""
        return SearchBudget.call(self.optimiser_call or Usage())


class SearchBudget:
    """What is spent and reserved; `spent + reserved` never passes a limit."""

    def __init__(
        self,
        limits: Limits,
        worst: WorstCase | None = None,
        *,
        elapsed: float = 0.0,
    ) -> None:
        """`elapsed` seconds went by before this process. Raises `ConfigError`, see `WorstCase`."""
        self.limits = limits
        self.worst = worst or WorstCase()
        self.spent = Spend()
        self._reserved = Spend()
        self._idle = 0
        self._at_round = 0
        self._began = time.monotonic() - elapsed
        for name in ("task_calls", "tokens", "dollars"):
            if getattr(limits, name) is not None and self.worst.rollout is None:
                raise ConfigError(
                    f"the budget for {name} can only be enforced if the worst case of a rollout is "
                    "known; pass WorstCase(rollout=Usage(...)), or limit rollouts"
                )

    @staticmethod
    def rollout(usage: Usage) -> Spend:
        """One rollout that used this much."""
        return Spend(rollouts=1, task_calls=usage.calls, tokens=usage.tokens, dollars=usage.dollars)

    @staticmethod
    def call(usage: Usage) -> Spend:
        """One optimiser call that used this much. Retries are the endpoint's, one call counts
        one."""
        return Spend(optimiser_calls=1, tokens=usage.tokens, dollars=usage.dollars)

    def reserve(self, worst: Spend) -> None:
        """Set an amount aside, all of it or nothing. Raises `BudgetExceeded`."""
        wanted = self.spent + self._reserved + worst
        for name, amount in wanted.to_dict().items():
            limit, asked = getattr(self.limits, name), getattr(worst, name)
            if limit is not None and asked > 0 and amount > limit * (1 + _SLACK):
                raise BudgetExceeded(name)
        self._reserved = self._reserved + worst

    def settle(self, worst: Spend, actual: Spend) -> None:
        """Replace a reservation by the actual amount."""
        self._reserved = self._reserved - worst
        self.spent = self.spent + actual

    def fits(self, rollouts: int) -> bool:
        """Whether this number of rollouts could be reserved now."""
        try:
            self.reserve(need := self.worst.of_rollout() * rollouts)
        except BudgetExceeded:
            return False
        self._reserved = self._reserved - need
        return True

    def elapsed(self) -> float:
        """Seconds of the search so far, those before a resume included."""
        return time.monotonic() - self._began

    def seconds_left(self) -> float | None:
        """Until the deadline; None without one."""
        if self.limits.seconds is None:
            return None
        return self.limits.seconds - self.elapsed()

    def end_round(self) -> None:
        """Called after each round. Raises `BudgetExceeded` when too many in a row played
        nothing."""
        self._idle = self._idle + 1 if self.spent.rollouts == self._at_round else 0
        self._at_round = self.spent.rollouts
        if self._idle >= self.limits.idle_rounds:
            raise BudgetExceeded(IDLE)
