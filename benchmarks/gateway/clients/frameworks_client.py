"""The agent frameworks of `examples/frameworks` as their users drive them, in an environment of
their own.

Each keeps the conversation by its own memory: four questions one after another, or one question
that takes three turns of tools. `cells.py` has the conversation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cells import INSTRUCTIONS, QUESTIONS, TOOLS, Cell, Turn, answer_cells


def questions(cell: Cell) -> tuple[str, ...]:
    """What the user says: with tools one question is all."""
    return QUESTIONS[:1] if cell.tools else QUESTIONS


def tools(cell: Cell, wrap: Callable[[Any], Any] = lambda tool: tool) -> list[Any]:
    """The tools of a cell, as the framework wants them."""
    return [wrap(tool) for tool in TOOLS] if cell.tools else []


async def agno(cell: Cell) -> list[Turn]:
    """agno, with its history in memory."""
    from agno.agent import Agent
    from agno.db.in_memory import InMemoryDb
    from agno.models.anthropic import Claude
    from agno.models.openai import OpenAILike, OpenAIResponses

    if cell.api == "agno messages":
        given = {"base_url": cell.root}
        model: Any = Claude(id=cell.model, api_key=cell.api_key, client_params=given)
    else:
        of = OpenAIResponses if cell.api == "agno responses" else OpenAILike
        model = of(id=cell.model, base_url=cell.base_url, api_key=cell.api_key)
    agent = Agent(
        model=model,
        instructions=INSTRUCTIONS,
        tools=tools(cell),
        db=InMemoryDb(),
        session_id=cell.id,
        add_history_to_context=True,
        num_history_runs=10,
        telemetry=False,
    )
    turns: list[Turn] = []
    for question in questions(cell):
        if not cell.stream:
            turns.append(Turn(str((await agent.arun(question)).content or "")))
            continue
        pieces = [
            event.content or ""
            async for event in agent.arun(question, stream=True)
            if event.event == "RunContent"
        ]
        turns.append(Turn("".join(pieces)))
    return turns


async def openai_agents(cell: Cell) -> list[Turn]:
    """openai-agents, with `to_input_list`."""
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=cell.base_url, api_key=cell.api_key, max_retries=0)
    if cell.api == "openai-agents responses":
        model: Any = agents.OpenAIResponsesModel(cell.model, client)
    else:
        model = agents.OpenAIChatCompletionsModel(cell.model, client)
    given = tools(cell, agents.function_tool)
    agent = agents.Agent(name="careful", instructions=INSTRUCTIONS, tools=given, model=model)
    turns, items = list[Turn](), list[Any]()
    for question in questions(cell):
        items.append({"role": "user", "content": question})
        if cell.stream:
            result: Any = agents.Runner.run_streamed(agent, items)
            async for _event in result.stream_events():
                pass
        else:
            result = await agents.Runner.run(agent, items)
        items = result.to_input_list()
        turns.append(Turn(str(result.final_output)))
    return turns


async def agent_framework(cell: Cell) -> list[Turn]:
    """agent-framework, with a session."""
    from agent_framework import Agent
    from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
    from openai import AsyncOpenAI

    responses = cell.api == "agent-framework responses"
    of: Any = OpenAIChatClient if responses else OpenAIChatCompletionClient
    asked = AsyncOpenAI(base_url=cell.base_url, api_key=cell.api_key, max_retries=0)
    client = of(model=cell.model, async_client=asked)
    agent = Agent(client=client, instructions=INSTRUCTIONS, tools=tools(cell))
    session, turns = agent.create_session(), list[Turn]()
    for question in questions(cell):
        if cell.stream:
            updates: Any = agent.run(question, stream=True, session=session)
            async for _update in updates:
                pass
            turns.append(Turn((await updates.get_final_response()).text))
        else:
            turns.append(Turn((await agent.run(question, session=session)).text))
    return turns


async def langgraph(cell: Cell) -> list[Turn]:
    """langgraph with langchain-openai: a graph of two nodes, and a state that goes on."""
    from langchain_core.messages import SystemMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition
    from pydantic import SecretStr

    model: Any = ChatOpenAI(
        model=cell.model,
        base_url=cell.base_url,
        api_key=SecretStr(cell.api_key),
        use_responses_api=cell.api == "langgraph responses",
        streaming=cell.stream,
        max_retries=0,
    )
    given = tools(cell, tool)
    model = model.bind_tools(given) if given else model

    async def ask(state: MessagesState) -> dict[str, Any]:
        history = [SystemMessage(INSTRUCTIONS), *state["messages"]]
        return {"messages": [await model.ainvoke(history)]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("tools", ToolNode(given))
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", tools_condition)
    graph.add_edge("tools", "ask")
    compiled, state, turns = graph.compile(), {"messages": list[Any]()}, list[Turn]()
    for question in questions(cell):
        state = await compiled.ainvoke({"messages": [*state["messages"], ("user", question)]})
        turns.append(Turn(state["messages"][-1].text))
    return turns


async def pydantic_ai(cell: Cell) -> list[Turn]:
    """pydantic-ai, with its message history."""
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if cell.api == "pydantic-ai messages":
        asked = AsyncAnthropic(base_url=cell.root, api_key=cell.api_key, max_retries=0)
        model: Any = AnthropicModel(cell.model, provider=AnthropicProvider(anthropic_client=asked))
    else:
        of: Any = OpenAIResponsesModel if cell.api == "pydantic-ai responses" else OpenAIChatModel
        client = AsyncOpenAI(base_url=cell.base_url, api_key=cell.api_key, max_retries=0)
        model = of(cell.model, provider=OpenAIProvider(openai_client=client))
    agent = Agent(model, instructions=INSTRUCTIONS, tools=tools(cell))
    turns, history = list[Turn](), list[Any]()
    for question in questions(cell):
        if cell.stream:
            # `run_stream` would end at the first text, tools or not.
            async with agent.run_stream_events(question, message_history=history) as events:
                *_, last = [event async for event in events]
            text, history = last.result.output, last.result.all_messages()
        else:
            result = await agent.run(question, message_history=history)
            text, history = result.output, result.all_messages()
        turns.append(Turn(text))
    return turns


def smolagents(cell: Cell) -> list[Turn]:
    """smolagents: an agent, which gives its answer by a tool; without tools its model alone."""
    from rich.console import Console
    from smolagents import AgentLogger, ChatMessage, LogLevel, OpenAIModel, ToolCallingAgent, tool
    from smolagents.models import MessageRole, agglomerate_stream_deltas

    model = OpenAIModel(cell.model, api_base=cell.base_url, api_key=cell.api_key)
    if cell.tools:
        agent = ToolCallingAgent(
            tools=tools(cell, tool),
            model=model,
            instructions=INSTRUCTIONS,
            stream_outputs=cell.stream,
            logger=AgentLogger(LogLevel.OFF, Console(quiet=True)),
        )
        return [Turn(str(agent.run(QUESTIONS[0])))]

    def text(role: Any, said: str) -> Any:
        return ChatMessage(role=role, content=[{"type": "text", "text": said}])

    history, turns = [text(MessageRole.SYSTEM, INSTRUCTIONS)], list[Turn]()
    for question in QUESTIONS:
        history.append(text(MessageRole.USER, question))
        if cell.stream:
            reply = agglomerate_stream_deltas(list(model.generate_stream(history)))
        else:
            reply = model.generate(history)
        history.append(reply)
        turns.append(Turn(str(reply.content)))
    return turns


BOTH = {
    "agno": agno,
    "openai-agents": openai_agents,
    "agent-framework": agent_framework,
    "langgraph": langgraph,
    "pydantic-ai": pydantic_ai,
}

if __name__ == "__main__":
    answer_cells(
        {f"{name} {api}": play for name, play in BOTH.items() for api in ("chat", "responses")}
        | {
            "agno messages": agno,
            "pydantic-ai messages": pydantic_ai,
            "smolagents chat": smolagents,
        },
        "agno",
        "openai-agents",
        "agent-framework-core",
        "langgraph",
        "pydantic-ai-slim",
        "smolagents",
    )
