"""A budget in USD that many tries share: reserve a bound before, settle the true cost after.

Under `enforce` a reservation that does not fit is refused, so what was spent can never pass the
limit while no try costs more than its bound, however many run at once. A plan that shares a budget
is admitted when what its nodes need at the least fits beside what the running plans still need,
or when it is alone: otherwise many would begin and none could end. What a plan still needs no other
one may reserve. Under `audit` everything is let through and counted. It lives in one event loop and
has no locks: nothing waits between looking and reserving. `node_run.py` uses it for every try.
"""

from __future__ import annotations

import asyncio
import math
from typing import Literal, get_args

from tutelage.errors import ConfigError, check_number

BudgetMode = Literal["audit", "enforce"]
_SLACK = 1e-12
"""USD by which sums of floats may miss."""


class Budget:
    """What may be spent, is reserved and was spent, in USD. Without a limit it only counts."""

    def __init__(self, limit: float | None = None, mode: BudgetMode = "enforce") -> None:
        """Raises `ConfigError` for a limit that is no amount, or another mode."""
        if mode not in get_args(BudgetMode):
            raise ConfigError(f"unknown budget mode {mode!r}; choose from {get_args(BudgetMode)}")
        if limit is not None:
            check_number("the budget", limit)
        self.limit, self.mode = limit, mode
        self.reserved = 0.0
        self.spent = 0.0
        self.open = 0
        """Reservations that are not settled."""
        self._needs: dict[object, float] = {}
        """By running plan: USD of its nodes that have not begun, at the least."""
        self._changed = asyncio.Event()

    @property
    def enforced(self) -> bool:
        """Whether something can be refused."""
        return self.limit is not None and self.mode == "enforce"

    @property
    def left(self) -> float | None:
        """What neither was spent nor is reserved; None without a limit. Below 0 under `audit`."""
        return None if self.limit is None else self.limit - self.spent - self.reserved

    def left_for(self, plan: object) -> float | None:
        """What this plan may reserve: what is left less what the other running plans need."""
        others = math.fsum(need for known, need in self._needs.items() if known is not plan)
        return None if self.left is None else self.left - others

    async def admit(self, plan: object, least: float, expected: float) -> bool:
        """Wait until a plan may begin, which needs `least` by the bounds of its nodes.

        False when it is alone, others have spent of the budget, and not even the cost that is
        `expected` is left: nothing of it should begin.
        """
        while self.enforced and self._needs and not self.fits(least, plan):
            await self.changed()
        alone, fits = not self._needs, self.fits(least, plan)
        if not fits and self.spent > 0 and not self.fits(expected, plan):
            return False
        self._needs[plan] = least if fits or not alone else 0.0
        return True

    def need(self, plan: object, least: float) -> None:
        """What a running plan still needs has become less."""
        if plan in self._needs:
            spare = (self.left_for(plan) or 0.0) if self.enforced else 0.0
            self._needs[plan] = max(0.0, min(self._needs[plan], least, spare))

    def release(self, plan: object) -> None:
        """A plan has ended."""
        if self._needs.pop(plan, None) is not None:
            self._tell()

    def fits(self, bound: float, plan: object = None) -> bool:
        """Whether a try of at most this cost may start."""
        return not self.enforced or bound <= (self.left_for(plan) or 0.0) + _SLACK

    def reserve(self, bound: float, plan: object = None) -> bool:
        """Set a bound aside; False, with nothing done, when it does not fit."""
        if not self.fits(bound, plan):
            return False
        self.reserved += bound
        self.open += 1
        return True

    def settle(self, bound: float, cost: float) -> None:
        """Give a reservation back and count the actual cost."""
        self.open -= 1
        # With nothing open the sum of floats is put right again.
        self.reserved = self.reserved - bound if self.open else 0.0
        self.spent += cost
        self._tell()

    def overspent(self, who: str, cost: float, bound: float) -> str:
        """What happened where a server says that a request used more than it can, which no
        reservation has room for, and an enforced budget is passed; else empty."""
        if cost <= bound or not self.enforced or (self.left or 0.0) >= 0:
            return ""
        return (
            f"{who} says that a request cost {cost:.6f} USD, which can be {bound:.6f} at most by "
            f"its own prices; {self.spent:.6f} were spent of {self.limit}"
        )

    async def changed(self) -> None:
        """Wait until the next settlement, or the end of a plan."""
        await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
