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

from .conftest import Open

FOLDER = Path(__file__).parent / "programs"
UNUSED: dict[str, set[str]] = {
    "codex": {"client_metadata", "prompt_cache_key", "reasoning", "tools"},
    "claude": {"metadata", "output_config"},
    "opencode": set(),
    "qwen": set(),
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
