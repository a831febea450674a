"""Estimated cost of a run: rollouts times the tokens of one, at a measured rate.

Trainings and prompt searches measure `Pace` on the first rollouts that they play anyway, so an
estimate costs nothing and changes no random draws.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Measured tokens, wall-clock seconds and US dollars of a number of rollouts."""

    rollouts: int
    tokens: int
    seconds: float
    dollars: float = 0.0

    def format_estimate(self, rollouts: int) -> str:
        """Format an estimate of the cost of a number of rollouts."""
        times = rollouts / self.rollouts
        tokens, seconds = self.tokens * times, self.seconds * times
        each = self.tokens / self.rollouts
        told = f"{rollouts:,} rollouts x {each:,.0f} tokens = {tokens:,.0f} tokens"
        if self.tokens and self.seconds:
            told += f", at {self.tokens / self.seconds:,.0f} tokens/s {duration(seconds)}"
        if self.dollars:
            told += f", ${self.dollars * times:.2f}"
        return f"{told} (measured on {self.rollouts:,} rollouts)"


def duration(seconds: float) -> str:
    """Format seconds as `1:32` or `2:05:07`."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
