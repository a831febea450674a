"""A prompt of many tokens is encoded beside the event loop, a short one on it, and both as ever."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tutelage.gateway.serving import LONG, ServedPolicy
from tutelage.policy.codec import Codec
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine
from tutelage.types import Message, Sampling, ToolCall, ToolSpec

SAMPLING = Sampling(max_tokens=8)
WORDS = "What is 1 + 1? "
TEXT = WORDS * (LONG // len(WORDS) + 1)
USER = Message("user", TEXT)
CALLED = Message("assistant", None, (ToolCall("c", "f", '{"x": "' + TEXT + '"}'),))
TOOL = ToolSpec("f", "Do it.", {"type": "object", "properties": {}})


class Watched:
    """A served policy, and the lengths of texts that each thread encodes."""

    def __init__(
        self, codec: Codec, monkeypatch: pytest.MonkeyPatch, context: int = 1 << 16
    ) -> None:
        self.here: list[int] = []
        self.elsewhere: list[int] = []
        self.threads = set[str]()
        loop, encode = threading.current_thread(), codec.encode

        def watched(text: str) -> list[int]:
            there = self.here if threading.current_thread() is loop else self.elsewhere
            self.threads.add(threading.current_thread().name)
            there.append(len(text))
            return encode(text)

        monkeypatch.setattr(codec, "encode", watched)
        engine = ScriptedEngine(codec, ["It is 2."] * 9, max_length=context)
        self.policy = ServedPolicy(engine, codec, SeedTree(0))


@pytest.fixture
def codec(tiny: Any) -> Codec:
    return Codec(tiny("qwen2").codec.tokenizer)


@pytest.mark.parametrize(
    "messages", [[USER], [Message("system", TEXT), Message("user", "hi")],
                 [Message("user", "hi"), CALLED, Message("tool", "2", tool_call_id="c")]],
    ids=["user", "system", "call"],
)  # fmt: skip
async def test_a_long_conversation_is_encoded_in_another_thread(
    codec: Codec, monkeypatch: pytest.MonkeyPatch, messages: list[Message]
) -> None:
    wanted = Codec(codec.tokenizer).render(messages, (TOOL,), 1 << 16)
    watched = Watched(codec, monkeypatch)
    call = await watched.policy.chat(messages, tools=(TOOL,), sampling=SAMPLING)
    assert call.prompt_ids == wanted
    assert max(watched.elsewhere) > LONG
    assert max(watched.here, default=0) < LONG


async def test_a_short_one_needs_no_thread(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(codec, monkeypatch)
    await watched.policy.chat([Message("user", "hi")], sampling=SAMPLING)
    await watched.policy.chat((), prompt="hi", sampling=SAMPLING)
    assert not watched.elsewhere


async def test_one_thread_encodes_at_a_time_while_the_loop_serves_others(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, at_work = Watched(codec, monkeypatch), 0
    render, leave, most, loop = codec.render, threading.Event(), 0, threading.current_thread()

    def slow(*given: Any) -> tuple[int, ...]:
        nonlocal at_work, most
        if threading.current_thread() is loop:
            return render(*given)
        at_work += 1
        most = max(most, at_work)
        assert leave.wait(30)
        ids = render(*given)
        at_work -= 1
        return ids

    monkeypatch.setattr(codec, "render", slow)
    long = [
        asyncio.ensure_future(
            watched.policy.chat([Message("user", f"{i}{TEXT}")], sampling=SAMPLING)
        )
        for i in range(3)
    ]
    short = await watched.policy.chat([Message("user", "hi")], sampling=SAMPLING)
    assert short.reply.content == "It is 2."
    leave.set()
    calls = await asyncio.gather(*long)
    assert (most, len({call.prompt_ids for call in calls})) == (1, 3)
