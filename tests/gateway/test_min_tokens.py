"""`min_tokens` over HTTP: a policy's turn does not end before; who is not sampled here is not asked
for it."""

from __future__ import annotations

from typing import Any

from tutelage.engine.chat import ChatSession
from tutelage.engine.driver import EngineDriver
from tutelage.seeds import SeedTree
from tutelage.testing import tiny_engine

from .conftest import ASK, Open

BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": ASK},
    "/responses": {"input": "What is 1 + 1?"},
    "/messages": {"messages": ASK},
    "/completions": {"prompt": "1 + 1"},
}
LIMITS = {"/responses": "max_output_tokens"}


async def test_no_turn_ends_before(tiny: Any, attempt_session: Open) -> None:
    policy = tiny("qwen2")
    driver = EngineDriver(tiny_engine(policy, slots=1), schedule="free")
    chat = ChatSession(driver, policy.codec, seeds=SeedTree(0), name="att")
    case = attempt_session(chat)
    for path, body in BODIES.items():
        limit = {LIMITS.get(path, "max_tokens"): 9}
        answer = await case.post(path, {"model": "m", "min_tokens": 8, "seed": 3} | body | limit)
        assert answer.status_code == 200, answer.text
        call = chat.calls[-1]
        assert len(call.sampled.token_ids) >= 8
        assert len(set(call.sampled.allowed[:8])) == 1
        assert call.constraint is not None
        assert call.constraint.min_tokens == 8


async def test_a_script_is_not_sampled(attempt_session: Open) -> None:
    answer = await attempt_session("x").chat(min_tokens=3)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "min_tokens"
