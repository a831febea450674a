"""Which models an attempt has, and what each kind of client is told of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tutelage.gateway import Gateway, ScriptedClient

from .conftest import ASK, Open

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")


async def test_of_several_models_none_answers_to_another_name(attempt_session: Open) -> None:
    """What a request is answered by is what the list of models says, in every dialect."""
    judge = ScriptedClient(["judged"])
    case = attempt_session("main", clients={"judge": judge}, token_budget=100)
    names = [m["id"] for m in (await case.http.get(f"{case.base}/models")).json()["data"]]
    assert names == ["policy", "judge"]
    for name, said, spent in (("judge", "judged", 0), ("policy", "main", 5)):
        answer = await case.chat(model=name)
        assert answer.json()["choices"][0]["message"]["content"] == said
        assert case.attempt_session.spent == spent
    for path, asked in (
        ("/chat/completions", {"messages": ASK}),
        ("/responses", {"input": "x"}),
        ("/messages", {"messages": ASK, "max_tokens": 5}),
        ("/messages/count_tokens", {"messages": ASK}),
        ("/completions", {"prompt": "x"}),
    ):
        refused = await case.post(path, {"model": "gpt-4o", **asked})
        assert refused.status_code == 404, path
        assert "available models: policy, judge" in refused.json()["error"]["message"]
    assert (await case.http.get(f"{case.base}/models/gpt-4o")).status_code == 404


def clients(live: Callable[..., Gateway], *others: str) -> tuple[Any, Any]:
    """OpenAI's and Anthropic's client of one attempt."""
    judges = {name: ScriptedClient(["x"]) for name in others}
    env = live().open("r", "a", ScriptedClient(["x"]), clients=judges, model="org/own").env()
    return (
        openai.OpenAI(base_url=env["OPENAI_BASE_URL"], api_key=env["OPENAI_API_KEY"]),
        anthropic.Anthropic(base_url=env["ANTHROPIC_BASE_URL"], api_key=env["ANTHROPIC_API_KEY"]),
    )


def test_both_sdks_read_the_models(live: Callable[..., Gateway]) -> None:
    theirs, others = clients(live, "judge")
    assert [m.id for m in theirs.models.list()] == ["org/own", "judge"]
    assert theirs.models.retrieve("org/own").object == "model"
    page = others.models.list()
    assert [(m.id, m.display_name, m.type) for m in page.data] == [
        ("org/own", "org/own", "model"),
        ("judge", "judge", "model"),
    ]
    assert (page.first_id, page.last_id, page.has_more) == ("org/own", "judge", False)
    found = others.models.retrieve("org/own")
    assert (found.id, found.created_at.year, found.lifecycle) == ("org/own", 1970, "active")
    assert not found.model_extra
    assert [m.id for m in others.beta.models.list()] == ["org/own", "judge"]
