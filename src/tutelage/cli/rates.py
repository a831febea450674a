"""Rates and means as cells of the terminal: each with its interval, or with why there is none.

What there is to tell is decided in `statistics/outcome.py` and read by `runs/measured.py`; every
verb that shows a rate comes here, so that none of them prints one that must not be.
"""

from __future__ import annotations

from collections.abc import Callable

from tutelage.cli.console import number, percent
from tutelage.runs.measured import Measured


def rate_cell(found: Measured | None, *, ends: bool = False) -> str:
    """`94.5 %`, with `ends` and its interval; how many were judged where that is all to tell."""
    if found is None or found.withheld:
        return judged_cell(found)
    if found.success is None:
        return ""
    return percent(found.success) + (_ends(found.success_interval, percent) if ends else "")


def mean_cell(found: Measured | None, *, ends: bool = False) -> str:
    """`0.553`, with `ends` and its interval; how many were judged where that is all to tell."""
    if found is None or found.withheld:
        return judged_cell(found)
    if found.reward is None:
        return ""
    return number(found.reward) + (_ends(found.reward_interval, number) if ends else "")


def judged_cell(found: Measured | None) -> str:
    """`200`, or `190 of 200 judged`."""
    if found is None or found.rollouts is None:
        return ""
    if found.judged == found.rollouts:
        return str(found.rollouts)
    return f"{found.judged} of {found.rollouts} judged"


def _ends(interval: tuple[float, float] | None, words: Callable[[float], str]) -> str:
    if interval is None:
        return ""
    low, high = map(words, interval)
    return f" (95 % interval {low} to {high})"
