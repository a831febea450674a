"""Bodies that real clients sent, changed at random: each is answered, none with a failure of
ours."""

from __future__ import annotations

from itertools import islice

import httpx2
import pytest

from tutelage.gateway import Gateway, ScriptedClient

from .conftest import TOOL_TURN
from .malformed import GOOD, malformed, told


@pytest.mark.full
async def test_malformed_bodies_of_every_dialect_are_answered() -> None:
    gateway = Gateway()
    session = gateway.open("r", "a", ScriptedClient(["It is 2.", TOOL_TURN], keep=10))
    headers = {"authorization": f"Bearer {session.api_key}"}
    transport = httpx2.ASGITransport(app=gateway.app, raise_app_exceptions=True)
    paths: set[str] = set()
    async with httpx2.AsyncClient(
        transport=transport, base_url=gateway.url, headers=headers
    ) as http:
        for path, content in malformed(1000, seed=1):
            answer = await http.post(path, content=content)
            assert answer.status_code < 500, (path, content, answer.text)
            assert answer.status_code < 400 or told(answer), answer.text
            paths.add(path)
        good = await http.post("/v1/chat/completions", json=GOOD)
    assert good.status_code == 200
    assert paths >= {"/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"}
    await session.aclose()
    gateway.close()


def test_they_are_the_same_for_a_seed() -> None:
    one, two, other = (list(islice(malformed(40, seed), 40)) for seed in (3, 3, 4))
    assert one == two != other
