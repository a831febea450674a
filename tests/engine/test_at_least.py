"""`min_tokens`: no turn ends before, what could be drawn is on record, and the trainer agrees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tutelage.engine.chat import ChatSession
from tutelage.engine.driver import EngineDriver
from tutelage.policy.constrained import AllowedTokens, unpack
from tutelage.policy.grammar import AtLeast
from tutelage.policy.row import Row
from tutelage.rollouts.rows import build_rows
from tutelage.seeds import SeedTree
from tutelage.testing import tiny_engine
from tutelage.types import Call, Constraint, Message, Sampling

ASK = Message("user", "What is 12 + 34?")
LEAST = 12


async def drawn(policy: Any, seed: int, constraint: Constraint | None) -> Call:
    """A reply of a policy."""
    driver = EngineDriver(tiny_engine(policy, slots=1), schedule="free")
    chat = ChatSession(driver, policy.codec, seeds=SeedTree(seed), name="att")
    sampling = Sampling(max_tokens=24)
    return await chat.chat([ASK], sampling=sampling, constraint=constraint, seed=seed)


async def test_no_turn_ends_before_and_what_was_allowed_is_on_record(tiny: Any) -> None:
    policy = tiny("qwen2")
    codec, vocabulary = policy.codec, len(policy.codec.tokenizer)
    ends = [end for end in codec.eos_ids if end < vocabulary]
    for seed in range(2):
        call = await drawn(policy, seed, Constraint(min_tokens=LEAST))
        ids, allowed = call.sampled.token_ids, call.sampled.allowed
        assert not codec.eos_ids & set(ids[:LEAST])
        assert len(ids) >= LEAST
        assert allowed[:LEAST] == (vocabulary - len(ends),) * LEAST
        assert set(allowed[LEAST:]) <= {vocabulary}
        (row,) = build_rows([call])
        found = AllowedTokens.replay(codec, [row], torch.device("cpu"))
        assert found is not None
        sets = unpack(found.words_NW, vocabulary)[found.number_K]
        assert tuple(sets.sum(1).tolist()) == allowed
        assert not sets[:LEAST, ends].any()
        assert sets[LEAST:, ends].all()
        trained = policy.score([Row(row.ids, row.mask, row.narrowed)]).logp_K.tolist()
        assert trained == pytest.approx(call.sampled.logprobs, abs=1e-4)


def test_what_is_left_after_the_first_tokens(tiny: Any) -> None:
    codec = tiny("qwen2").codec
    grammar = codec.grammar((), Constraint(min_tokens=3))
    assert isinstance(grammar, AtLeast)
    words = np.zeros(-(-len(codec.tokenizer) // 32), np.int32)
    (end, *_) = codec.eos_ids
    for begun, may_end in ((0, False), (2, False), (3, True), (9, True)):
        matcher = grammar.after([5] * begun).start()
        matcher.fill(words)
        assert bool(words[end // 32] >> (end % 32) & 1) is may_end
        matcher.accept(5)
        matcher.fill(words)
        assert bool(words[end // 32] >> (end % 32) & 1) is (begun >= 2)


@pytest.mark.parametrize("limit", [0, 5])
def test_a_constraint_of_nothing_is_none(tiny: Any, limit: int) -> None:
    grammar = tiny("qwen2").codec.grammar((), Constraint(min_tokens=limit))
    assert (grammar is None) is (limit == 0)
