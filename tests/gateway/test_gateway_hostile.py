"""Bodies that real clients sent, changed at random: each is answered, none with a failure of ours.

`python -m benchmarks.gateway.hostile` sends thousands of them, and attacks in other ways too.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import httpx2
import pytest
from benchmarks.gateway.hostile import GOOD, malformed, told

from tutelage.gateway import Gateway, ScriptedClient
from tutelage.gateway.dialects import DIALECTS, StoredResponses
from tutelage.gateway.dialects.parts import MAX_PARTS
from tutelage.gateway.errors import ApiError
from tutelage.types import Sampling

from .conftest import TOOL_TURN


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


BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
U = {"role": "user", "content": "a"}
MANY = MAX_PARTS + 1


@pytest.mark.parametrize(
    ("dialect", "body", "path"),
    [
        ("chat.completions", {"messages": [U] * MANY}, "messages[10000]"),
        ("messages", {"messages": [U] * MANY}, "messages[10000]"),
        ("responses", {"input": [U] * MANY}, "input[10000]"),
        ("messages", {"messages": [U], "system": [{"type": "text", "text": "a"}] * MANY},
         "system[10000]"),
        ("chat.completions", {"messages": [U, {"role": "user", "content": ["a"] * MANY}]},
         "messages[1]"),
        ("messages", {"messages": [U, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text"}] * MANY}]}]},
         "messages[1]"),
        ("chat.completions", {"messages": [U, {"role": "assistant", "tool_calls": [3] * MANY}]},
         "messages[1]"),
    ],
)  # fmt: skip
def test_too_many_messages_or_parts_are_refused_before_they_are_read(
    dialect: str, body: dict[str, Any], path: str
) -> None:
    """What does not fit in the last of them is never seen."""
    with pytest.raises(ApiError, match="at most 10000 messages and message parts") as refused:
        BY_NAME[dialect].read({"model": "m", **body}, Sampling(), StoredResponses())
    assert refused.value.param == path
    assert len(refused.value.message) < 250


def test_as_many_as_may_be_are_read() -> None:
    body = {"model": "m", "messages": [U] * (MAX_PARTS - 9) + [{"role": "user", "content": "ab"}]}
    request = BY_NAME["chat.completions"].read(body, Sampling(), StoredResponses())
    assert len(request.messages) == MAX_PARTS - 8
