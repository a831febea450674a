"""Chat sessions: what was sampled is appended to, never encoded again; every call is on record."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from playback import finish

from tutelage.engine.chat import ChatSession
from tutelage.engine.driver import EngineDriver
from tutelage.engine.protocol import Request
from tutelage.errors import ContextOverflowError, EngineError
from tutelage.policy.codec import Codec
from tutelage.policy.row import Row
from tutelage.rollouts.rows import build_rows
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine, tiny_engine
from tutelage.types import Message, Sampled, Sampling, StopReason, ToolSpec

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
    assert rows[0].trained == sum(len(c.sampled.token_ids) for c in chat.calls)
    assert codec.decode(rows[0].ids) == codec.render_text(
        [*messages, last.reply], TOOLS, open_turn=False
    ).removesuffix("\n").replace('"expression": "', '"expression":"')


async def test_what_was_sampled_is_never_encoded_again(codec: Codec) -> None:
    """The letters of the reply as single-byte tokens, which no encoder would produce."""
    letters = [t for c in "What" for t in codec.encode(c)]
    odd = [*letters, codec.tokenizer.eos_token_id]
    assert codec.encode("What") != letters
    chat = session(ScriptedEngine(codec, [odd, "x"]), codec)
    first = await chat.chat([ASK], sampling=SAMPLING)
    assert first.reply.content == "What"
    second = await chat.chat([ASK, first.reply, Message("user", "?")], sampling=SAMPLING)
    known = first.prompt_ids + first.sampled.token_ids
    assert second.prompt_ids[: len(known)] == known
    assert len(build_rows(chat.calls)) == 1


@pytest.mark.parametrize("edit", ["reply", "question", "shorter", "tools"])
async def test_an_edited_history_starts_a_new_row(edit: str, codec: Codec) -> None:
    chat = session(ScriptedEngine(codec, ["one", "two"]), codec)
    first = await chat.chat([ASK], tools=TOOLS, sampling=SAMPLING)
    more = Message("user", "and then?")
    history = {
        "reply": [ASK, Message("assistant", "One!"), more],
        "question": [Message("user", "What is 1 + 1?"), first.reply, more],
        "shorter": [ASK],
        "tools": [ASK, first.reply, more],
    }[edit]
    tools = () if edit == "tools" else TOOLS
    second = await chat.chat(history, tools=tools, sampling=SAMPLING)
    assert second.prompt_ids == codec.render(history, tools)
    rows = build_rows(chat.calls)
    assert [r.trained for r in rows] == [len(c.sampled.token_ids) for c in chat.calls]


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


async def test_agents_of_one_attempt_may_talk_at_the_same_time(codec: Codec) -> None:
    """Each keeps a conversation of its own, and no two calls share an identifier or a seed."""
    gate = asyncio.Event()

    async def answer(request: Request) -> str:
        await gate.wait()
        return f"I am {request.session}"

    engine = ScriptedEngine(codec, answer)
    chat = session(engine, codec)

    async def two_turns(agent: str) -> None:
        first = await chat.chat([ASK], sampling=SAMPLING, agent=agent)
        more = [ASK, first.reply, Message("user", "again")]
        await chat.chat(more, sampling=SAMPLING, agent=agent)

    tasks = [asyncio.create_task(two_turns(a)) for a in ("main", "critic", "main2")]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*tasks)
    assert sorted(c.index for c in chat.calls) == list(range(6))
    assert len({c.id for c in chat.calls}) == len({r.seed for r in engine.requests}) == 6
    assert {r.session for r in engine.requests} == {"att/main", "att/critic", "att/main2"}
    rows = build_rows(c for c in chat.calls if c.agent in ("main", "critic"))
    assert len(rows) == 2
    assert all("I am" in codec.decode(r.ids) for r in rows)
    chat.close()
    assert sorted(engine.released) == ["att/critic", "att/main", "att/main2"]


async def test_closing_gives_back_the_slot_of_a_call_that_was_cancelled(tiny: Any) -> None:
    """Also when the result was there already, but its rollout was cancelled before it looked."""
    policy = tiny("qwen2")
    engine = tiny_engine(policy, slots=1, invariant=True)
    driver = EngineDriver(engine)
    chat = session(driver, policy.codec)
    task = asyncio.create_task(chat.chat([ASK], sampling=Sampling(max_tokens=2)))
    while not engine.decoded_tokens:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    chat.close()
    wanted = Request((7, 8), Sampling(max_tokens=2), 1, 0, "next")
    assert len(finish(engine, [wanted])) == 1


async def test_a_session_over_the_real_engine_records_what_the_trainer_computes(tiny: Any) -> None:
    policy = tiny("qwen3")
    driver = EngineDriver(tiny_engine(policy, slots=2))
    chat = session(driver, policy.codec)
    messages = [ASK]
    sampling = Sampling(temperature=1.5, max_tokens=25)
    for turn in range(3):
        call = await chat.chat(messages, tools=TOOLS, sampling=sampling)
        messages += [call.reply, Message("user", f"{turn}?")]
    for row in build_rows(chat.calls):
        scores = policy.score([Row(row.ids, row.mask)], temperature=1.5)
        engine_side = [x for x, m in zip(row.logprobs, row.mask, strict=True) if m]
        assert scores.logp_K.tolist() == pytest.approx(engine_side, abs=1e-4)


# ---------------------------------------------------------------- the scripted engine itself


async def ask(engine: ScriptedEngine, codec: Codec, **sampling: Any) -> Sampled:
    return await engine.sample(Request(codec.render([ASK]), Sampling(**sampling), 0, 0, "s"))


async def test_a_script_answers_in_order_then_says_that_it_ended(codec: Codec) -> None:
    end = codec.tokenizer.eos_token_id
    engine = ScriptedEngine(codec, ["one", [5, 6], [5, end], ValueError("no")])
    assert codec.decode((await ask(engine, codec)).token_ids) == "one<|im_end|>"
    cut, whole = await ask(engine, codec), await ask(engine, codec)
    assert (cut.token_ids, cut.stop_reason) == ((5, 6), StopReason.LENGTH)
    assert (whole.token_ids, whole.stop_reason) == ((5, end), StopReason.STOP)
    with pytest.raises(ValueError, match="no"):
        await ask(engine, codec)
    with pytest.raises(EngineError, match="asked for number 5"):
        await ask(engine, codec)
    assert len(engine.requests) == 5


async def test_a_script_keeps_to_max_tokens_and_context(codec: Codec) -> None:
    length = len(codec.render([ASK]))
    engine = ScriptedEngine(codec, lambda r: "a b c d e f g h", max_length=length + 4)
    assert len((await ask(engine, codec)).token_ids) == 4
    assert len((await ask(engine, codec, max_tokens=2)).token_ids) == 2
    with pytest.raises(ContextOverflowError):
        await ask(ScriptedEngine(codec, ["x"], max_length=length), codec)


@pytest.mark.parametrize("begun", [True, False])
async def test_a_call_that_outlives_its_session_keeps_no_slot(tiny: Any, begun: bool) -> None:
    """As one of a task that an agent left behind: it runs as the session is closed, or comes
    after it."""
    policy = tiny("qwen2")
    driver = EngineDriver(tiny_engine(policy, slots=1, invariant=True), "free")
    left = session(driver, policy.codec, name="left")
    work = asyncio.create_task(left.chat([ASK], sampling=SAMPLING))
    if begun:
        while not driver.engine.decoded_tokens:
            await asyncio.sleep(0)
        left.close()
    else:
        left.close()
    await work
    for name in ("next", "last"):
        other = session(driver, policy.codec, name=name)
        call = await asyncio.wait_for(other.chat([ASK], sampling=SAMPLING), 30.0)
        assert call.sampled == work.result().sampled
        other.close()
