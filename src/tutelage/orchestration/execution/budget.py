"""Budget in USD shared by concurrent tries: reserve an upper bound first, settle the cost
afterwards.

Reservations that do not fit are refused, so spending never exceeds the limit if no try costs more
than its bound, even with concurrent tries. A budget belongs to one event loop and needs no locks,
because there is no `await` between the check and the reservation.
"""

from __future__ import annotations

import asyncio

from tutelage.orchestration.arguments import check_number

_SLACK = 1e-12
"""Tolerance in USD for rounding errors of sums."""


class Budget:
    """Budget in USD: limit, reserved and spent amounts. Without a limit, costs are only counted."""

    def __init__(self, limit: float | None = None) -> None:
        """Create a budget. Raises `ConfigError` if the limit is not a valid amount."""
        if limit is not None:
            check_number("the budget", limit)
        self.limit = limit
        self.reserved = 0.0
        self.spent = 0.0
        self.open = 0
        """Number of open reservations."""
        self._changed = asyncio.Event()

    @property
    def remaining(self) -> float | None:
        """Remaining amount: the limit minus spent and reserved amounts; None without a limit."""
        return None if self.limit is None else self.limit - self.spent - self.reserved

    def fits(self, bound: float) -> bool:
        """Return True if a request with this maximum cost fits the budget."""
        return self.remaining is None or bound <= self.remaining + _SLACK

    def reserve(self, bound: float) -> bool:
        """Reserve a maximum cost. Return False and reserve nothing if it exceeds the budget."""
        if not self.fits(bound):
            return False
        self.reserved += bound
        self.open += 1
        return True

    def settle(self, bound: float, cost: float) -> None:
        """Release the reservation of `bound` and add the actual cost."""
        self.open -= 1
        # Without open reservations, reset the sum to remove rounding errors.
        self.reserved = self.reserved - bound if self.open else 0.0
        self.spent += cost
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self) -> None:
        """Wait until the next reservation is settled."""
        await self._changed.wait()
