"""`thinking.display` `omitted`: a thought without its text, which comes back whole all the same."""

from __future__ import annotations

import json
from typing import Any

from tutelage.engine.script import ScriptedReply

from .conftest import Open, events

SAID = "<think>One and one.</think>\n\nIt is 2."
ASK: list[Any] = [{"role": "user", "content": "1 + 1?"}]


async def test_the_text_is_left_out_and_the_signature_restores_the_turn(
    attempt_session: Open,
) -> None:
    case = attempt_session(ScriptedReply(SAID), ScriptedReply(SAID), "Bye.")
    thinking = {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}
    body: dict[str, Any] = {"model": "m", "max_tokens": 400, "thinking": thinking}
    whole = (await case.post("/messages", {**body, "messages": ASK})).json()
    thought, text = whole["content"]
    assert (thought["type"], thought["thinking"], text["text"]) == ("thinking", "", "It is 2.")
    streamed = await case.post("/messages", {**body, "messages": ASK, "stream": True})
    deltas = [each.get("delta", {}) for each in map(json.loads, events(streamed.text))]
    kinds = [each["type"] for each in deltas if "type" in each]
    assert "thinking_delta" not in kinds
    assert [d["signature"] for d in deltas if "signature" in d] == [thought["signature"]]
    back = {"role": "assistant", "content": whole["content"]}
    more = [*ASK, back, {"role": "user", "content": "Bye!"}]
    await case.post("/messages", {**body, "messages": more})
    assert case.client.calls[2].messages[1].content == SAID


async def test_shown_otherwise(attempt_session: Open) -> None:
    case = attempt_session(ScriptedReply(SAID))
    thinking = {"type": "enabled", "budget_tokens": 1024, "display": "summarized"}
    body = {"model": "m", "max_tokens": 400, "thinking": thinking, "messages": ASK}
    answer = (await case.post("/messages", body)).json()
    assert answer["content"][0]["thinking"] == "One and one."
