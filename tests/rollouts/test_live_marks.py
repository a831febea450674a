"""Marking an agent by the name that its framework gives it in its spans."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
from live_parts import play

from tutelage.gateway import Gateway
from tutelage.policy.codec import Codec
from tutelage.resources import LLM
from tutelage.tracing import span


async def framework(name: str, llm: LLM, question: str, *, tells_response: bool = True) -> None:
    """An instrumented framework, by the conventions for generative AI: a span for the agent, one
    for its call, and nothing in the request that names the agent."""
    with span(f"invoke_agent {name}", {"gen_ai.agent.name": name}), span("chat m") as here:
        async with httpx2.AsyncClient(timeout=30) as http:
            done = await http.post(
                f"{llm.endpoint}/chat/completions",
                json={"model": llm.model, "messages": [{"role": "user", "content": question}]},
                headers={"authorization": f"Bearer {llm.api_key}"},
            )
        if tells_response:
            here.set_attribute("gen_ai.response.id", done.json()["id"])


async def test_a_frameworks_agent_is_marked_by_its_own_name(gateway: Gateway, codec: Codec) -> None:
    """Two at once, so that only the response tells whose call it was."""

    async def agent(task: Any, llm: LLM, rollout: Any) -> float:
        await asyncio.gather(
            framework("Math Agent", llm, "q1"), framework("User Simulator", llm, "q2")
        )
        rollout.mark_agent_as_trainable("Math Agent")
        return 1.0

    played = await play(gateway, codec, agent, 2, on_spans=lambda *_: None)
    for done in played:
        made = {c.agent: (c.messages[0].content, c.policy) for c in done.last.calls}
        assert made == {"Math Agent": ("q1", "main"), "User Simulator": ("q2", None)}


async def test_without_a_response_id_the_agent_at_work_is_taken(
    gateway: Gateway, codec: Codec
) -> None:
    async def agent(task: Any, llm: LLM, rollout: Any) -> float:
        with span("invoke_agent Team", {"gen_ai.agent.name": "Team"}):
            await framework("Math Agent", llm, "q1", tells_response=False)
            await llm.chat("q2")
        rollout.mark_agent_as_trainable("Math Agent")
        return 1.0

    (done,) = await play(gateway, codec, agent, 1, on_spans=lambda *_: None)
    made = [(c.agent, c.policy) for c in done.last.calls]
    assert made == [("Math Agent", "main"), ("Team", None)]


async def test_a_name_of_the_rollouts_own_wins(gateway: Gateway, codec: Codec) -> None:
    async def agent(task: Any, rollout: Any) -> float:
        with rollout.agent("clerk"):
            await framework("Math Agent", rollout.llm("main"), "q1")
        await framework("Math Agent", rollout.llm("main"), "q2")
        rollout.mark_agent_as_trainable("clerk")
        rollout.mark_agent_as_trainable("main")
        return 1.0

    (done,) = await play(gateway, codec, agent, 1, on_spans=lambda *_: None)
    made = [(c.agent, c.policy) for c in done.last.calls]
    assert made == [("clerk", "main"), ("main", "main")]
