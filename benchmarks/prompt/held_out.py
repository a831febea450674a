"""Phrases that no training prompt of the embedded policy holds: they tell what it learned.

Its training is on the wordings of `benchmarks/house/prompt_phrases.py`. A policy that had learned
wordings rather than rules would obey none of these.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.house.prompt_phrases import Rule

HELD_OUT: Mapping[Rule, tuple[str, ...]] = {
    "calculator": (
        "Hand all arithmetic over to the calculator tool.",
        "Run expressions through calculator before you respond.",
        "The calculator has to do the math.",
    ),
    "sum": (
        "Hand sums over to the sum_1_to_n tool.",
        "Run sum_1_to_n when a total of consecutive integers is needed.",
        "The tool sum_1_to_n has to do the adding.",
    ),
    "single": (
        "One tool call a turn, no more.",
        "Do not make two calls at the same time.",
        "Make a call, then wait until you have seen its result.",
    ),
    "form": (
        "Close your reply with: answer is X.",
        "Output the final number and nothing else.",
        "Put it this way: the answer is X.",
    ),
    "exact": (
        "Give the value exactly as it is, without rounding.",
        "Rounded numbers are wrong; keep every digit.",
        "Do not round off or estimate anything.",
    ),
}
"""Wordings of each rule."""

HELD_OUT_USELESS: tuple[str, ...] = (
    "Be kind.",
    "Take your time.",
    "You are very good at this.",
    "Keep the reader in mind.",
)
"""Phrases without a rule."""
