"""Histories that come back from outside: continued by tool-call ids, never by text, never stale."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tutelage.engine.chat import ChatSession
from tutelage.engine.protocol import Request
from tutelage.policy.codec import Codec
from tutelage.rollouts.rows import build_rows
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine
from tutelage.types import Call, Message, Sampling, ToolCall, ToolSpec

ASK = Message("user", "What is 12 + 34?")
SYSTEM = Message("system", "Be brief.")
TOOLS = (ToolSpec("calculator", "", {"type": "object", "properties": {"expression": {}}}),)
CALL = '<tool_call>{"name": "calculator", "arguments": {"expression":"12+34"}}</tool_call>'
SAMPLING = Sampling(max_tokens=60)


@pytest.fixture
def codec(tiny: Any) -> Codec:
    return tiny("qwen2").codec


def session(codec: Codec, script: Any) -> ChatSession:
    return ChatSession(ScriptedEngine(codec, script), codec, seeds=SeedTree(0), name="att")


def seen(call: Call, text: str = "46", number: int = 0) -> Message:
    return Message("tool", text, tool_call_id=call.reply.tool_calls[number].id, name="calculator")


def dumped(reply: Message, **changes: Any) -> Message:
    """The reply as a framework sends it back: arguments dumped again, another text."""
    again = tuple(ToolCall(c.id, c.name, '{ "expression": "12+34" }') for c in reply.tool_calls)
    return replace(reply, tool_calls=again, **changes)


def continues(call: Call, earlier: Call) -> bool:
    known = earlier.prompt_ids + earlier.sampled.token_ids
    return call.prompt_ids[: len(known)] == known and len(call.prompt_ids) > len(known)


async def test_a_turn_is_known_by_its_call_ids_whatever_its_text(codec: Codec) -> None:
    chat = session(codec, [f"So: {CALL}", CALL, "It is 46"])
    first = await chat.chat([SYSTEM, ASK], tools=TOOLS, sampling=SAMPLING)
    history = [SYSTEM, ASK, dumped(first.reply, content="rewritten"), seen(first)]
    second = await chat.chat(history, tools=list(TOOLS), sampling=SAMPLING)
    history = [*history[:2], dumped(first.reply, content=None), history[3]]
    history += [dumped(second.reply, content=""), seen(second)]
    third = await chat.chat(history, tools=TOOLS, sampling=SAMPLING)
    assert continues(second, first)
    assert continues(third, second)
    assert "rewritten" not in codec.decode(third.prompt_ids)
    assert len(build_rows(chat.calls)) == 1


async def test_a_text_turn_of_another_object_is_never_continued(codec: Codec) -> None:
    letters = [t for c in "What" for t in codec.encode(c)]
    chat = session(codec, [[*letters, codec.tokenizer.eos_token_id], "x", "y"])
    first = await chat.chat([ASK], sampling=SAMPLING)
    more = Message("user", "?")
    copied = await chat.chat([ASK, replace(first.reply), more], sampling=SAMPLING)
    assert copied.prompt_ids == codec.render([ASK, first.reply, more])
    assert not continues(copied, first)
    own = await chat.chat([ASK, first.reply, more], sampling=SAMPLING)
    assert continues(own, first)


@pytest.mark.parametrize(
    "edit", ["system", "question", "result", "dropped", "inserted", "call", "tools", "role"]
)
async def test_anything_else_that_was_edited_is_rendered_afresh(edit: str, codec: Codec) -> None:
    chat = session(codec, [CALL, CALL, "x"])
    first = await chat.chat([SYSTEM, ASK], tools=TOOLS, sampling=SAMPLING)
    history = [SYSTEM, ASK, dumped(first.reply), seen(first)]
    second = await chat.chat(history, tools=TOOLS, sampling=SAMPLING)
    history += [dumped(second.reply), seen(second)]
    tools = TOOLS
    if edit == "system":
        history[0] = Message("system", "Be long.")
    elif edit == "question":
        history[1] = Message("user", "What is 1 + 1?")
    elif edit == "result":
        history[3] = seen(first, "47")
    elif edit == "dropped":
        del history[0]
    elif edit == "inserted":
        history.insert(1, Message("user", "Hello"))
    elif edit == "call":
        history[2] = replace(history[2], tool_calls=(ToolCall("other", "calculator", "{}"),))
    elif edit == "tools":
        tools = (replace(TOOLS[0], description="It works things out."),)
    elif edit == "role":
        history[1] = Message("assistant", ASK.content)
    third = await chat.chat(history, tools=tools, sampling=SAMPLING)
    assert third.prompt_ids == codec.render(history, tools)
    assert not continues(third, second)


async def test_empty_and_missing_contents_are_the_same(codec: Codec) -> None:
    chat = session(codec, [CALL, CALL, "x"])
    first = await chat.chat([Message("user", None), ASK], tools=TOOLS, sampling=SAMPLING)
    history = [Message("user", ""), ASK, first.reply, seen(first)]
    second = await chat.chat(history, tools=TOOLS, sampling=SAMPLING)
    assert continues(second, first)


async def test_one_call_can_be_continued_many_times(codec: Codec) -> None:
    """As a search over answers does: every branch holds what was sampled, and nobody else's."""
    chat = session(codec, [CALL, *[f"{CALL} {i}" for i in range(3)], *["end"] * 3])
    root = await chat.chat([ASK], tools=TOOLS, sampling=SAMPLING)
    start = [ASK, dumped(root.reply), seen(root)]
    branches = [await chat.chat(start, tools=TOOLS, sampling=SAMPLING) for _ in range(3)]
    leaves = []
    for branch in branches:
        history = [*start, dumped(branch.reply), seen(branch)]
        leaves.append(await chat.chat(history, tools=TOOLS, sampling=SAMPLING))
    assert all(continues(b, root) for b in branches)
    for leaf, branch in zip(leaves, branches, strict=True):
        assert [continues(leaf, b) for b in branches] == [b is branch for b in branches]
    rows = build_rows(chat.calls)
    assert len(rows) == 3
    sampled = sum(len(c.sampled.token_ids) for c in chat.calls)
    assert sum(r.trained for r in rows) == sampled  # the root's tokens are trained once


async def test_several_calls_are_known_as_a_set(codec: Codec) -> None:
    chat = session(codec, [CALL + CALL, "x", "y"])
    first = await chat.chat([ASK], tools=TOOLS, sampling=SAMPLING)
    turned = replace(first.reply, tool_calls=first.reply.tool_calls[::-1])
    results = [seen(first, number=1), seen(first, number=0)]
    both = await chat.chat([ASK, turned, *results], tools=TOOLS, sampling=SAMPLING)
    assert continues(both, first)
    half = replace(first.reply, tool_calls=first.reply.tool_calls[:1])
    one = await chat.chat([ASK, half, results[1]], tools=TOOLS, sampling=SAMPLING)
    assert not continues(one, first)
    assert one.prompt_ids == codec.render([ASK, half, results[1]], TOOLS)


async def test_text_turns_after_a_known_call_are_appended_as_they_are_sent(codec: Codec) -> None:
    chat = session(codec, [CALL, "It is 46", "x"])
    first = await chat.chat([ASK], tools=TOOLS, sampling=SAMPLING)
    history = [ASK, dumped(first.reply), seen(first)]
    second = await chat.chat(history, tools=TOOLS, sampling=SAMPLING)
    history += [Message("assistant", second.reply.content), Message("user", "sure?")]
    third = await chat.chat(history, tools=TOOLS, sampling=SAMPLING)
    assert continues(third, first)
    whole = [*history[:1], first.reply, *history[2:]]
    said = codec.render_text(whole, TOOLS).replace('"expression": "', '"expression":"')
    assert codec.decode(third.prompt_ids) == said


async def test_another_agents_calls_are_not_continued(codec: Codec) -> None:
    chat = session(codec, [CALL, "x"])
    first = await chat.chat([ASK], tools=TOOLS, sampling=SAMPLING, agent="main")
    history = [ASK, dumped(first.reply), seen(first)]
    other = await chat.chat(history, tools=TOOLS, sampling=SAMPLING, agent="critic")
    assert other.prompt_ids == codec.render(history, TOOLS)


async def test_calls_of_one_agent_at_the_same_time_are_conversations_of_their_own(
    codec: Codec,
) -> None:
    waiting: list[asyncio.Future[None]] = []

    async def answer(request: Request) -> str:
        gate = asyncio.get_running_loop().create_future()
        waiting.append(gate)
        await gate
        return CALL

    engine = ScriptedEngine(codec, answer)
    chat = ChatSession(engine, codec, seeds=SeedTree(0), name="att")

    async def talk(question: str) -> list[Call]:
        history = [Message("user", question)]
        calls = []
        for _ in range(3):
            calls.append(await chat.chat(history, tools=TOOLS, sampling=SAMPLING))
            history += [dumped(calls[-1].reply), seen(calls[-1], question)]
        return calls

    tasks = [asyncio.create_task(talk(q)) for q in ("one?", "two?", "three?")]
    for _ in range(9):
        while not waiting:
            await asyncio.sleep(0)
        waiting.pop().set_result(None)  # the last one first
        await asyncio.sleep(0)
    talks = [await t for t in tasks]
    for calls in talks:
        assert continues(calls[1], calls[0])
        assert continues(calls[2], calls[1])
    assert len(build_rows(chat.calls)) == 3
    assert len({c.id for c in chat.calls}) == len({r.seed for r in engine.requests}) == 9
    assert [c.index for c in chat.calls] == list(range(9))
    ids = [t.id for c in chat.calls for t in c.reply.tool_calls]
    assert len(set(ids)) == 9
    running: dict[str | None, int] = {}
    for request in engine.requests:
        running[request.session] = running.get(request.session, 0) + 1
    assert sorted(running.values()) == [3, 3, 3]


async def test_seeds_of_calls_at_the_same_time_do_not_depend_on_which_tool_was_first(
    codec: Codec,
) -> None:
    async def run(delays: list[float]) -> dict[tuple[str, int], int]:
        engine = ScriptedEngine(codec, lambda r: CALL)
        chat = ChatSession(engine, codec, seeds=SeedTree(0), name="att")

        async def talk(name: str, delay: float) -> list[Call]:
            history = [Message("user", name)]
            calls = []
            for _ in range(3):
                calls.append(await chat.chat(history, tools=TOOLS, sampling=SAMPLING))
                await asyncio.sleep(delay)
                history += [calls[-1].reply, seen(calls[-1])]
            return calls

        names = ["a", "b", "c"]
        talks = await asyncio.gather(*(talk(n, d) for n, d in zip(names, delays, strict=True)))
        seeds = {r.prompt_ids: r.seed for r in engine.requests}
        return {
            (name, i): seeds[call.prompt_ids]
            for name, calls in zip(names, talks, strict=True)
            for i, call in enumerate(calls)
        }

    assert await run([0.0, 0.002, 0.004]) == await run([0.004, 0.002, 0.0])


async def test_a_seed_can_be_given(codec: Codec) -> None:
    engine = ScriptedEngine(codec, ["x"] * 3)
    chat = ChatSession(engine, codec, seeds=SeedTree(0), name="att")
    for seed in (7, -1, 2**70 + 7):
        await chat.chat([ASK], sampling=SAMPLING, seed=seed)
    assert [r.seed for r in engine.requests] == [7, 2**63 - 1, 7]
    assert len({c.id for c in chat.calls}) == 3


async def test_a_call_that_failed_leaves_its_lane(codec: Codec) -> None:
    chat = session(codec, [ValueError("no"), "x"])
    with pytest.raises(ValueError, match="no"):
        await chat.chat([ASK], sampling=SAMPLING)
    again = await chat.chat([ASK], sampling=SAMPLING)
    assert again.index == 0
    assert again.id == SeedTree(0, ("call", 1)).id("call")


async def test_a_call_keeps_what_the_model_was_told(codec: Codec) -> None:
    chat = session(codec, ["x"])
    call = await chat.chat([ASK], tools=TOOLS, sampling=SAMPLING)
    assert call.tools == TOOLS
    assert call.constraint is None
    assert call.started > 0
    assert call.seconds >= 0
