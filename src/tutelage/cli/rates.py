"""Rates and means as cells of the terminal: each with its interval, or with why there is none.

What there is to tell is decided in `statistics/outcome.py` and read by `runs/measured.py`; every
verb that shows a rate comes here, so that none of them prints one that must not be.
"""

from __future__ import annotations

from collections.abc import Callable

from tutelage.cli.console import number, percent
from tutelage.runs.measured import REWARD, SUCCESS, Measured, Quantity


def rate_cell(found: Measured | None, *, ends: bool = False) -> str:
    """`94.5 %`, with `ends` and its interval; how many were judged where that is all to tell."""
    return _cell(SUCCESS, found, percent, ends)


def mean_cell(found: Measured | None, *, ends: bool = False) -> str:
    """`0.553`, with `ends` and its interval; how many were judged where that is all to tell."""
    return _cell(REWARD, found, number, ends)


def judged_cell(found: Measured | None) -> str:
    """`200`, or `190 of 200 judged`."""
    if found is None or found.rollouts is None:
        return ""
    if found.judged == found.rollouts:
        return str(found.rollouts)
    return f"{found.judged} of {found.rollouts} judged"


def _cell(what: Quantity, found: Measured | None, words: Callable[[float], str], ends: bool) -> str:
    told = what.ends(found, words) if ends else ""
    return what.cell(found, words) + (f" (95 % interval {told})" if told else "")
