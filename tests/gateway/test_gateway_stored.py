"""What a client asks of a stored response: itself, and its input items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tutelage.gateway import Gateway, ScriptedClient

from .conftest import Open

openai = pytest.importorskip("openai")
WORDS = ("one", "two", "three", "four", "five")


def client(live: Callable[..., Gateway], *script: Any) -> Any:
    found = live().open("r", "a", ScriptedClient(script))
    return openai.OpenAI(base_url=found.base_url, api_key=found.api_key)


def said(items: Any) -> list[str]:
    return [item.content[0].text for item in items]


def test_input_items_come_all_at_once(live: Callable[..., Gateway]) -> None:
    api = client(live, "ok")
    kept = api.responses.create(model="m", input=[{"role": "user", "content": w} for w in WORDS])
    listed = api.responses.input_items.list
    assert said(listed(kept.id).data) == [*reversed(WORDS)], "the latest first, as at OpenAI"
    first = listed(kept.id, order="asc", limit=2)
    assert said(first.data) == [*WORDS]
    assert (first.first_id, first.last_id) == (first.data[0].id, first.data[-1].id)
    assert not first.has_more
    assert said(first) == [*WORDS], "the SDK follows the pages"


async def test_a_response_is_read_again(attempt_session: Open) -> None:
    case = attempt_session("ok")
    kept = (await case.respond()).json()
    assert (await case.http.get(f"{case.base}/responses/{kept['id']}")).json() == kept
    for method, path in (("DELETE", ""), ("POST", "/cancel")):
        url = f"{case.base}/responses/{kept['id']}{path}"
        assert (await case.http.request(method, url)).status_code in (404, 405)
