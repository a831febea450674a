"""A budget in USD that many tries share: reserve a bound before, settle the true cost after.

A reservation that does not fit is refused, so what was spent can never pass the limit while no try
costs more than its bound, however many run at once. It lives in one event loop and has no locks:
nothing waits between looking and reserving.
"""

from __future__ import annotations

import asyncio

from tutelage.errors import check_number

_SLACK = 1e-12
"""USD by which sums of floats may miss."""


class Budget:
    """What may be spent, is reserved and was spent, in USD. Without a limit it only counts."""

    def __init__(self, limit: float | None = None) -> None:
        """Raises `ConfigError` for a limit that is no amount."""
        if limit is not None:
            check_number("the budget", limit)
        self.limit = limit
        self.reserved = 0.0
        self.spent = 0.0
        self.open = 0
        """Reservations that are not settled."""
        self._changed = asyncio.Event()

    @property
    def left(self) -> float | None:
        """What neither was spent nor is reserved; None without a limit."""
        return None if self.limit is None else self.limit - self.spent - self.reserved

    def fits(self, bound: float) -> bool:
        """Whether a try of at most this cost may start."""
        return self.left is None or bound <= self.left + _SLACK

    def reserve(self, bound: float) -> bool:
        """Set a bound aside; False, with nothing done, when it does not fit."""
        if not self.fits(bound):
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
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Wait until the next settlement."""
        await self._changed.wait()
