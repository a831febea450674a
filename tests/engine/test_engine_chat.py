"""Chat sessions: what was sampled is appended to, never encoded again; every call is on record."""

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
from tutelage.types import Call, Message, Sampling, StopReason, ToolCall, ToolSpec

ASK = Message("user", "What is 12 + 34?")
TOOLS = (ToolSpec("calculator", "", {"type": "object", "properties": {"expression": {}}}),)
CALL = '<tool_call>{"name": "calculator", "arguments": {"expression":"12+34"}}</tool_call>'
SAMPLING = Sampling(max_tokens=60)


@pytest.fixture
def codec(tiny: Any) -> Codec:
    return tiny("qwen2").codec


def session(engine: Any, codec: Codec, seed: int = 0, name: str = "att") -> ChatSession:
    return ChatSession(engine, codec, seeds=SeedTree(seed), name=name, order=3)


def seen(text: str, call_id: str = "c") -> Message:
    return Message("tool", text, tool_call_id=call_id, name="calculator")


async def test_turns_of_a_conversation_make_one_row(codec: Codec) -> None:
    engine = ScriptedEngine(codec, [CALL, f"Hm.{CALL}", "It is 46"])
    chat = session(engine, codec)
    messages = [ASK]
    for answer in ("46", "still 46"):
        call = await chat.chat(messages, tools=TOOLS, sampling=SAMPLING)
        assert call.reply.tool_calls[0].arguments == '{"expression":"12+34"}'
        messages += [call.reply, seen(answer)]
    last = await chat.chat(messages, tools=TOOLS, sampling=SAMPLING)
    assert last.reply.content == "It is 46"
    rows = build_rows(chat.calls)
    assert len(rows) == 1
    assert rows[0].ids == last.prompt_ids + last.sampled.token_ids
    trained = [t for t, m in zip(rows[0].ids, rows[0].mask, strict=True) if m]
    end = codec.tokenizer.eos_token
    assert codec.decode(trained) == f"{CALL}{end}Hm.{CALL}{end}It is 46{end}"
    assert rows[0].n_trained == sum(len(c.sampled.token_ids) for c in chat.calls)
    assert codec.decode(rows[0].ids) == codec.render_text(
        [*messages, last.reply], TOOLS, open_turn=False
    ).removesuffix("\n").replace('"expression": "', '"expression":"')


async def test_a_reply_that_was_cut_off_is_rendered_again(codec: Codec) -> None:
    """Its turn has no end of its own that anything could be appended to."""
    chat = session(ScriptedEngine(codec, ["one two three four", "x"]), codec)
    first = await chat.chat([ASK], sampling=Sampling(max_tokens=3))
    assert first.sampled.stop_reason is StopReason.LENGTH
    history = [ASK, first.reply, Message("user", "go on")]
    second = await chat.chat(history, sampling=SAMPLING)
    assert second.prompt_ids == codec.render(history)


async def test_a_call_records_what_was_sent_and_sampled(codec: Codec) -> None:
    engine = ScriptedEngine(codec, ["<tool_call>{", "x"], logprob=-0.5, version=7)
    chat = session(engine, codec)
    call = await chat.chat([ASK], tools=TOOLS, sampling=SAMPLING)
    assert chat.calls == [call]
    assert (call.messages, call.index, call.agent) == ((ASK,), 0, "main")
    assert call.prompt_ids == engine.requests[0].prompt_ids == codec.render([ASK], TOOLS)
    assert call.sampled.policy_version == 7
    assert set(call.sampled.logprobs) == {-0.5}
    assert len(call.parse_errors) == 1
    assert call.reply.content == "<tool_call>{"
    assert engine.requests[0].order == 3


async def test_seeds_and_identifiers_come_from_the_tree(codec: Codec) -> None:
    async def run(seed: int) -> tuple[list[str], list[int], list[str]]:
        engine = ScriptedEngine(codec, [CALL, f"{CALL} {CALL}"])
        chat = session(engine, codec, seed)
        first = await chat.chat([ASK], sampling=SAMPLING)
        await chat.chat([ASK, first.reply, seen("46")], sampling=SAMPLING)
        tools = [t.id for c in chat.calls for t in c.reply.tool_calls]
        return [c.id for c in chat.calls], [r.seed for r in engine.requests], tools

    first, again, other = await run(1), await run(1), await run(2)
    assert first == again
    for mine, theirs in zip(first, other, strict=True):
        assert len(set(mine)) == len(mine)
        assert not set(mine) & set(theirs)


SYSTEM = Message("system", "Be brief.")


def scripted(codec: Codec, script: Any) -> ChatSession:
    return ChatSession(ScriptedEngine(codec, script), codec, seeds=SeedTree(0), name="att")


def result(call: Call, text: str = "46", number: int = 0) -> Message:
    return Message("tool", text, tool_call_id=call.reply.tool_calls[number].id, name="calculator")


def dumped(reply: Message, **changes: Any) -> Message:
    """The reply as a framework sends it back: arguments dumped again, another text."""
    again = tuple(ToolCall(c.id, c.name, '{ "expression": "12+34" }') for c in reply.tool_calls)
    return replace(reply, tool_calls=again, **changes)


def continues(call: Call, earlier: Call) -> bool:
    known = earlier.prompt_ids + earlier.sampled.token_ids
    return call.prompt_ids[: len(known)] == known and len(call.prompt_ids) > len(known)


async def test_a_turn_is_known_by_its_call_ids_whatever_its_text(codec: Codec) -> None:
    chat = scripted(codec, [f"So: {CALL}", CALL, "It is 46"])
    first = await chat.chat([SYSTEM, ASK], tools=TOOLS, sampling=SAMPLING)
    history = [SYSTEM, ASK, dumped(first.reply, content="rewritten"), result(first)]
    second = await chat.chat(history, tools=list(TOOLS), sampling=SAMPLING)
    history = [*history[:2], dumped(first.reply, content=None), history[3]]
    history += [dumped(second.reply, content=""), result(second)]
    third = await chat.chat(history, tools=TOOLS, sampling=SAMPLING)
    assert continues(second, first)
    assert continues(third, second)
    assert "rewritten" not in codec.decode(third.prompt_ids)
    assert len(build_rows(chat.calls)) == 1


async def test_a_text_turn_of_another_object_is_never_continued(codec: Codec) -> None:
    letters = [t for c in "What" for t in codec.encode(c)]
    chat = scripted(codec, [[*letters, codec.tokenizer.eos_token_id], "x", "y"])
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
    chat = scripted(codec, [CALL, CALL, "x"])
    first = await chat.chat([SYSTEM, ASK], tools=TOOLS, sampling=SAMPLING)
    history = [SYSTEM, ASK, dumped(first.reply), result(first)]
    second = await chat.chat(history, tools=TOOLS, sampling=SAMPLING)
    history += [dumped(second.reply), result(second)]
    tools = TOOLS
    if edit == "system":
        history[0] = Message("system", "Be long.")
    elif edit == "question":
        history[1] = Message("user", "What is 1 + 1?")
    elif edit == "result":
        history[3] = result(first, "47")
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


async def test_one_call_can_be_continued_many_times(codec: Codec) -> None:
    """As a search over answers does: every branch holds what was sampled, and nobody else's."""
    chat = scripted(codec, [CALL, *[f"{CALL} {i}" for i in range(3)], *["end"] * 3])
    root = await chat.chat([ASK], tools=TOOLS, sampling=SAMPLING)
    start = [ASK, dumped(root.reply), result(root)]
    branches = [await chat.chat(start, tools=TOOLS, sampling=SAMPLING) for _ in range(3)]
    leaves = []
    for branch in branches:
        history = [*start, dumped(branch.reply), result(branch)]
        leaves.append(await chat.chat(history, tools=TOOLS, sampling=SAMPLING))
    assert all(continues(b, root) for b in branches)
    for leaf, branch in zip(leaves, branches, strict=True):
        assert [continues(leaf, b) for b in branches] == [b is branch for b in branches]
    rows = build_rows(chat.calls)
    assert len(rows) == 3
    sampled = sum(len(c.sampled.token_ids) for c in chat.calls)
    assert sum(r.n_trained for r in rows) == sampled  # the root's tokens are trained once


async def test_several_calls_are_known_as_a_set(codec: Codec) -> None:
    chat = scripted(codec, [CALL + CALL, "x", "y"])
    first = await chat.chat([ASK], tools=TOOLS, sampling=SAMPLING)
    turned = replace(first.reply, tool_calls=first.reply.tool_calls[::-1])
    results = [result(first, number=1), result(first, number=0)]
    both = await chat.chat([ASK, turned, *results], tools=TOOLS, sampling=SAMPLING)
    assert continues(both, first)
    half = replace(first.reply, tool_calls=first.reply.tool_calls[:1])
    one = await chat.chat([ASK, half, results[1]], tools=TOOLS, sampling=SAMPLING)
    assert not continues(one, first)
    assert one.prompt_ids == codec.render([ASK, half, results[1]], TOOLS)


async def test_text_turns_after_a_known_call_are_appended_as_they_are_sent(codec: Codec) -> None:
    chat = scripted(codec, [CALL, "It is 46", "x"])
    first = await chat.chat([ASK], tools=TOOLS, sampling=SAMPLING)
    history = [ASK, dumped(first.reply), result(first)]
    second = await chat.chat(history, tools=TOOLS, sampling=SAMPLING)
    history += [Message("assistant", second.reply.content), Message("user", "sure?")]
    third = await chat.chat(history, tools=TOOLS, sampling=SAMPLING)
    assert continues(third, first)
    whole = [*history[:1], first.reply, *history[2:]]
    said = codec.render_text(whole, TOOLS).replace('"expression": "', '"expression":"')
    assert codec.decode(third.prompt_ids) == said


async def test_another_agents_calls_are_not_continued(codec: Codec) -> None:
    chat = scripted(codec, [CALL, "x"])
    first = await chat.chat([ASK], tools=TOOLS, sampling=SAMPLING, agent="main")
    history = [ASK, dumped(first.reply), result(first)]
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
            history += [dumped(calls[-1].reply), result(calls[-1], question)]
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
                history += [calls[-1].reply, result(calls[-1])]
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
    chat = scripted(codec, [ValueError("no"), "x"])
    with pytest.raises(ValueError, match="no"):
        await chat.chat([ASK], sampling=SAMPLING)
    again = await chat.chat([ASK], sampling=SAMPLING)
    assert again.index == 0
    assert again.id == SeedTree(0, ("call", 1)).id("call")
