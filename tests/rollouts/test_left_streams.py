"""A stream that its agent leaves: the agent acted on what had come, so the call is on record and
trained; and a seed of the agent's own does not make one sample of a task's rollouts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from live_parts import echo, play, specs

from tutelage.agents.session import RolloutSession
from tutelage.engine.protocol import Request
from tutelage.gateway import Gateway
from tutelage.policy.codec import Codec
from tutelage.resources import LLM
from tutelage.rollouts.rows import build_rows
from tutelage.testing import ScriptedEngine
from tutelage.types import Rollout, RolloutStatus, Sampled

BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {},
    "/responses": {},
    "/messages": {"max_tokens": 16},
    "/completions": {},
}


class Halting(ScriptedEngine):
    """Hands a reply's first tokens out at once, and ends it when its reader has long left; with
    `forever` it ends when it is cancelled."""

    def __init__(self, codec: Codec, *, forever: bool = False) -> None:
        super().__init__(codec, lambda _: "one two")
        self.cancelled = 0
        self._seconds = 3600.0 if forever else 0.5

    async def sample(self, request: Request) -> Sampled:
        """See `Engine`."""
        sampled = await super().sample(replace(request, on_token=None))
        try:
            if request.on_token is not None:
                request.on_token(sampled.token_ids[:-1])
            await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return sampled


async def begin(llm: LLM, path: str, question: str, *, stream: bool = True) -> str:
    """Ask, and leave at the first text; without a stream, leave before the answer. The id of a
    response."""
    prompt = {"prompt": question} if path == "/completions" else {"input": question}
    said = prompt if path in ("/completions", "/responses") else {"messages": [_said(question)]}
    body = {"model": llm.model, "stream": stream, **said, **BODIES[path]}
    headers = {"authorization": f"Bearer {llm.api_key}"}
    url = f"{llm.endpoint}{path}"
    async with (
        httpx2.AsyncClient(timeout=30 if stream else 0.2) as http,
        http.stream("POST", url, json=body, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        named = ""
        async for line in answer.aiter_lines():
            if '"resp_' in line and not named:
                named = "resp_" + line.split('"resp_')[1].split('"')[0]
            if "one" in line:
                return named
    raise AssertionError("it said nothing")


def _said(question: str) -> dict[str, str]:
    return {"role": "user", "content": question}


def rows(done: Rollout) -> int:
    return len(build_rows(done.last.calls, "main"))


@pytest.mark.parametrize("path", BODIES)
async def test_what_was_begun_is_sampled_to_its_end_and_trained(
    gateway: Gateway, codec: Codec, path: str
) -> None:
    seen: list[str] = []

    async def agent(task: Any, llm: LLM, rollout: RolloutSession) -> float:
        await begin(llm, path, task["question"])
        return 1.0

    engine = Halting(codec)
    played = await play(gateway, codec, agent, 3, engine=engine)
    for done in played:
        (call,) = done.last.calls
        assert (call.reply.content, call.policy) == ("one two", "main")
        assert done.last.status is RolloutStatus.SUCCEEDED
        assert rows(done) == 1
        seen.append(call.id)
    assert engine.cancelled == 0
    assert len(set(seen)) == 3


async def test_what_nobody_saw_anything_of_is_cancelled(gateway: Gateway, codec: Codec) -> None:
    """A client whose time is over before an answer came has acted on nothing."""

    async def agent(task: Any, llm: LLM) -> float:
        with pytest.raises(httpx2.TimeoutException):
            await begin(llm, "/chat/completions", task["question"], stream=False)
        while not engine.cancelled:
            await asyncio.sleep(0.01)
        return 1.0

    engine = Halting(codec, forever=True)
    (done,) = await play(gateway, codec, agent, 1, engine=engine)
    assert (done.last.calls, engine.cancelled) == ((), 1)


async def test_a_seed_of_the_agents_does_not_count(gateway: Gateway, codec: Codec) -> None:
    """Rollouts of a group are to differ, so each samples by the run's own seeds."""

    async def seeded(task: Any, llm: LLM) -> float:
        async with httpx2.AsyncClient(timeout=30) as http:
            body = {"model": llm.model, "messages": [_said(task["question"])], "seed": 42}
            headers = {"authorization": f"Bearer {llm.api_key}"}
            url = f"{llm.endpoint}/chat/completions"
            assert (await http.post(url, json=body, headers=headers)).status_code == 200
        return 1.0

    async def silent(task: Any, llm: LLM) -> float:
        await llm.chat(task["question"])
        return 1.0

    engines = [echo(codec), echo(codec)]
    for agent, engine in zip((seeded, silent), engines, strict=True):
        await play(gateway, codec, agent, 3, engine=engine, chosen=specs(3))
    drawn = [sorted(request.seed for request in engine.requests) for engine in engines]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3
