"""Built-in tools without dependencies: those of the embedded jobs, and `answer`.

Their run time is bounded for any input, so they run on the event loop without a thread. The
calculator uses `expression.py`; the prices come from the task generator,
`tutelage.tasks.arithmetic`, so that questions and catalogue always agree. Tools that need a
corpus, a sandbox or a key are in `search.py` and `python.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tutelage.errors import DataError
from tutelage.tasks.arithmetic import PRICES
from tutelage.tools.expression import ExpressionError, evaluate, format_number
from tutelage.tools.loading import hint
from tutelage.tools.tool import ToolError, tool
from tutelage.types import Task

_MAX_N = 10**18


@tool(inline=True)
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses, such as 17 * 23 + 5.
    """
    try:
        return format_number(evaluate(expression))
    except ExpressionError as error:
        raise ToolError(str(error)) from error


@tool(inline=True)
def sum_1_to_n(n: int) -> int:
    """Add up the integers from 1 to n.

    Args:
        n: The last integer of the sum.
    """
    if not 0 <= n <= _MAX_N:
        raise ToolError(f"n must lie between 0 and {_MAX_N}")
    return n * (n + 1) // 2


@tool(inline=True)
def lookup(item: str) -> int:
    """Look up the price of one item.

    Args:
        item: The name of the item, in the singular.
    """
    return _find_price(item, PRICES)


class _PriceList:
    """Environment whose `lookup` tool reads prices from the task field `prices`."""

    async def reset(self, task: Task, seed: int) -> None:
        """Read the prices of `task`. Raises `DataError`."""
        prices = task.fields.get("prices", {})
        if not isinstance(prices, Mapping):
            raise DataError(f"the task field 'prices' must map items to prices, not {prices!r}")
        entries = cast("Mapping[Any, Any]", prices)
        self._prices = {_normalize_name(str(item)): price for item, price in entries.items()}

    async def close(self) -> None:
        """Do nothing, since the environment holds no resources."""

    @tool(inline=True)
    def lookup(self, item: str) -> int:
        """Look up the price of one item.

        Args:
            item: The name of the item.
        """
        name = _normalize_name(item)
        matches = (x for x in self._prices if name in _to_singular(x) or x in _to_singular(name))
        return _find_price(next(matches, name), self._prices)


ENVIRONMENTS: Mapping[str, type] = {"price_list": _PriceList}
"""Built-in environment classes by name; their `@tool` methods are tools."""


def _find_price(item: str, prices: Mapping[str, int]) -> int:
    name = _normalize_name(item)
    if name not in prices:
        near = hint(name, prices) if prices else "; there is no price list here"
        raise ToolError(f"no item {name!r}{near}")
    return prices[name]


def _normalize_name(item: str) -> str:
    return " ".join(item[:100].lower().split())


def _to_singular(name: str) -> list[str]:
    """Return a noun and its possible singular forms."""
    endings = (("s", ""), ("es", ""), ("ies", "y"), ("ves", "f"), ("ves", "fe"))
    forms = [name.removesuffix(many) + one for many, one in endings if name.endswith(many)]
    return [name, *forms]


@tool(inline=True, terminal=True)
def answer(answer: str) -> str:
    """Give the final answer, which ends the task.

    Args:
        answer: The answer alone, without a sentence around it.
    """
    return answer
