"""Agent that computes the cost of an order: it looks up prices and uses a calculator."""

from tutelage import Message, PromptTemplate, rollout
from tutelage.tools import tool
from tutelage.tools.builtin import calculator
from tutelage.tools.execute import execute_tool_calls

PRICES = {"pen": 7, "cup": 12, "hat": 25, "bag": 38, "map": 9, "key": 4, "jar": 21}
prompt = PromptTemplate("You answer what an order costs.")


@tool
def lookup(item: str) -> str:
    """Look up the price of one item.

    Args:
        item: The name of the item, in the singular.
    """
    return str(PRICES.get(item, f"there is no {item}"))


TOOLS = {"lookup": lookup, "calculator": calculator}


@rollout
async def shop(task, llm, prompt):
    """Let the model call tools until it answers, and return its last reply."""
    messages = [Message("system", prompt.format()), Message("user", task["question"])]
    for _ in range(4):
        reply = (await llm.chat(messages, tools=[tool.spec for tool in TOOLS.values()])).reply
        messages.append(reply)
        for done in await execute_tool_calls(reply.tool_calls, TOOLS):
            messages.append(Message("tool", done.text, tool_call_id=done.call_id, name=done.name))
        if not reply.tool_calls:
            break
    return reply.content or ""


def right(prediction, answer):
    """Return the reward: 1 if the last number of the reply is the answer, else 0."""
    words = "".join(c if c.isdigit() else " " for c in prediction).split()
    return float(words[-1:] == [answer])
