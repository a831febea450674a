"""What programs send by default runs: fields that ask nothing of the sampler are ignored and
recorded, and tools of types that run at a server are left out. `programs/` has what Codex, Claude
Code, opencode and Qwen Code sent, long texts cut, and is written by `python -m
benchmarks.gateway.programs BINARIES --record tests/gateway/programs`; the bodies below have more
such fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gateway.programs import PROGRAMS, Program, scripted
from benchmarks.gateway.recording import whole

from tutelage.rollouts.rows import build_rows

from .conftest import CALCULATOR, Open

FOLDER = Path(__file__).parent / "programs"
UNUSED: dict[str, set[str]] = {
    "codex": {"client_metadata", "prompt_cache_key", "reasoning", "tools"},
    "claude": {"metadata", "output_config"},
    "opencode": set(),
    "qwen": set(),
}

CLAUDE_CODE: dict[str, Any] = {
    "model": "m",
    "max_tokens": 64,
    "stream": True,
    "messages": [{"role": "user", "content": "hi"}],
    "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
    "tools": [
        {"name": "calculator", "description": "d", "input_schema": {"type": "object"}},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "metadata": {"user_id": "u"},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
}
PI: dict[str, Any] = {
    "model": "m",
    "input": "hi",
    "reasoning": {"effort": "medium", "summary": "auto"},
}
HINTS: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "reasoning_effort": "low",
    "metadata": {"sessionId": "s", "promptId": "p"},
    "tools": [CALCULATOR, {"type": "web_search"}],
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
async def test_what_a_program_sent_is_answered_and_makes_the_rows_that_it_made(
    attempt_session: Open, program: Program
) -> None:
    records: list[Any] = []
    chat = scripted(program)
    case = attempt_session(chat, on_call=records.append)
    sent = whole(json.loads((FOLDER / f"{program.name}.json").read_text("utf-8"))["requests"])
    for request in sent:
        path = request["path"].removeprefix("/v1")
        answer = await case.post(path, request["body"], **request["headers"])
        assert answer.status_code == 200, answer.text
    await case.attempt_session.aclose()
    assert len(build_rows(chat.calls)) == program.rows
    assert {call.name for each in chat.calls for call in each.reply.tool_calls} == {
        program.shell[0]
    }
    for record, request in zip(records, sent, strict=True):
        unused = record.request.unused
        assert set(unused) == UNUSED[program.name]
        kinds = {tool["type"] for tool in unused.get("tools", ())}
        assert kinds == ({"namespace", "web_search"} if program.name == "codex" else set())
        kept = len(request["body"].get("tools", ())) - len(unused.get("tools", ()))
        assert len(record.calls[0].tools) == kept


def test_they_name_no_machine_and_no_key() -> None:
    texts = [path.read_text("utf-8") for path in FOLDER.glob("*.json")]
    assert len(texts) == len(PROGRAMS)
    for words in ("127.0.0.1", "localhost", "Bearer", "/tmp", "sk-"):
        assert not [text for text in texts if words in text]


@pytest.mark.parametrize(
    ("path", "body", "unused"),
    [
        ("/messages?beta=true", CLAUDE_CODE, {"metadata", "output_config", "tools"}),
        ("/responses", PI, {"reasoning"}),
        ("/chat/completions", HINTS, {"metadata", "reasoning_effort", "tools"}),
    ],
)
async def test_the_defaults_of_a_program_run_and_are_on_record(
    attempt_session: Open, path: str, body: dict[str, Any], unused: set[str]
) -> None:
    records: list[Any] = []
    case = attempt_session("Hello.", on_call=records.append)
    answer = await case.post(path, body)
    assert answer.status_code == 200
    assert "Hello." in answer.text
    await case.attempt_session.aclose()
    (record,) = records
    found = record.request.unused
    assert set(found) == unused
    assert all(found[name] == body[name] for name in unused - {"tools"})
    if "tools" in unused:
        kept = [tool.name for tool in record.calls[0].tools]
        assert kept == ["calculator"]
        assert len(found["tools"]) == len(body["tools"]) - 1


@pytest.mark.parametrize(
    ("path", "more", "named"),
    [
        ("/responses", {"presence_penalty": 1}, "presence_penalty"),
        ("/messages", {"guided_regex": "a+"}, "guided_regex"),
        ("/messages", {"context_management": {"edits": [{"type": "clear_tool_uses"}]}}, "edits"),
        ("/chat/completions", {"repeat_penalty": 1.1}, "repeat_penalty"),
        ("/chat/completions", {"structured_outputs": {"choice": ["a"]}}, "choice"),
    ],
)
async def test_what_changes_sampling_is_refused_by_name(
    attempt_session: Open, path: str, more: dict[str, Any], named: str
) -> None:
    bodies = {"/responses": PI, "/messages": CLAUDE_CODE, "/chat/completions": HINTS}
    answer = await attempt_session("x").post(path, bodies[path] | {"stream": False} | more)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
