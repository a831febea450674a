"""What the record of a call repeats of its request. Every client of this package records so;
`types.py` has both words, and nothing here needs torch.
"""

from __future__ import annotations

from typing import Any

from tutelage.types import ChatOptions


def recorded_options(options: ChatOptions) -> dict[str, Any]:
    """The fields of a `Call` that repeat what its request said beside the messages."""
    return {
        "tools": tuple(options.get("tools", ())),
        "sampling": options["sampling"],
        "agent": options.get("agent", "main"),
        "constraint": options.get("constraint"),
    }
