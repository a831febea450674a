"""Rollouts that a Qwen3-layout template splits into rows: credit and gradient are a rollout's.

The same replies are played twice: with `agent.thinking=keep` the turns of a rollout are one row,
with `drop` each turn is a row, since the template leaves out the thoughts of earlier turns.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from policy.chat_templates import QWEN3
from torch import Tensor

from tutelage.config import RunConfig
from tutelage.engine.chat import ChatSession
from tutelage.policy.codec import Codec
from tutelage.policy.row import Row
from tutelage.runs.folder import create
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine, tiny_policy
from tutelage.types import Call, Message, Rollout, Sampling
from tutelage.weights import jobs, placement
from tutelage.weights.batch import Batch
from tutelage.weights.config import resolve

from .samples import LAPTOP, config, logprobs, make_batch, rollout
from .test_update import MODES, assert_same, gradient
from .tiny_job import Notes, material, overrides, steps

WORDS = ("What", "is", "the", "sum", "of", "12", "34", "answer", "46")
TURNS = (1, 2, 3, 2)
REWARDS = ((1.0, 0.0, 0.5, 0.0), (0.0, 1.0, 1.0, 0.25))


def codec_of(policy: Any) -> Codec:
    policy.codec.tokenizer.chat_template = QWEN3
    return Codec(policy.codec.tokenizer)


async def talk(policy: Any, codec: Codec, turns: int, seed: int) -> list[Call]:
    """Some turns of a conversation, with thoughts; recorded as an older policy's would be."""
    rng = random.Random(seed)

    def words(count: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(count))

    said = [f"<think>\n{words(3)}\n</think>\n\n{words(2)}" for _ in range(turns)]
    chat = ChatSession(ScriptedEngine(codec, said), codec, seeds=SeedTree(seed), name=f"att{seed}")
    messages = [Message("user", words(3))]
    for _ in range(turns):
        call = await chat.chat(messages, sampling=Sampling(max_tokens=200))
        messages += [call.reply, Message("user", words(2))]
    calls: list[Call] = []
    for call in chat.calls:
        known = logprobs(policy, call.prompt_ids, call.sampled.token_ids)
        told = tuple(x + rng.uniform(-0.1, 0.1) for x in known)
        calls.append(replace(call, sampled=replace(call.sampled, logprobs=told)))
    return calls


def played(policy: Any, choice: Any) -> list[Rollout]:
    codec = codec_of(policy)
    codec.choose_thinking(choice, None)
    return [
        rollout(
            f"{g}-{m}",
            f"g{g}",
            asyncio.run(talk(policy, codec, turns, 10 * g + m)),
            REWARDS[g][m],
        )
        for g in range(2)
        for m, turns in enumerate(TURNS)
    ]


def slow_gradient(policy: Any, rollouts: Sequence[Rollout], settings: RunConfig) -> list[Tensor]:
    """The clipped surrogate's gradient from the formulas, call by call: no row is ever built."""
    actor: Any = settings.actor
    mode = str(actor.loss_agg_mode)
    groups: dict[str, list[float]] = {}
    for one in rollouts:
        assert one.reward is not None
        groups.setdefault(one.group, []).append(one.reward.value)
    tokens = [sum(len(c.sampled.token_ids) for c in one.last.calls) for one in rollouts]
    total: Any = 0.0
    for one, length in zip(rollouts, tokens, strict=True):
        rewards = torch.tensor(groups[one.group])
        assert one.reward is not None
        advantage = (one.reward.value - rewards.mean()) / (rewards.std() + 1e-6)
        weight = {
            "token-mean": 1 / sum(tokens),
            "seq-mean-token-sum": 1 / len(rollouts),
            "seq-mean-token-mean": 1 / len(rollouts) / length,
            "seq-mean-token-sum-norm": 1 / len(rollouts) / settings.response_tokens,
        }[mode]
        for call in one.last.calls:
            ids, sampled = call.prompt_ids, call.sampled.token_ids
            row = Row(ids + sampled, (0,) * len(ids) + (1,) * len(sampled))
            ratio = (policy.score([row]).logp_K - torch.tensor(call.sampled.logprobs)).exp()
            low = 1 - (actor.clip_ratio_low or actor.clip_ratio)
            high = 1 + (actor.clip_ratio_high or actor.clip_ratio)
            loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(low, high))
            total = total + weight * loss.sum()
    return list(torch.autograd.grad(total, policy.parameters()))


def advantages(batch: Batch) -> dict[int, float]:
    """That of each rollout, which all of its trained tokens have."""
    found: dict[int, set[float]] = {}
    for b, number in enumerate(batch.rollouts_B):
        found.setdefault(number, set()).update(batch.advantages_BT[b][batch.mask_BT[b]].tolist())
    assert all(len(values) == 1 for values in found.values())
    return {number: values.pop() for number, values in found.items()}


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_a_rollout_counts_once_in_one_row_and_in_several(
    fresh: Callable[..., Any], mode: str
) -> None:
    policy = fresh("qwen2", 0)
    settings = config(f"actor.loss_agg_mode={mode}", "rollout.response_length=64")
    whole, parts = played(policy, "keep"), played(policy, "drop")
    merged, split = make_batch(whole, settings), make_batch(parts, settings)
    assert (len(merged.rows), len(split.rows)) == (8, 2 * sum(TURNS))
    assert (merged.group_metrics["rollout/rows"], split.group_metrics["rollout/rows"]) == (1, 2)
    assert advantages(split) == advantages(merged)
    for rollouts, batch in ((whole, merged), (parts, split)):
        # Law 1: what is trained is what was sampled, token for token.
        for number, one in enumerate(rollouts):
            rows = [r for r, o in zip(batch.rows, batch.rollouts_B, strict=True) if o == number]
            trained = [i for r in rows for i, m in zip(r.ids, r.mask, strict=True) if m]
            assert trained == [i for c in one.last.calls for i in c.sampled.token_ids]
        assert_same(gradient(policy, batch, settings)[0], slow_gradient(policy, rollouts, settings))


REPLY = '<think>\nhm\n</think>\n\nAction: calculator\nAction Input: {"expression": "1 + 1"}'


@pytest.mark.full
def test_a_run_says_which_part_of_the_template_splits_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = material(tmp_path)
    policy = tiny_policy("qwen2", 3)
    tokenizer: Any = policy.codec.tokenizer
    tokenizer.chat_template = QWEN3
    monkeypatch.setattr(
        placement,
        "make_engine",
        lambda policy, **_: ScriptedEngine(policy.codec, lambda _: REPLY),
    )
    policy.save(source / "model", replace=True)
    keys = {
        "agent__agent_type": "react",
        "agent__system_prompt": "Be brief.",
        "agent__max_tokens_per_turn": 150,
        "agent__max_turns": 2,
        "rollout__max_len": 2048,
        "trainer__total_training_steps": 2,
    }
    found: dict[str, tuple[list[float], list[str]]] = {}
    for choice in ("drop", "keep"):
        folder, notes = create(tmp_path / choice), Notes()
        given = overrides(source, agent__thinking=choice, **keys)
        jobs.train(resolve("math", given, machine=LAPTOP), folder, notes)
        rows = [line["rollout/rows"] for line in steps(folder)]
        found[choice] = rows, [note for note in notes.notes if "training rows" in note]
    assert found["keep"] == ([1.0, 1.0], [])
    rows, (told,) = found["drop"]
    assert max(rows) > 1
    assert "drops reasoning (to </think>) from a turn that a user message follows" in told
    assert "agent.thinking=keep" in told
