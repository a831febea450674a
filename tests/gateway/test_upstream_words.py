"""Other servers' words for a prompt that is too long, and counts that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from .test_reply_forms import Case

TOO_LONG: list[dict[str, Any]] = [
    {"code": 400, "message": "the request exceeds the available context size. try increasing it"},
    {"code": 400, "message": "n_ctx", "type": "exceed_context_size_error", "n_ctx": 512},
    {"message": "prompt is too long: 210000 tokens > 200000 maximum", "type": "invalid_request"},
]


@pytest.mark.parametrize("error", TOO_LONG)
async def test_a_prompt_that_is_too_long_is_known_in_their_words(
    tmp_path: Path, error: dict[str, Any]
) -> None:
    case = Case(tmp_path, httpx2.Response(400, json={"error": error}))
    answer = await case.ask()
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_another_refusal_is_no_long_prompt(tmp_path: Path) -> None:
    error = {"message": "tool is too long", "type": "invalid_request_error"}
    answer = await Case(tmp_path, httpx2.Response(400, json={"error": error})).ask()
    assert answer.json()["error"]["code"] == "upstream_error"
