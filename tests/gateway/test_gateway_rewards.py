"""Rewards by HTTP: whose they are, which one counts, what is refused, and what comes too late."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from tutelage.types import Mode

from .conftest import ASK, Open


async def post(case: Any, body: Any, path: str = "/rewards", **headers: str) -> httpx2.Response:
    return await case.post(path, body, **headers)


async def test_the_last_reward_of_a_name_counts(attempt_session: Open) -> None:
    case = attempt_session()
    answer = await post(case, {"reward": 0.25, "format": True})
    assert answer.status_code == 200
    assert answer.json() == {
        "object": "reward", "attempt": "att_0", "reward": 0.25, "format": 1.0,
    }  # fmt: skip
    await post(case, {"reward": 1})
    await post(case, {"speed": -2.5})
    assert case.attempt_session.posted.named_values == [
        ("reward", 1.0),
        ("format", 1.0),
        ("speed", -2.5),
    ]
    assert case.attempt_session.posted.final.result() == 0.25  # the first: it ends the waiting


async def test_a_repeat_changes_nothing_and_gets_the_first_answer(attempt_session: Open) -> None:
    case = attempt_session()
    first = await post(case, {"reward": 0.5}, idempotency_key="one")
    await post(case, {"reward": 1.0}, idempotency_key="two")
    again = await post(case, {"reward": 0.5}, idempotency_key="one")
    assert (again.status_code, again.json()) == (200, first.json())
    assert case.attempt_session.posted.named_values == [("reward", 1.0)]
    other = await post(case, {"reward": 0.75}, idempotency_key="one")
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
    assert other.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    "body",
    [b"[]", b"{}", b'{"reward": NaN}', b'{"reward": 1e10}', b'{"reward": null}', b'{"reward": 1'],
)
async def test_what_is_no_finite_number_is_refused(attempt_session: Open, body: bytes) -> None:
    case = attempt_session()
    answer = await case.http.post(case.attempt_session.base_url + "/rewards", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in ("invalid_reward", "invalid_json")
    told = (await case.post("/rewards", {"reward": "x"})).json()["error"]
    assert told["message"].startswith("`reward` = 'x': ")
    assert case.attempt_session.posted.named_values == []
    assert not case.attempt_session.posted.final.done()


@pytest.mark.parametrize("path", ["/rewards", "/events"])
async def test_a_late_reward_does_not_count(attempt_session: Open, path: str) -> None:
    case = attempt_session()
    body: Any = {"reward": 0.5}
    if path == "/events":
        body = {"event_type": "reward", "data": {"value": 0.5}}
    await case.attempt_session.aclose()
    answer = await post(case, body, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "attempt_closed")
    assert answer.headers["x-should-retry"] == "false"
    assert case.attempt_session.posted.named_values == []


# ---------------------------------------------------------------- agent-lightning 1.0


@pytest.mark.parametrize("mode", list(Mode))
async def test_agents_of_agent_lightning_find_their_attempt(
    attempt_session: Open, mode: Mode
) -> None:
    case = attempt_session("It is 2.")
    env = case.attempt_session.env(mode=mode)
    kind = "train" if mode is Mode.TRAIN else "val"
    assert f"/rollout/roll_0/attempt/att_0/mode/{kind}/openai/v1" in env["AGL_OPENAI_BASE_URL"]
    assert env["AGL_EVENT_URL"].split("/rollouts/")[1].split("/")[0] == "roll_0"
    del case.http.headers["authorization"]
    key = {"authorization": f"Bearer {env['AGL_KEY']}"}
    body = {"model": "auto", "messages": ASK}
    said = await case.http.post(
        env["AGL_OPENAI_BASE_URL"] + "/chat/completions", json=body, headers=key
    )
    assert said.json()["choices"][0]["message"]["content"] == "It is 2."
    event: dict[str, Any] = {
        "event_type": "reward",
        "data": {"value": 0.75, "source": "agent", "reason": "right", "metadata": {"turns": 2}},
    }
    posted = await case.http.post(env["AGL_EVENT_URL"], json=event, headers=key)
    assert posted.status_code == 200
    told = posted.json()
    assert told.pop("timestamp") > 0
    assert told == event | {"rollout_id": "roll_0", "attempt_id": "att_0"}
    other = {"event_type": "agent_output", "data": {"patch": "..."}}
    assert (await case.http.post(env["AGL_EVENT_URL"], json=other, headers=key)).status_code == 200
    assert case.attempt_session.posted.named_values == [("reward", 0.75)]
