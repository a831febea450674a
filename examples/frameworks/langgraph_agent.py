"""langgraph: a graph of two nodes, langchain-openai's `ChatOpenAI` and a `ToolNode`.

OPENAI_BASE_URL=... OPENAI_API_KEY=... python langgraph_agent.py "What is 12 + 34?"
"""

from __future__ import annotations

from typing import Any

from calculator import INSTRUCTIONS, MAX_TURNS, Server, calculator, program
from langchain_core.messages import SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import SecretStr

from tutelage import rollout

TOOL = tool(calculator)


async def solve(question: str, server: Server) -> str:
    """The agent's answer to a question."""
    model = ChatOpenAI(
        model=server.model,
        base_url=server.base_url,
        api_key=SecretStr(server.api_key),
        use_responses_api=server.api == "responses",
        streaming=server.stream,
    ).bind_tools([TOOL])

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {
            "messages": [await model.ainvoke([SystemMessage(INSTRUCTIONS), *state["messages"]])]
        }

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("tools", ToolNode([TOOL]))
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", tools_condition)
    graph.add_edge("tools", "ask")
    state = await graph.compile().ainvoke(
        {"messages": [("user", question)]}, {"recursion_limit": 2 * MAX_TURNS}
    )
    return state["messages"][-1].text


@rollout
async def agent(task: dict[str, Any], llm: Any) -> str:
    """For `Trainer(reward="math")`: the answer, to be graded."""
    return await solve(task["question"], Server.of(llm))


if __name__ == "__main__":
    program(solve)
