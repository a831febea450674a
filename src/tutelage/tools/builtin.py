"""The tools that need nothing: those of the embedded jobs, and `answer`.

All are bounded in time whatever a model writes, so they run on the event loop without a thread. The
calculator is `expression.py`; the prices come from the generator of the tasks,
`tutelage.tasks.arithmetic`, so that questions and catalogue cannot disagree. Tools that need a
corpus, a sandbox or a key are in `search.py` and `python.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tutelage.environments.protocol import Observation
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
    return _price(item, PRICES)


class _PriceList:
    """An environment whose `lookup` reads the prices that a task brings in its field `prices`."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Show nothing: the prices are to be looked up."""
        prices = task.fields.get("prices", {})
        if not isinstance(prices, Mapping):
            raise DataError(f"the task field 'prices' must map items to prices, not {prices!r}")
        listed = cast("Mapping[Any, Any]", prices)
        self._prices = {_name(str(item)): price for item, price in listed.items()}
        return Observation()

    async def close(self) -> None:
        """Nothing is held open."""

    @tool(inline=True)
    def lookup(self, item: str) -> int:
        """Look up the price of one item.

        Args:
            item: The name of the item.
        """
        name = _name(item)
        listed = (x for x in self._prices if name in _numbers(x) or x in _numbers(name))
        return _price(next(listed, name), self._prices)


ENVIRONMENTS: Mapping[str, type] = {"price_list": _PriceList}
"""The classes whose methods are tools, by name."""


def _price(item: str, prices: Mapping[str, int]) -> int:
    name = _name(item)
    if name not in prices:
        near = hint(name, prices) if prices else "; there is no price list here"
        raise ToolError(f"no item {name!r}{near}")
    return prices[name]


def _name(item: str) -> str:
    return " ".join(item[:100].lower().split())


def _numbers(name: str) -> list[str]:
    """A name and what it may be the plural of."""
    endings = (("s", ""), ("es", ""), ("ies", "y"), ("ves", "f"), ("ves", "fe"))
    cut = [name.removesuffix(many) + one for many, one in endings if name.endswith(many)]
    return [name, *cut]


@tool(inline=True, terminal=True)
def answer(answer: str) -> str:
    """Give the final answer, which ends the task.

    Args:
        answer: The answer alone, without a sentence around it.
    """
    return answer
