"""Which models an attempt has, and what each kind of client is told of them."""

from __future__ import annotations

from tutelage.gateway import ScriptedClient

from .conftest import ASK, Open


async def test_of_several_models_none_answers_to_another_name(attempt_session: Open) -> None:
    """What a request is answered by is what the list of models says, in every dialect."""
    case = attempt_session("main", clients={"judge": ScriptedClient(["judged"])})
    names = [m["id"] for m in (await case.http.get(f"{case.base}/models")).json()["data"]]
    assert names == ["policy", "judge"]
    for name, said in (("policy", "main"), ("judge", "judged")):
        answer = await case.chat(model=name)
        assert answer.json()["choices"][0]["message"]["content"] == said
    for path, asked in (
        ("/chat/completions", {"messages": ASK}),
        ("/responses", {"input": "x"}),
        ("/messages", {"messages": ASK, "max_tokens": 5}),
        ("/messages/count_tokens", {"messages": ASK}),
        ("/completions", {"prompt": "x"}),
    ):
        refused = await case.post(path, {"model": "gpt-4o", **asked})
        assert refused.status_code == 404, path
        assert "there are: policy, judge" in refused.json()["error"]["message"]
    assert (await case.http.get(f"{case.base}/models/gpt-4o")).status_code == 404
