"""A recorded call has the id that its client saw, by which spans and evaluations name it."""

from __future__ import annotations

from typing import Any

from live_parts import play

from tutelage import rollout
from tutelage.gateway import Gateway
from tutelage.rollouts.rows import build_rows


async def test_calls_over_http_are_recorded_under_the_ids_that_their_client_got(tiny: Any) -> None:
    import httpx2

    got: dict[str, list[str]] = {}

    @rollout
    async def agent(task: dict[str, Any], main: Any, rollout: Any) -> float:
        body = {"model": main.model, "messages": [{"role": "user", "content": task["question"]}]}
        headers = {"authorization": f"Bearer {main.api_key}"}
        async with httpx2.AsyncClient(base_url=main.endpoint, headers=headers) as client:
            chat = await client.post("/chat/completions", json={**body, "n": 2})
            asked = {"model": main.model, "input": task["question"]}
            response = await client.post("/responses", json=asked)
        first = chat.json()["id"]
        direct = await main.chat(task["question"], max_tokens=4)
        got[rollout.rollout_id] = [first, f"{first}-1", response.json()["id"], direct.id]
        return 1.0

    with Gateway() as gateway:
        rollouts = await play(gateway, tiny("qwen2").codec, agent, 4)
    every = [call.id for r in rollouts for call in r.last.calls]
    assert len(every) == len({*every}) == 16
    for r in rollouts:
        assert {c.id for c in r.last.calls} == {*got[r.id]}
        assert [c.index for c in r.last.calls] == [0, 1, 2, 3]
        assert sum(row.n_trained for row in build_rows(r.last.calls)) > 0
