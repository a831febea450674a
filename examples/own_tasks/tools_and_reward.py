"""A shop of your own: one tool that reads its price list, and one reward with partial credit."""

from __future__ import annotations

import json
from pathlib import Path

from tutelage.rewards import reward
from tutelage.tools import ToolError, tool
from tutelage.types import Attempt

PRICES: dict[str, int] = json.loads(Path(__file__).with_name("prices.json").read_text())


@tool(timeout=2.0)
def lookup(item: str) -> int:
    """Look up the price of one item in our shop.

    Args:
        item: The name of the item, in the singular.
    """
    if item not in PRICES:
        raise ToolError(f"we do not sell {item!r}; we sell {', '.join(PRICES)}")
    return PRICES[item]


@reward
def right_price(prediction: str, trajectory: Attempt, total: int) -> dict[str, float]:
    """1 for the right total; a tenth for a wrong one that at least asked for the price."""
    right = prediction.strip() == str(total)
    asked = any(r.name == "lookup" and r.error is None for r in trajectory.tool_results)
    return {"reward": 1.0 if right else 0.1 * asked, "right": float(right), "asked": float(asked)}
