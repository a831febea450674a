"""A limit on thinking: a thought is closed by forced tokens, on record and not trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from policy.chat_templates import make_codec

from tutelage.engine.chat import ChatSession
from tutelage.engine.driver import EngineDriver
from tutelage.policy.codec import Codec
from tutelage.rollouts.rows import build_rows
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine, tiny_engine, tiny_policy
from tutelage.types import Call, Constraint, Message, Sampling, StopReason, ToolSpec

ASK = Message("user", "What is 12 + 34?")
TOOLS = (ToolSpec("calculator", "", {"type": "object", "properties": {"expression": {}}}),)
CLOSE = "\n</think>\n\n"


@pytest.fixture(scope="module")
def codec() -> Codec:
    codec = make_codec("qwen3")
    codec.choose_thinking(None, 12)
    return codec


async def asked(engine: Any, codec: Codec, **options: Any) -> Call:
    chat = ChatSession(engine, codec, seeds=SeedTree(0), name="att")
    sampling = options.pop("sampling", Sampling(max_tokens=80))
    return await chat.chat([ASK], sampling=sampling, **options)


async def test_a_thought_that_reaches_its_limit_is_closed_and_answered(codec: Codec) -> None:
    told: list[int] = []
    engine = ScriptedEngine(codec, ["<think>\nfirst one and then another one", "It is 46"])
    call = await asked(engine, codec, on_token=told.extend)
    first, second = engine.requests
    close, end = codec.encode(CLOSE), codec.tokenizer.eos_token_id
    answer = [*codec.encode("It is 46"), end]
    thought = codec.encode("<think>\nfirst one and then another one")[:12]
    assert list(call.sampled.token_ids) == told == [*thought, *close, *answer]
    assert second.prompt_ids == (*call.prompt_ids, *thought, *close)
    assert (first.sampling.max_tokens, second.sampling.max_tokens) == (12, 80 - 12 - len(close))
    assert first.seed != second.seed
    assert first.session == second.session
    assert str(call.reply.content).endswith("</think>\n\nIt is 46")
    (row,) = build_rows([call])
    trained = [i for i, m in zip(row.ids, row.mask, strict=True) if m]
    assert trained == [*thought, *answer]
    assert row.narrowed == ()
    forced = slice(len(thought), len(thought) + len(close))
    assert set(call.sampled.logprobs[forced]) == {0.0}
    assert call.sampled.stop_reason is StopReason.STOP


@pytest.mark.parametrize(
    ("replies", "calls"),
    [
        (["<think>\nx\n</think>\n\n46"], 1),
        (["It is 46, and no thought was needed for it", ", which is that"], 2),
    ],
)
async def test_what_is_no_thought_or_a_short_one_is_left_alone(
    codec: Codec, replies: list[str], calls: int
) -> None:
    codec.choose_thinking(None, 30 if calls == 1 else 12)
    engine = ScriptedEngine(codec, replies)
    call = await asked(engine, codec)
    assert len(engine.requests) == calls
    assert call.sampled.allowed == ()
    assert build_rows([call])[0].n_trained == len(call.sampled.token_ids)
    codec.choose_thinking(None, 12)


async def test_a_grammar_goes_on_behind_the_forced_tokens() -> None:
    """The real engine: a required call follows a thought that the prompt opens and the limit cuts,
    and the trainer finds the recorded log-probabilities again."""
    policy = tiny_policy("qwen2", max_positions=640)
    tokenizer: Any = make_codec("qwen3").tokenizer
    tokenizer.chat_template += "{%- if add_generation_prompt %}{{- '<think>\\n' }}{%- endif %}"
    policy.codec = codec = Codec(tokenizer)
    codec.choose_thinking(None, 12)
    call = await asked(
        EngineDriver(tiny_engine(policy)),
        codec,
        tools=TOOLS,
        constraint=Constraint("required"),
        sampling=Sampling(max_tokens=120),
    )
    close = codec.encode(CLOSE)
    at = next(i for i in range(9, 13) if list(call.sampled.token_ids[i : i + len(close)]) == close)
    answer = codec.decode(call.sampled.token_ids[at + len(close) :])
    assert answer.lstrip().startswith("<tool_call>")
    rows = build_rows([call])
    assert rows[0].narrowed[0].allowed == call.sampled.allowed
    free = [i for i, n in enumerate(call.sampled.allowed) if n != 1]
    with torch.no_grad():
        found = policy.score(rows).logp_K
    assert found.tolist() == pytest.approx([call.sampled.logprobs[i] for i in free], abs=1e-4)


async def test_a_turn_without_a_thought_begins_with_an_empty_one() -> None:
    codec = make_codec("qwen3")
    told: list[int] = []
    engine = ScriptedEngine(codec, ["It is 46"])
    none = Sampling(max_tokens=80, max_thinking_tokens=0)
    call = await asked(engine, codec, sampling=none, on_token=told.extend)
    empty = codec.encode(f"<think>\n{CLOSE}")
    (request,) = engine.requests
    assert request.prompt_ids == (*call.prompt_ids, *empty)
    assert request.sampling.max_tokens == 80 - len(empty)
    answer = [*codec.encode("It is 46"), codec.tokenizer.eos_token_id]
    assert list(call.sampled.token_ids) == told == [*empty, *answer]
    assert call.sampled.allowed == (*(1,) * len(empty), *(0,) * len(answer))
    assert build_rows([call])[0].n_trained == len(answer)
