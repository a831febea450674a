"""The record of `serve --record`: what a line holds, and a line that a kill cut."""

from __future__ import annotations

import json
from pathlib import Path

from tutelage.engine.script import ScriptedReply
from tutelage.gateway.call_log import CallLog
from tutelage.tracing import SpanRecord
from tutelage.types import JSON, UNBOUNDED, Sampling

from .conftest import Open

ASK: JSON = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "top_p": 0.5}


async def test_a_line_has_what_log_probabilities_depend_on(
    tmp_path: Path, attempt_session: Open
) -> None:
    log = CallLog(tmp_path / "calls.jsonl")
    called = ScriptedReply(tool_calls=(("f", "{}"),))
    unbounded = Sampling(max_tokens=UNBOUNDED)
    case = attempt_session("a", "b", called, "c", "d", "e", on_call=log, sampling=unbounded)
    function: JSON = {"name": "f", "strict": True, "parameters": {"type": "object"}}
    forced: JSON = {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    bodies: list[tuple[str, JSON]] = [
        ("/chat/completions", ASK | {"seed": 5, "n": 2, "max_tokens": 4}),
        ("/chat/completions", ASK | forced),
        ("/completions", {"model": "m", "prompt": ["1 + 1", [1, 2]]}),
        ("/chat/completions", ASK | {"max_tokens": 10**9}),
    ]
    for path, body in bodies:
        answer = await case.post(path, body)
        assert answer.status_code == 200, answer.text
    await case.attempt_session.aclose()
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    one, two, tool, text, ids, long = lines
    for line in lines:  # of its own choice, not of all
        ids_of = len(line["prompt_ids"]), len(line["token_ids"])
        assert line["usage"] == dict(zip(("input_tokens", "output_tokens"), ids_of, strict=True))
    assert (one["sampling"]["seed"], two["sampling"]["seed"]) == (5, 6)
    assert (one["sampling"]["max_tokens"], one["constraint"]) == (4, None)
    assert tool["constraint"] == {
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "json_schema": None,
        "choices": [],
    }
    assert tool["tools"][0]["function"]["strict"] is True
    assert (tool["sampling"]["seed"], tool["sampling"]["max_tokens"]) == (None, None)
    assert long["sampling"]["max_tokens"] == 10**9
    assert (text["prompt"], ids["prompt"]) == ("1 + 1", [1, 2])


def test_a_record_that_ends_within_a_line_goes_on_in_a_new_one(tmp_path: Path) -> None:
    path, span = tmp_path / "calls.jsonl", SpanRecord("0" * 32, "0" * 16, None, "plan", 1, 2)
    for before, lines in (("", []), ('{"a": 1}\n', ['{"a": 1}']), ('{"half', ['{"half'])):
        path.write_text(before)
        log = CallLog(path)
        log.log_spans("run", [span])
        log.close()
        assert path.read_text().splitlines()[:-1] == lines
        assert json.loads(path.read_text().splitlines()[-1])["span"]["name"] == "plan"
