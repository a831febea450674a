"""Occupancy-invariant mode: a request gives the same numbers, bit for bit, in any company."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from playback import finish, one, prompt, request, short_chunks
from tests.marks import long

from tutelage.engine.protocol import Request
from tutelage.policy.model import Policy
from tutelage.testing import tiny_engine
from tutelage.types import Sampled, Sampling


def invariant_runs(policy: Policy, seed: int) -> dict[int, list[Sampled]]:
    """Eight conversations of two turns among random others, in random order, at random moments."""
    chance = random.Random(seed)
    engine = tiny_engine(policy, slots=6, invariant=True)
    said: dict[int, list[Sampled]] = {i: [] for i in range(8)}
    handles: dict[int, int] = {}
    waiting = [(i, talk_request(i, [])) for i in range(8)]
    noise = 100 * (1 + seed)
    while waiting or engine.busy:
        chance.shuffle(waiting)
        for _ in range(chance.randint(0, 3)):
            if waiting:
                i, wanted = waiting.pop()
                handles[engine.submit(wanted)] = i
        if chance.random() < 0.3 and noise % 100 < 30:
            noise += 1
            ids = prompt(noise, chance.randint(5, 200))
            limit = chance.randint(1, 30)
            engine.submit(request(noise, ids=ids, order=chance.randint(0, 99), max_tokens=limit))
        for handle, got in engine.step():
            i = handles.get(handle, -1)
            if i < 0:
                continue
            said[i].append(got)
            if len(said[i]) < 2:
                waiting.append((i, talk_request(i, said[i])))
            else:
                engine.release(f"talk{i}")
    return said


def talk_request(i: int, said: Sequence[Sampled]) -> Request:
    ids = prompt(i % 4, 10 + 9 * (i % 4))
    for turn, got in enumerate(said):
        ids += got.token_ids + prompt(50 + i + turn, 4 + i)
    sampling = Sampling(temperature=(1.0, 0.7, 0.0)[i % 3], max_tokens=6 + i)
    return Request(ids, sampling, 7 * i + len(said), i, f"talk{i}")


@pytest.mark.parametrize("whole", [24, *long(1024)])
@pytest.mark.parametrize("kind", ["qwen2", *long("qwen3", "llama", "gpt2", "gemma")])
def test_in_invariant_mode_a_request_is_the_same_bit_for_bit_in_any_company(
    kind: str, whole: int, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where prompts are long, so that they are prefilled in chunks among the others."""
    short_chunks(monkeypatch, whole=whole, chunk=8)
    policy = tiny(kind)
    alone: dict[int, list[Sampled]] = {}
    for i in range(8):
        engine = tiny_engine(policy, slots=6, invariant=True)
        alone[i] = []
        for _ in range(2):
            alone[i].append(one(engine, talk_request(i, alone[i])))
    for seed in range(2 if kind in ("gpt2", "gemma") else 4):
        assert invariant_runs(policy, seed) == alone


def test_invariant_mode_samples_the_same_function(tiny: Any) -> None:
    wanted = [request(s) for s in range(6)]
    got = finish(tiny_engine(tiny("qwen2"), slots=4, invariant=True), wanted)
    for a, b in zip(got, finish(tiny_engine(tiny("qwen2"), slots=4), wanted), strict=True):
        assert a.token_ids == b.token_ids
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_conversation_that_ends_before_its_request_keeps_no_slot(tiny: Any, steps: int) -> None:
    """As one that is left behind by an agent: it waits for a slot, or runs, when it is released."""
    policy = tiny("qwen2")
    wanted = request(1, ids=prompt(1, 20), max_tokens=8)
    alone = one(tiny_engine(policy, slots=2, invariant=True), wanted)
    engine = tiny_engine(policy, slots=1, invariant=True)
    handle = engine.submit(replace(wanted, session="left/a"))
    for _ in range(steps):
        assert not engine.step()
    engine.release("left/a")
    ended: dict[int, Sampled] = {}
    while engine.busy:
        ended |= dict(engine.step())
    assert ended == {handle: alone}
    for name in ("next/a", "next/b"):
        assert one(engine, replace(wanted, session=name)) == alone
        engine.release(name)


def test_a_conversation_that_goes_on_keeps_its_slot(tiny: Any) -> None:
    engine = tiny_engine(tiny("qwen2"), slots=1, invariant=True)
    first = replace(request(1, ids=prompt(1, 20), max_tokens=4), session="talk/a")
    engine.release("talk/b")
    said = one(engine, first)
    known = engine.prefilled_tokens
    ids = first.prompt_ids + said.token_ids + prompt(2, 5)
    one(engine, replace(first, prompt_ids=ids))
    assert engine.prefilled_tokens - known == len(ids) - len(first.prompt_ids + said.token_ids) + 1
