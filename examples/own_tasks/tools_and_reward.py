"""A shop of your own: its price list as a tool, and a reward with partial credit."""

from __future__ import annotations

from tutelage import ToolError, reward, tool
from tutelage.types import Attempt

PRICES = {
    "pen": 53, "cup": 36, "hat": 81, "bag": 14, "map": 62, "key": 27, "box": 93, "jar": 48,
}  # fmt: skip


@tool
def lookup(item: str) -> int:
    """Look up the price of one item in our shop.

    Args:
        item: The name of the item, in the singular.
    """
    if item not in PRICES:
        raise ToolError(f"we do not sell {item!r}; we sell {', '.join(PRICES)}")
    return PRICES[item]


@reward
def right_total(prediction: str, trajectory: Attempt, total: int) -> dict[str, float]:
    """1 for the right total; a tenth for a wrong one, if the price list was asked."""
    asked = any(call.name == "lookup" and not call.error for call in trajectory.tool_results)
    right = prediction.strip() == str(total)
    return {"reward": 1.0 if right else 0.1 * asked, "right": right, "asked": asked}
