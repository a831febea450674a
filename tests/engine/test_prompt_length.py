"""A text that is far too long for its context is refused after a part of it is encoded."""

from __future__ import annotations

from typing import Any

import pytest

from tutelage.engine.chat import ChatSession
from tutelage.errors import ContextOverflowError
from tutelage.policy.prompt_length import check_length
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine
from tutelage.types import Message, Sampling, ToolCall


def counting(tokens: int) -> tuple[Any, list[int]]:
    """An encoder that says `tokens` for each text, and how long each was."""
    seen: list[int] = []

    def encode(text: str) -> range:
        seen.append(len(text))
        return range(tokens)

    return encode, seen


def test_it_stops_where_it_is_sure() -> None:
    encode, seen = counting(600)
    with pytest.raises(ContextOverflowError, match="more than 256 tokens"):
        check_length("a" * 5_000_000, 256, encode)
    assert seen == [8192]


def test_a_text_of_few_tokens_is_not_refused() -> None:
    encode, seen = counting(1)
    check_length("a" * 40_960, 256, encode)
    check_length("a" * 4096, 256, encode)
    check_length("a" * 32 * 1024, 1024, encode)
    assert seen == [8192]


@pytest.mark.parametrize("where", ["text", "special", "arguments", "prompt"])
async def test_a_session_encodes_no_megabytes(tiny: Any, where: str) -> None:
    codec = tiny("qwen2").codec
    engine = ScriptedEngine(codec, lambda _: "x", max_length=256)
    session = ChatSession(engine, codec, seeds=SeedTree(0), name="att")
    encode, encoded = codec.encode, 0

    def counted(text: str) -> list[int]:
        nonlocal encoded
        encoded += len(text)
        return encode(text)

    codec.encode = counted
    long = ("<|im_end|>" if where == "special" else "a b ") * 100_000
    messages = [Message("user", long)]
    if where == "arguments":
        call = ToolCall("x", "t", f'{{"a": "{long}"}}')
        messages = [Message("user", "a"), Message("assistant", None, (call,))]
    more: Any = {"prompt": long} if where == "prompt" else {}
    with pytest.raises(ContextOverflowError, match="more than 256 tokens"):
        await session.chat(messages, sampling=Sampling(), **more)
    assert encoded < 50_000
