"""A gateway behind an ASGI transport, one that really listens, and clients whose hand is held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tutelage.engine.chat import ChatSession
from tutelage.engine.script import ScriptedReply
from tutelage.gateway import AttemptSession, Gateway, GatewayLimits, ScriptedClient
from tutelage.policy.codec import Codec
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine
from tutelage.types import Call, Message, Sampling

CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Compute.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
FLAT_CALCULATOR: dict[str, Any] = {"type": "function", **CALCULATOR["function"]}
ASK = [{"role": "user", "content": "What is 1 + 1?"}]
TOOL_TURN = ScriptedReply("Let me see.", (("calculator", '{"expression":"1+1"}'),))


def scripted_chat(codec: Codec, *script: str) -> ChatSession:
    """A policy's chat whose engine says these lines."""
    return ChatSession(ScriptedEngine(codec, script), codec, seeds=SeedTree(0), name="att")


class Puppet:
    """A client that answers when `go` is set, and says whether it was cancelled."""

    def __init__(self) -> None:
        self.started = self.cancelled = 0
        self.go = asyncio.Event()
        self.inner = ScriptedClient(["done"])
        self.codec = self.inner.codec
        self.on_token: Callable[[Sequence[int]], None] | None = None

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        sampling: Sampling,
        on_token: Callable[[Sequence[int]], None] | None = None,
        **given: Any,
    ) -> Call:
        self.started += 1
        self.on_token = on_token
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await self.inner.chat(messages, sampling=sampling, **given)


@dataclass(frozen=True, slots=True)
class Case:
    """One attempt and a client of it."""

    gateway: Gateway
    attempt_session: AttemptSession
    client: Any
    http: httpx2.AsyncClient

    @property
    def base(self) -> str:
        """The session's base URL."""
        return self.attempt_session.base_url

    async def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        """POST JSON below the session's base URL."""
        given = {k.replace("_", "-"): v for k, v in headers.items()}
        return await self.http.post(self.attempt_session.base_url + path, json=body, headers=given)

    async def chat(self, **body: Any) -> httpx2.Response:
        """A chat completion."""
        return await self.post("/chat/completions", {"model": "m", "messages": ASK, **body})

    async def respond(self, **body: Any) -> httpx2.Response:
        """A response."""
        return await self.post("/responses", {"model": "m", "input": "What is 1 + 1?", **body})


Open = Callable[..., Case]


@pytest.fixture
async def attempt_session() -> AsyncGenerator[Open]:
    """`session("text", ScriptedReply(...))` or `session(client)`: an attempt served in this
    loop."""
    opened: list[Case] = []

    def make(
        *script: Any,
        gateway: Gateway | None = None,
        limits: GatewayLimits | None = None,
        **given: Any,
    ) -> Case:
        client = script[0] if len(script) == 1 and hasattr(script[0], "chat") else None
        client = client or ScriptedClient(script or ["It is 2."])
        gateway = gateway or Gateway(limits=limits)
        number = len(opened)
        found = gateway.open(f"roll_{number}", f"att_{number}", client, **given)
        http = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=gateway.app),
            headers={"authorization": f"Bearer {found.api_key}"},
        )
        opened.append(Case(gateway, found, client, http))
        return opened[-1]

    yield make
    for case in opened:
        await case.http.aclose()
        await case.attempt_session.aclose()
        await asyncio.to_thread(case.gateway.close)


@pytest.fixture
def live() -> Generator[Callable[..., Gateway]]:
    """`live(limits=...)`: a gateway that listens on loopback in its own thread."""
    started: list[Gateway] = []

    def make(**given: Any) -> Gateway:
        started.append(Gateway(**given).start())
        return started[-1]

    yield make
    for gateway in started:
        gateway.close()


def events(text: str) -> list[str]:
    """The data of server-sent events."""
    blocks = [b for b in text.split("\n\n") if b]
    return [next(x[6:] for x in b.split("\n") if x.startswith("data: ")) for b in blocks]
