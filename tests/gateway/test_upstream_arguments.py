"""Arguments of another server's tool calls that are JSON to some readers only: in messages they are
one field with their text, and nothing of them is lost on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .test_gateway_passing_streams import part
from .test_reply_forms import BODIES, DONE, Case, chunk, whole

ODD = ['{"x": NaN}', '{"x": 1e999}', '{"x": 123456789012345678901234567890}', '{"x": "\\ud800"}']


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "said"),
    [*(("/messages", odd) for odd in ODD), *((p, ODD[0]) for p in BODIES if p != "/messages")],
)
async def test_they_are_told_whole(tmp_path: Path, path: str, said: str, stream: bool) -> None:
    function = {"id": "c", "type": "function", "function": {"name": "f", "arguments": said}}
    pieces = part(0, "c", "f", said[:6]), part(0, None, None, said[6:])
    streamed = b"".join(map(chunk, pieces)) + chunk({}, "tool_calls") + DONE
    case = Case(tmp_path, streamed if stream else whole({"tool_calls": [function]}, "tool_calls"))
    answer = await case.ask(path, stream=stream)
    assert answer.status_code == 200
    assert '"error":{' not in answer.text
    assert case.lines[0]["reply"]["tool_calls"][0]["function"]["arguments"] == said
    if path != "/messages":
        return
    if not stream:
        assert answer.json()["content"][0]["input"] == {"arguments": said}
        return
    told = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]
    text = "".join(each["delta"].get("partial_json", "") for each in told if "delta" in each)
    assert json.loads(text)["arguments"] == said
    assert "NaN" not in text.replace(json.dumps(said)[1:-1], "")
