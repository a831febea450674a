"""Constrained replies: they are what was asked for, others never notice, and the trainer agrees."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from playback import finish, prompt, request
from tests.marks import long

from tutelage.engine.chat import ChatSession
from tutelage.engine.driver import EngineDriver
from tutelage.errors import ConfigError, ConstraintError, ModelError
from tutelage.policy.constrained import AllowedTokens, unpack_bits
from tutelage.policy.grammar import Grammar
from tutelage.policy.packing import MicroBatch
from tutelage.policy.row import Row
from tutelage.rollouts.rows import build_rows
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine, tiny_engine
from tutelage.types import Call, Constraint, Message, Sampling, StopReason, ToolSpec

ASK = Message("user", "What is 12 + 34?")
WORDS = {"enum": ["one", "two", "twelve", "three"]}
TOOLS = (
    ToolSpec(
        "say",
        "Says it.",
        {
            "type": "object",
            "properties": {"word": WORDS, "loud": {"type": "boolean"}},
            "required": ["word"],
            "additionalProperties": False,
        },
    ),
    ToolSpec("stop", "Ends it.", {"type": "object", "additionalProperties": False}),
)
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": [1, 23, 456]}, "why": WORDS},
    "required": ["answer"],
    "additionalProperties": False,
}


def session(engine: Any, codec: Any, seed: int = 0) -> ChatSession:
    return ChatSession(engine, codec, seeds=SeedTree(seed), name=f"att{seed}", order=seed)


async def asked(
    policy: Any, constraint: Constraint | None, seeds: Iterable[int], **sampling: Any
) -> list[Call]:
    driver = EngineDriver(tiny_engine(policy))
    wanted = replace(Sampling(max_tokens=160), **sampling)
    return [
        await session(driver, policy.codec, seed).chat(
            [ASK], tools=TOOLS, sampling=wanted, constraint=constraint
        )
        for seed in seeds
    ]


def fits(arguments: str, name: str) -> bool:
    data = json.loads(arguments)
    if name == "stop":
        return data == {}
    return data["word"] in WORDS["enum"] and set(data) <= {"word", "loud"}


# ---------------------------------------------------------------- what is asked for comes


@pytest.mark.parametrize("layout", ["qwen2", *long("qwen3", "gpt2")])
async def test_a_required_call_is_made_and_fits_its_schema(layout: str, tiny: Any) -> None:
    calls = await asked(tiny(layout), Constraint("required"), range(8), temperature=3.0)
    ended = [c for c in calls if c.sampled.stop_reason is StopReason.STOP]
    assert ended
    for call in ended:
        assert call.parse_errors == ()
        assert call.reply.content is None
        assert call.reply.tool_calls
    for call in calls:
        assert all(fits(t.arguments, t.name) for t in call.reply.tool_calls)
        assert call.constraint == Constraint("required")
        assert len(call.sampled.allowed) == len(call.sampled.token_ids)
    assert len({t.name for c in calls for t in c.reply.tool_calls}) == 2
    assert max(len(c.reply.tool_calls) for c in calls) > 1


@pytest.mark.parametrize(
    "constraint", [Constraint("say"), *long(Constraint("stop"), Constraint("required", False))]
)
async def test_one_call_is_made_where_one_is_allowed(constraint: Constraint, tiny: Any) -> None:
    for call in await asked(tiny("qwen2"), constraint, range(4)):
        (made,) = call.reply.tool_calls
        assert fits(made.arguments, made.name)
        assert constraint.tool_choice in ("required", made.name)
        assert call.sampled.stop_reason is StopReason.STOP


async def test_a_text_may_come_before_the_only_call(tiny: Any) -> None:
    policy = tiny("qwen2")
    ids = policy.codec.encode
    call = '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'
    grammar = policy.codec.grammar(TOOLS, Constraint("auto", parallel_tool_calls=False))
    assert allowed(policy, grammar, [*ids("Hm. "), *ids(call), policy.codec.tokenizer.eos_token_id])
    assert allowed(policy, grammar, [*ids("Hm."), policy.codec.tokenizer.eos_token_id])
    assert not allowed(policy, grammar, ids(call) + ids(call))


def allowed(policy: Any, grammar: Grammar, ids: list[int]) -> bool:
    matcher = grammar.start()
    words = np.zeros(policy.config.vocab_size // 32, np.int32)
    for token in ids:
        matcher.fill_bitmask(words)
        if not (int(words[token // 32]) >> (token % 32)) & 1:
            return False
        matcher.accept(token)
    return True


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_a_document_fits_its_schema(choice: str, tiny: Any) -> None:
    calls = await asked(tiny("qwen2"), Constraint(choice, json_schema=SCHEMA), range(8))
    documents = [json.loads(c.reply.content or "") for c in calls if not c.reply.tool_calls]
    assert all(d["answer"] in (1, 23, 456) for d in documents)
    assert documents
    assert any(c.reply.tool_calls for c in calls) == (choice == "auto")


async def test_a_reply_that_runs_out_of_tokens_inside_its_grammar_ends_by_length(tiny: Any) -> None:
    for call in await asked(tiny("qwen2"), Constraint("say"), range(3), max_tokens=9):
        assert call.sampled.stop_reason is StopReason.LENGTH
        assert len(call.sampled.token_ids) == len(call.sampled.allowed) == 9
        assert call.parse_errors


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("tools", "constraint", "field", "reason"),
    [
        (TOOLS, Constraint("fly"), "tool_choice", "'say', 'stop'"),
        ((), Constraint(json_schema={"not": {}}), "response_format", '"not"'),
        (
            (ToolSpec("bad", "", {"properties": {"a": {"enum": []}}, "required": ["a"]}),),
            Constraint("required"),
            "tools.bad.parameters",
            "unsatisfiable",
        ),
    ],
)
async def test_what_cannot_be_enforced_is_refused_with_its_field(
    tools: Any, constraint: Constraint, field: str, reason: str, tiny: Any
) -> None:
    codec = tiny("qwen2").codec
    engine = ScriptedEngine(codec, ["x"])
    with pytest.raises(ConstraintError) as raised:
        await session(engine, codec).chat(
            [ASK], tools=tools, sampling=Sampling(), constraint=constraint
        )
    assert raised.value.field == field
    assert field in str(raised.value)
    assert reason in str(raised.value)
    assert isinstance(raised.value, ConfigError)
    assert engine.requests == []


# ---------------------------------------------------------------- neighbours


@pytest.mark.parametrize("invariant", [False, True])
def test_requests_without_a_grammar_stay_bit_for_bit_what_they_are(
    invariant: bool, tiny: Any
) -> None:
    """They share steps, and rows of the cache, with others of the same prompt that have one."""
    policy = tiny("qwen2")
    grammar = policy.codec.grammar(TOOLS, Constraint("required"))
    warm = {1: 0.7}
    free = [
        request(s, ids=prompt(s % 3, 9), max_tokens=40, temperature=warm.get(s % 2, 1.0))
        for s in range(6)
    ]
    others = [replace(r, seed=r.seed + 7, order=9) for r in free]
    runs = []
    for bound in (False, True):
        engine = tiny_engine(policy, slots=12, invariant=invariant)
        mixed = [replace(r, grammar=grammar) if bound else r for r in others]
        runs.append(finish(engine, [*free, *mixed]))
    if invariant:
        assert runs[0][:6] == runs[1][:6]
    assert [s.token_ids for s in runs[0][:6]] == [s.token_ids for s in runs[1][:6]]
    assert all(s.allowed for s in runs[1][6:])
    assert not any(s.allowed for s in runs[0])


@pytest.mark.full
def test_a_constrained_request_is_independent_of_its_neighbours_in_invariant_mode(
    tiny: Any,
) -> None:
    policy = tiny("qwen3")
    grammar = policy.codec.grammar(TOOLS, Constraint("required"))
    wanted = replace(request(5, max_tokens=60), grammar=grammar)
    alone = finish(tiny_engine(policy, slots=9, invariant=True), [wanted])[0]
    among = [replace(request(s, max_tokens=30 + s), grammar=grammar) for s in range(20, 24)]
    among += [request(s, max_tokens=20 + s) for s in range(10, 14)]
    for at in (0, 3, 8):
        mixed = [*among[:at], wanted, *among[at:]]
        assert finish(tiny_engine(policy, slots=9, invariant=True), mixed)[at] == alone


# ---------------------------------------------------------------- the trainer


@pytest.mark.parametrize("layout", ["qwen2", *long("qwen3"), "gpt2"])
@pytest.mark.parametrize("temperature", [1.7, *long(1.0, 0.6)])
@pytest.mark.parametrize("invariant", [False, True])
async def test_the_trainer_computes_what_the_engine_drew_from(
    layout: str, temperature: float, invariant: bool, tiny: Any
) -> None:
    """Over turns of one conversation, constrained in different ways, and over forced tokens."""
    policy = tiny(layout)
    driver = EngineDriver(tiny_engine(policy, slots=2, invariant=invariant))
    chat = session(driver, policy.codec)
    sampling = Sampling(temperature=temperature, max_tokens=30)
    history = [ASK]
    plans = (
        None,
        Constraint("required"),
        Constraint("say"),
        Constraint("none", json_schema=SCHEMA),
    )
    for constraint in plans:
        call = await chat.chat(history, tools=TOOLS, sampling=sampling, constraint=constraint)
        history += [call.reply, Message("user", "?")]
    rows = build_rows(chat.calls)
    forced = sum(n == 1 for c in chat.calls for n in c.sampled.allowed)
    narrowed = sum(n > 1 for c in chat.calls for n in c.sampled.allowed)
    sampled = sum(len(c.sampled.token_ids) for c in chat.calls)
    assert forced > 20
    assert narrowed > 5
    assert sum(r.n_trained for r in rows) == sampled - forced
    token_rows = [Row(r.ids, r.mask, r.narrowed) for r in rows]
    scores = policy.score(token_rows, temperature=temperature)
    told = [x for r in rows for x, m in zip(r.logprobs, r.mask, strict=True) if m]
    assert scores.logp_K.tolist() == pytest.approx(told, abs=1e-4)
    assert scores.entropy_K.min() >= -1e-6
    blind = policy.score([Row(r.ids, r.mask) for r in rows], temperature=temperature)
    assert (blind.logp_K - scores.logp_K).abs().max() > 0.1


async def test_gradients_of_narrowed_tokens_are_those_of_their_own_distribution(fresh: Any) -> None:
    """The slow way: log-softmax over the allowed tokens alone."""
    policy = fresh("qwen2", 3)
    (call,) = await asked(policy, Constraint("say"), [1], temperature=1.3)
    (row,) = build_rows([call])
    token_row = Row(row.ids, row.mask, row.narrowed)

    def gradients(logp: Any) -> list[Any]:
        return torch.autograd.grad(logp.sum(), policy.parameters())

    mine = gradients(policy.score([token_row], temperature=1.3).logp_K)
    sets = AllowedTokens.replay(policy.codec, [token_row], policy.device)
    assert sets is not None
    total = torch.zeros(())
    batch = MicroBatch.pack([token_row], policy.device, torch.float32)
    hidden = policy.network(batch, torch.float32)
    z = hidden[batch.lines_K] @ policy.network.weights.head.t() / 1.3
    masks = unpack_bits(sets.words_NW[sets.number_K], z.shape[1])
    for line, mask, target in zip(z, masks, batch.targets_K.tolist(), strict=True):
        total = total + line[target] - line[mask].logsumexp(0)
    theirs = gradients(total)
    for a, b in zip(mine, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


async def test_a_reply_without_any_choice_trains_nothing(tiny: Any) -> None:
    (call,) = await asked(tiny("qwen2"), Constraint("stop"), [0])
    assert set(call.sampled.allowed) == {1}
    assert set(call.sampled.logprobs) == {0.0}
    assert build_rows([call]) == []


async def test_a_record_that_the_grammar_does_not_allow_is_an_error(tiny: Any) -> None:
    policy = tiny("qwen2")
    (call,) = await asked(policy, Constraint("say"), [1])
    counts = call.sampled.allowed
    wrong = replace(call, sampled=replace(call.sampled, allowed=(*counts[:-1], counts[-1] + 1)))
    (row,) = build_rows([wrong])
    with pytest.raises(ModelError, match="llguidance"):
        policy.score([Row(row.ids, row.mask, row.narrowed)])


def test_a_policy_is_free_where_there_is_no_call_to_forbid(tiny: Any) -> None:
    """`tool_choice` none without tools needs no grammar, and changes no draw."""
    codec = tiny("qwen2").codec
    assert codec.grammar((), Constraint("none")) is None
    assert codec.grammar((), Constraint("none", parallel_tool_calls=False)) is None
