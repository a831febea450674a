"""The native engine: every request gets what it would get alone, whatever else goes on."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from playback import finish, one, prompt, request, short_chunks, slowly, transformers_model
from tests.marks import long

from tutelage.engine.factory import make_engine
from tutelage.engine.protocol import Request
from tutelage.engine.sampler import draw, draw_uniforms
from tutelage.engine.versions import version_spans
from tutelage.errors import ContextOverflowError
from tutelage.policy.decoder import Cache
from tutelage.policy.model import Policy
from tutelage.policy.network import FusedNetwork
from tutelage.policy.row import Row
from tutelage.testing import tiny_engine, tiny_policy
from tutelage.types import Sampled, Sampling, StopReason

KINDS = ["qwen2", *long("qwen3", "llama"), "gpt2", *long("sliding")]
FALLBACK = ["gpt2", "gemma", "phi", "sliding"]
kinds = pytest.mark.parametrize("kind", KINDS)


def same(got: Sampled, wanted: Sampled) -> None:
    assert got.token_ids == wanted.token_ids
    assert got.stop_reason is wanted.stop_reason
    assert got.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
    assert got.raw_logprobs == pytest.approx(wanted.raw_logprobs, abs=1e-4)


# ---------------------------------------------------------------- what is sampled


@kinds
@pytest.mark.parametrize("temperature", [0.0, 0.7, *long(1.0, 1.5)])
def test_a_request_gets_what_a_plain_forward_would_sample(
    kind: str, temperature: float, tiny: Any
) -> None:
    engine = tiny_engine(tiny(kind), slots=3)
    for seed in (0, 1):
        wanted = request(seed, temperature=temperature, max_tokens=12)
        same(one(engine, wanted), slowly(tiny(kind), wanted))


@kinds
def test_a_request_does_not_notice_its_neighbours(kind: str, tiny: Any) -> None:
    """More requests than slots, of all lengths, in random order: each as if it were alone."""
    count = 12 if kind in ("gpt2", "sliding") else 24
    alone = tiny_engine(tiny(kind), slots=1)
    requests = [
        request(s, temperature=(1.0, 0.8, 0.0)[s % 3], max_tokens=1 + 5 * (s % 5))
        for s in range(count)
    ]
    wanted = [one(alone, r) for r in requests]
    order = list(range(count))
    random.Random(0).shuffle(order)
    got = finish(tiny_engine(tiny(kind), slots=5), [requests[i] for i in order])
    for place, i in enumerate(order):
        same(got[place], wanted[i])


@kinds
@pytest.mark.parametrize("temperature", [0.0, 0.7, *long(1.0)])
def test_the_most_probable_tokens_are_told_and_change_nothing(
    kind: str, temperature: float, tiny: Any
) -> None:
    policy = tiny(kind)
    asked = [request(s, temperature=temperature, max_tokens=3 + s) for s in range(4)]
    plain = finish(tiny_engine(policy, slots=4), asked)
    some = [replace(r, top_logprobs=(0, 1, 5, 20)[s]) for s, r in enumerate(asked)]
    told = finish(tiny_engine(policy, slots=4), some)
    for wanted, got, r in zip(plain, told, some, strict=True):
        assert (got.token_ids, got.logprobs) == (wanted.token_ids, wanted.logprobs)
        assert len(got.top) == (len(got.token_ids) if r.top_logprobs else 0)
        for i, alternatives in enumerate(got.top):
            ids = r.prompt_ids + got.token_ids[:i]
            row = Row((*ids, 0), (0,) * len(ids) + (1,))
            assert len(alternatives) == r.top_logprobs
            values = [value for _, value in alternatives]
            assert values == sorted(values, reverse=True)
            for token, value in alternatives[:2]:
                scored = policy.score([replace(row, ids=(*ids, token))]).logp_K
                assert float(scored[0].detach()) == pytest.approx(value, abs=1e-4)
            known = dict(alternatives)
            drawn = known.get(got.token_ids[i])
            assert drawn is None or drawn == pytest.approx(got.raw_logprobs[i], abs=1e-5)
            if temperature == 0.0:
                assert alternatives[0][0] == got.token_ids[i]


def test_equal_submissions_repeat_bit_for_bit(tiny: Any) -> None:
    requests = [request(s, session=f"s{s % 7}" if s % 2 else None) for s in range(25)]
    first = finish(tiny_engine(tiny("qwen3"), slots=6), requests)
    assert finish(tiny_engine(tiny("qwen3"), slots=6), requests) == first


def test_the_seed_decides(tiny: Any) -> None:
    engine = tiny_engine(tiny("qwen2"))
    ids = prompt(0)
    requests = [Request(ids, Sampling(max_tokens=12), seed) for seed in (1, 2, 1)]
    first, other, again = finish(engine, requests)
    assert first == again
    assert first.token_ids != other.token_ids


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.3), *long((1, 1.0), (5, 0.6))])
def test_top_k_and_top_p_are_those_of_the_slow_way(top_k: int, top_p: float, tiny: Any) -> None:
    policy: Policy = tiny("qwen2")
    engine = tiny_engine(policy)
    requests = [request(s, top_k=top_k, top_p=top_p, max_tokens=8) for s in range(6)]
    for r, got in zip(requests, finish(engine, requests), strict=True):
        same(got, slowly(policy, r))


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", *FALLBACK])
@pytest.mark.parametrize("temperature", [0.7, *long(1.0, 1.5)])
def test_log_probabilities_are_the_trainers(kind: str, temperature: float, tiny: Any) -> None:
    """Several conversations of several turns at once; the trainer sees each as one row."""
    policy: Policy = tiny(kind)
    engine = tiny_engine(policy, slots=3)
    talks = [prompt(s, 9 + s) for s in range(5)]
    masks = [[0] * len(t) for t in talks]
    sampled: list[list[float]] = [[] for _ in talks]
    plain: list[list[float]] = [[] for _ in talks]
    for turn in range(3):
        results = finish(
            engine,
            [
                Request(t, Sampling(temperature, max_tokens=9), 10 * i + turn, i, f"talk{i}")
                for i, t in enumerate(talks)
            ],
        )
        for i, got in enumerate(results):
            seen = prompt(100 * turn + i, 3 + i)
            talks[i] = talks[i] + got.token_ids + seen
            masks[i] += [1] * len(got.token_ids) + [0] * len(seen)
            sampled[i] += got.logprobs
            plain[i] += got.raw_logprobs
    rows = [Row(t, tuple(m)) for t, m in zip(talks, masks, strict=True)]
    for wanted, at in ((sampled, temperature), (plain, 1.0)):
        with torch.no_grad():
            trained = policy.score(rows, temperature=at).logp_K
        flat = torch.tensor([x for row in wanted for x in row])
        assert float((trained - flat).abs().max()) < 1e-4


# ---------------------------------------------------------------- where it ends


@kinds
def test_the_context_is_a_limit(kind: str, tiny: Any) -> None:
    engine = tiny_engine(tiny(kind), slots=2, max_length=32)
    for length in (20, 31):
        wanted = request(5, ids=prompt(5, length), max_tokens=100)
        got = one(engine, wanted)
        same(got, slowly(tiny(kind), wanted, max_length=32))
        assert len(got.token_ids) <= 32 - length
    for ids in (prompt(5, 32), prompt(5, 50)):
        with pytest.raises(ContextOverflowError, match=str(len(ids))):
            engine.submit(request(5, ids=ids))
    with pytest.raises(ContextOverflowError, match="empty"):
        engine.submit(Request((), Sampling(), 0))
    assert not engine.is_busy


def test_stop_strings_end_the_turn_that_says_them(tiny: Any) -> None:
    policy: Policy = tiny("qwen2")
    engine = tiny_engine(policy)
    free = one(engine, request(2, max_tokens=20))
    text = policy.codec.decode(free.token_ids[:8])
    stop = text[-3:]
    wanted = request(2, max_tokens=20, stop=("never said", stop))
    got, neighbour = finish(engine, [wanted, request(2, max_tokens=20)])
    same(got, slowly(policy, wanted))
    said = policy.codec.decode(got.token_ids)
    assert stop in said
    assert stop not in policy.codec.decode(got.token_ids[:-1])
    assert got.stop_reason is StopReason.STOP
    same(neighbour, free)


# ---------------------------------------------------------------- cache


def turns(
    engine: Any, count: int, session: str | None, seen: Sequence[tuple[int, ...]]
) -> list[Sampled]:
    """A conversation of `count` turns with `seen` as observations."""
    talk, said = prompt(77, 14), []
    for turn in range(count):
        said.append(one(engine, Request(talk, Sampling(max_tokens=8), turn, 0, session)))
        talk += said[-1].token_ids + seen[turn]
    return said


@kinds
def test_continuing_a_conversation_equals_starting_afresh(kind: str, tiny: Any) -> None:
    seen = [prompt(s, 1 + 11 * s) for s in range(4)]
    kept = turns(tiny_engine(tiny(kind), slots=2), 4, "talk", seen)
    for got, wanted in zip(kept, turns(tiny_engine(tiny(kind)), 4, None, seen), strict=True):
        same(got, wanted)


def test_a_new_turn_prefills_only_what_is_new(tiny: Any) -> None:
    engine = tiny_engine(tiny("qwen2"), slots=2)
    talk = prompt(1, 30)
    first = one(engine, Request(talk, Sampling(max_tokens=6), 1, 0, "talk"))
    assert engine.prefilled_tokens == 30
    longer = talk + first.token_ids + prompt(2, 5)
    one(engine, Request(longer, Sampling(max_tokens=6), 2, 0, "talk"))
    # The last sampled token was drawn but never read, so it comes with the five observed ones.
    assert engine.prefilled_tokens == 30 + 6
    one(engine, Request(longer, Sampling(max_tokens=6), 2, 0, "another"))
    assert engine.prefilled_tokens == 30 + 6 + len(longer)


def test_a_history_that_was_edited_is_read_again(tiny: Any) -> None:
    engine = tiny_engine(tiny("qwen2"), slots=2)
    talk = prompt(1, 20)
    one(engine, Request(talk, Sampling(max_tokens=6), 1, 0, "talk"))
    for edited in ((9, *talk[1:], 10, 11), talk[:10], talk):
        wanted = Request(edited, Sampling(max_tokens=6), 2)
        before = engine.prefilled_tokens
        got = one(engine, Request(edited, Sampling(max_tokens=6), 2, 0, "talk"))
        assert engine.prefilled_tokens - before == len(edited)
        same(got, one(tiny_engine(tiny("qwen2")), wanted))


@kinds
def test_a_groups_prompt_is_read_once(kind: str, tiny: Any) -> None:
    engine = tiny_engine(tiny(kind), slots=8)
    ids = prompt(3, 25)
    group = [Request(ids, Sampling(max_tokens=9), s, s, f"s{s}") for s in range(6)]
    other = [Request(prompt(4, 11), Sampling(max_tokens=9), 50, 7, "other")]
    results = finish(engine, [*group, *other])
    assert engine.prefilled_tokens == 25 + 11
    for r, got in zip([*group, *other], results, strict=True):
        same(got, one(tiny_engine(tiny(kind), slots=1), r))
    assert len({r.token_ids for r in results[:6]}) > 1


def test_a_released_conversation_leaves_its_slot(tiny: Any) -> None:
    engine = tiny_engine(tiny("qwen2"), slots=1, invariant=True)
    first = one(engine, request(1, session="a"))
    engine.submit(request(2, session="b"))
    for _ in range(3):
        assert engine.step() == []
    engine.release("a")
    engine.release("never heard of")
    finish(engine)
    again = request(1, ids=request(1).prompt_ids + first.token_ids + (7,), session="a")
    engine.release("b")
    before = engine.prefilled_tokens
    one(engine, again)
    assert engine.prefilled_tokens - before == len(again.prompt_ids)


# ---------------------------------------------------------------- cancel


def test_a_cancelled_request_reports_nothing_and_frees_its_slot(tiny: Any) -> None:
    engine = tiny_engine(tiny("qwen2"), slots=1)
    running = engine.submit(request(1, max_tokens=100, session="a"))
    waiting = engine.submit(request(2, order=1))
    kept = engine.submit(request(3, order=2))
    ended = engine.step()
    engine.cancel(running)
    engine.cancel(waiting)
    engine.cancel(12345)
    while engine.is_busy:
        ended += engine.step()
    assert [h for h, _ in ended] == [kept]
    same(ended[0][1], one(tiny_engine(tiny("qwen2")), request(3)))
    before = engine.prefilled_tokens
    one(engine, request(1, session="a"))
    assert engine.prefilled_tokens - before == len(request(1).prompt_ids)


# ---------------------------------------------------------------- new weights


def test_new_weights_drop_what_was_cached_under_the_old_ones(fresh: Any) -> None:
    policy: Policy = fresh("qwen2")
    engine = tiny_engine(policy, slots=3)
    talk = prompt(1, 16)
    first = one(engine, Request(talk, Sampling(max_tokens=6), 1, 0, "talk"))
    assert first.policy_version == 0
    change(policy)
    engine.update_weights(policy, 4)
    longer = talk + first.token_ids + prompt(2, 4)
    wanted = Request(longer, Sampling(max_tokens=6), 2)
    got = one(engine, Request(longer, Sampling(max_tokens=6), 2, 0, "talk"))
    assert got.policy_version == 4
    same(got, slowly(policy, wanted))


@kinds
@pytest.mark.parametrize("invariant", [True, *long(False)])
def test_what_runs_goes_on_under_new_weights_from_what_they_say_of_the_whole(
    kind: str, invariant: bool, fresh: Any
) -> None:
    """Requests that share a row, that have their own, that wait: each token is the one that the
    version which it carries draws after all that came before, with that one's probability."""
    policy: Policy = fresh(kind)
    engine = tiny_engine(policy, slots=4, invariant=invariant)
    talk, sampling = prompt(1, 16), Sampling(max_tokens=9)
    asked = [Request(talk, sampling, seed, 0, f"talk{seed}") for seed in (1, 2)]
    asked += [Request(talk, sampling, 1, 1), Request(prompt(5, 30), sampling, 4, 2)]
    asked += [Request(prompt(6, 20), sampling, 5, 3)]
    handles = [engine.submit(r) for r in asked]
    results: dict[int, Sampled] = {}
    versions = {0: policy.copy()}
    for version, steps in ((1, 3), (2, 0), (5, 2)):
        for _ in range(steps):
            results |= dict(engine.step())
        change(policy)
        engine.update_weights(policy, version)
        versions[version] = policy.copy()
    while engine.is_busy:
        results |= dict(engine.step())
    found = [results[handle] for handle in handles]
    for got, wanted in zip(found, asked, strict=True):
        drawn_by_their_versions(got, wanted, versions)
    assert any(got.versions == ((0, 4), (2, 6), (5, len(got.token_ids))) for got in found)
    assert found[-1].policy_version == 5, "it waited for a slot"
    longer = talk + found[0].token_ids + prompt(2, 4)
    before = engine.prefilled_tokens
    got = one(engine, Request(longer, Sampling(max_tokens=6), 2, 0, "talk1"))
    assert engine.prefilled_tokens - before == 5, "what was computed anew is kept for later turns"
    assert (got.policy_version, got.versions) == (5, None)
    same(got, slowly(policy, Request(longer, Sampling(max_tokens=6), 2)))


@torch.no_grad()
def drawn_by_their_versions(got: Sampled, wanted: Request, versions: dict[int, Policy]) -> None:
    numbers, start = draw_uniforms(wanted.seed, len(got.token_ids)), 0
    for version, end in version_spans(got):
        model = transformers_model(versions[version])
        for i in range(start, end):
            ids = torch.tensor([wanted.prompt_ids + got.token_ids[:i]])
            logits = model(ids).logits[0, -1:].float()
            token, logp, _ = draw(logits, torch.tensor([numbers[i]]))
            assert int(token) == got.token_ids[i]
            assert got.logprobs[i] == pytest.approx(float(logp), abs=1e-4)
        start = end


def change(policy: Policy) -> None:
    with torch.no_grad():
        for tensor in policy.parameters():
            tensor.add_(
                0.05 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(9))
            )


def resident() -> int:
    """Bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux says it in /proc")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cache_that_nothing_was_written_to_takes_no_memory(dtype: torch.dtype) -> None:
    """128 slots of a model of 135 million parameters would be 6 GB, where 16 rollouts use 12 %."""
    network = tiny_policy().network
    assert isinstance(network, FusedNetwork)
    weights = network.weights.to(network.device, dtype)
    one = Cache.allocate(weights, 1, 1023)
    rows = (1 << 30) // sum(t.nbytes for t in [*one.keys, *one.values])
    before = resident()
    cache = Cache.allocate(weights, rows, 1023)
    assert resident() - before < 1 << 26
    for tensor in (*cache.keys, *cache.values):
        assert tensor.dtype == dtype
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 64 == 0
        assert not tensor[rows // 2].any()


def test_cache_grows_with_the_longest_sequence_and_keeps_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wide rows of short sequences take more memory, so a long context is not allocated at once."""
    policy = tiny_policy(max_positions=2048)
    short, long = prompt(1, 40), prompt(2, 600)
    asked = [
        Request(ids, Sampling(max_tokens=16), seed, 0, name)
        for seed, (ids, name) in enumerate([(short, "a"), (long, "b"), (short, "c")])
    ]

    def played(first: int) -> list[Sampled]:
        monkeypatch.setattr("tutelage.engine.backends._FIRST_WIDTH", first)
        engine = tiny_engine(policy, slots=3)
        found = [one(engine, request) for request in asked]
        more = short + found[0].token_ids + prompt(3, 8)
        return [*found, one(engine, Request(more, Sampling(max_tokens=8), 9, 0, "a"))]

    assert played(64) == played(2048)


def invariant_runs(policy: Policy, seed: int) -> dict[int, list[Sampled]]:
    """Eight conversations of two turns among random others, in random order, at random moments."""
    chance = random.Random(seed)
    engine = tiny_engine(policy, slots=6, invariant=True)
    said: dict[int, list[Sampled]] = {i: [] for i in range(8)}
    handles: dict[int, int] = {}
    waiting = [(i, talk_request(i, [])) for i in range(8)]
    noise = 100 * (1 + seed)
    while waiting or engine.is_busy:
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


def test_an_engine_begins_with_the_version_and_the_length_of_its_policy() -> None:
    policy = tiny_policy(max_positions=64)
    policy.version = 3
    assert make_engine(policy, slots=1).version == 3
    assert make_engine(policy, slots=1).max_length == 64
    assert make_engine(policy, slots=1, max_length=32).max_length == 32
    assert make_engine(policy, slots=1, max_length=999).max_length == 64


def test_an_engine_refuses_the_weights_of_another_kind_of_network(tiny: Any) -> None:
    for mine, theirs in (("qwen2", "gpt2"), ("gpt2", "qwen2")):
        with pytest.raises(TypeError, match="does not support"):
            make_engine(tiny(mine), slots=1).update_weights(tiny(theirs), 1)


def test_one_engine_serves_one_loop_after_another(tiny: Any) -> None:
    """A loop that ended with a step planned does not keep the next one from stepping."""
    engine = make_engine(tiny("qwen2"), slots=2)
    wanted = Request(prompt(1, 8), Sampling(max_tokens=4), 1)

    async def play() -> Any:
        async with engine.participant():
            return await asyncio.wait_for(engine.sample(wanted), 30)

    first, second = asyncio.run(play()), asyncio.run(play())
    assert first == second
