"""What programs send by default runs: fields that ask nothing of the sampler are ignored and
recorded, and tools of types that run at a server are left out. The bodies follow what Codex, Claude
Code and pi sent; `HINTS` is one of chat completions with such fields."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import CALCULATOR, FLAT_CALCULATOR, Open

CODEX: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "store": False,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "client_metadata": {"x-codex-window-id": "a"},
    "prompt_cache_key": "k",
    "input": [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "say hello"}],
        }
    ],
    "tools": [
        FLAT_CALCULATOR,
        {"type": "web_search"},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
        {
            "type": "namespace",
            "name": "multi_agent_v1",
            "description": "d",
            "tools": [{"type": "function", "name": "f", "parameters": {}}],
        },
    ],
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


@pytest.mark.parametrize(
    ("path", "body", "unused"),
    [
        ("/responses", CODEX, {"client_metadata", "prompt_cache_key", "reasoning", "tools"}),
        ("/messages?beta=true", CLAUDE_CODE, {"metadata", "output_config", "tools"}),
        ("/responses", PI, {"reasoning"}),
        ("/chat/completions", HINTS, {"metadata", "reasoning_effort", "tools"}),
    ],
)
async def test_the_defaults_of_a_program_run_and_are_on_record(
    attempt_session: Open, path: str, body: dict[str, Any], unused: set[str]
) -> None:
    spans: list[Any] = []
    case = attempt_session("Hello.", on_span=spans.append)
    answer = await case.post(path, body)
    assert answer.status_code == 200
    assert "Hello." in answer.text
    await case.attempt_session.aclose()
    (span,) = spans
    assert set(span.unused) == unused
    assert all(span.unused[name] == body[name] for name in unused - {"tools"})
    if "tools" in unused:
        kept = [tool.name for tool in span.calls[0].tools]
        assert kept == ["calculator"]
        assert len(span.unused["tools"]) == len(body["tools"]) - 1


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
