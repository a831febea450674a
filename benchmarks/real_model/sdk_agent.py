"""An agent of the OpenAI Agents SDK for word problems: its loop, its tools, its requests.

Tutelage is the server that it asks; the price list of a task is the context of its run.
"""

from __future__ import annotations

from typing import Any

import agents
from openai import AsyncOpenAI

from tutelage import rollout
from tutelage.tools.builtin import calculator as evaluate

agents.set_tracing_disabled(True)  # its traces go to OpenAI


@agents.function_tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses, such as 17 * 23 + 5.
    """
    return evaluate(expression)


@agents.function_tool
def lookup(prices: agents.RunContextWrapper[dict[str, int]], item: str) -> str:
    """Look up the price of one item.

    Args:
        item: The name of the item, in the singular.
    """
    return str(prices.context.get(item, f"{item!r} is not on the price list"))


@rollout
async def solve(task: dict[str, Any], llm: Any) -> str:
    """The agent's last message, which the reward `math` grades."""
    client = AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key)
    model = agents.OpenAIChatCompletionsModel(llm.model, client)
    agent = agents.Agent(name="clerk", tools=[calculator, lookup], model=model)
    prices = task.get("prices") or {}
    result = await agents.Runner.run(agent, task["question"], context=prices, max_turns=4)
    return str(result.final_output)
