"""The forward of large models, on tiny ones: what is sampled, and what is computed for it."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from playback import finish, one, prompt, slowly
from tests.marks import long

from tutelage.engine.factory import make_engine
from tutelage.engine.native import NativeEngine
from tutelage.engine.protocol import Request
from tutelage.policy.model import Policy
from tutelage.policy.row import Row
from tutelage.testing import tiny_policy
from tutelage.types import Sampled, Sampling

SYSTEM = prompt(99, 40)
kinds = pytest.mark.parametrize("kind", ["qwen2", *long("qwen3", "llama")])
types = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@pytest.fixture(autouse=True)
def every_model_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tutelage.engine.backends.SMALL_MODEL", 0)


def engine_of(policy: Policy, dtype: torch.dtype = torch.float32, slots: int = 5) -> NativeEngine:
    return make_engine(policy, slots=slots, dtype=dtype).engine


def asked(seed: int, *, session: str | None = None, tokens: int = 9) -> Request:
    """Half of them begin with the system prompt, with tails of all lengths."""
    tail = prompt(seed, 1 + 7 * seed % 45)
    shared = len(SYSTEM) if seed % 2 else 0
    ids = SYSTEM[:shared] + tail
    sampling = Sampling((1.0, 0.7, 0.0)[seed % 3], max_tokens=tokens + seed % 5)
    return Request(ids, sampling, 50 + seed, seed, session, shared=shared)


@kinds
def test_each_request_gets_what_a_plain_forward_would_sample(kind: str, tiny: Any) -> None:
    policy: Policy = tiny(kind)
    requests = [asked(seed) for seed in range(14)]
    random.Random(0).shuffle(requests)
    got = finish(engine_of(policy), requests)
    for found, wanted in zip(got, (slowly(policy, r) for r in requests), strict=True):
        assert found.token_ids == wanted.token_ids
        assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
        assert found.raw_logprobs == pytest.approx(wanted.raw_logprobs, abs=1e-4)


def talks(engine: NativeEngine, seeds: range) -> list[tuple[Row, list[Sampled]]]:
    """Conversations of three turns at once, in pairs that begin alike, of different lengths."""
    said: dict[int, list[Sampled]] = {seed: [] for seed in seeds}
    ids = {seed: asked(seed // 2).prompt_ids for seed in seeds}
    mask = {seed: [0] * len(ids[seed]) for seed in seeds}
    for turn in range(3):
        requests = [
            Request(
                ids[s], Sampling(max_tokens=3 + 5 * (s % 4)), 10 * (s // 2) + s % 2, s, f"talk{s}",
                shared=len(SYSTEM) if s // 2 % 2 else 0,
            )
            for s in seeds
        ]  # fmt: skip
        for seed, found in zip(seeds, finish(engine, requests), strict=True):
            said[seed].append(found)
            seen = prompt(1000 + 10 * seed + turn, 3 + 4 * seed % 15)
            ids[seed] = ids[seed] + found.token_ids + seen
            mask[seed] += [1] * len(found.token_ids) + [0] * len(seen)
    for seed in seeds:
        engine.release(f"talk{seed}")
    return [(Row(ids[s], tuple(mask[s])), said[s]) for s in seeds]


@kinds
@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)], ids=["fp32", "bf16"]
)
@pytest.mark.parametrize("slots", [3, *long(12)])
def test_log_probabilities_are_the_trainers(
    kind: str, dtype: torch.dtype, most: float, slots: int, tiny: Any
) -> None:
    policy: Policy = tiny(kind)
    found = talks(engine_of(policy, dtype, slots), range(8))
    with torch.no_grad():
        trained = policy.score([row for row, _ in found]).logp_K
    sampled = torch.tensor([x for _, said in found for one in said for x in one.logprobs])
    assert float((trained - sampled).abs().max()) < most


@types
def test_what_was_kept_before_changes_no_bit(dtype: torch.dtype, tiny: Any) -> None:
    policy: Policy = tiny("qwen3")
    fresh, used = (engine_of(policy, dtype, slots=8) for _ in range(2))
    talks(used, range(8))
    one(used, Request(prompt(7, 180), Sampling(max_tokens=30), 1))
    assert talks(used, range(20, 27)) == talks(fresh, range(20, 27))


@pytest.mark.full
@types
def test_shards_change_no_bit_by_the_cores_that_compute_them(
    dtype: torch.dtype, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty rows in two shards, on one thread and on two; a later engine is as good as the first
    after one that failed in a shard."""
    policy: Policy = tiny("qwen3")
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.setattr("tutelage.policy.machine.SMALL_MODEL", 0)
    embedding, seen = F.embedding, set[str]()

    def watched(ids: torch.Tensor, weight: torch.Tensor, *others: Any) -> torch.Tensor:
        seen.add(threading.current_thread().name)
        assert torch.get_num_threads() == 1
        return embedding(ids, weight, *others)

    def failing(ids: torch.Tensor, weight: torch.Tensor, *others: Any) -> torch.Tensor:
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("in a shard")
        return embedding(ids, weight, *others)

    found: list[Any] = []
    for cores in (1, 2):
        monkeypatch.setattr("tutelage.policy.machine._count_cores", lambda cores=cores: cores)
        monkeypatch.setattr(F, "embedding", watched)
        seen.clear()
        found.append(talks(engine_of(policy, dtype, slots=20), range(20)))
        assert len(seen - {"MainThread"}) == cores  # which computes the prompts
        if cores == 2:
            monkeypatch.setattr(F, "embedding", failing)
            with pytest.raises(MemoryError):
                talks(engine_of(policy, dtype, slots=20), range(20))
            monkeypatch.setattr(F, "embedding", watched)
            found.append(talks(engine_of(policy, dtype, slots=20), range(20)))
    assert found[0] == found[1] == found[2]


def test_a_shared_prefix_is_computed_once_until_the_weights_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, changed = tiny_policy("llama"), tiny_policy("llama", seed=5)
    engine = engine_of(policy)
    computed: list[int] = []
    embedding = F.embedding

    def counted(ids: torch.Tensor, weight: torch.Tensor, *others: Any) -> torch.Tensor:
        computed.append(ids.numel())
        return embedding(ids, weight, *others)

    monkeypatch.setattr(F, "embedding", counted)

    def cost(request: Request) -> tuple[int, Sampled]:
        computed.clear()
        found = one(engine, request)
        return sum(computed) - len(found.token_ids) + 1, found

    first, second = asked(3), asked(5)
    assert cost(first)[0] == len(first.prompt_ids)
    assert cost(second)[0] == len(second.prompt_ids) - len(SYSTEM)
    several = [asked(seed) for seed in (7, 9, 11)]
    before = engine.prefilled_tokens
    finish(engine, several)
    assert engine.prefilled_tokens - before == sum(len(r.prompt_ids) - 40 for r in several)
    engine.update_weights(changed, 1)
    tokens, found = cost(second)
    assert tokens == len(second.prompt_ids)
    assert found.token_ids == slowly(changed, second).token_ids


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_an_engine_holds_can_be_freed_between_two_updates(
    dtype: torch.dtype, tiny: Any
) -> None:
    policy: Policy = tiny("qwen2")
    engine = engine_of(policy, dtype)
    before = talks(engine, range(3))
    tensors = [weakref.ref(t) for t in gc.get_objects() if type(t) is torch.Tensor]
    engine.submit(asked(1))
    engine.free()
    assert engine.version == 0, "not while a request runs"
    while engine.is_busy:
        engine.step()
    engine.free()
    gone = [ref for ref in tensors if ref() is None]
    assert len(gone) >= 2 * len(policy.network.weights.layers), "keys and values of each block"
    engine.update_weights(policy, 0)
    assert talks(engine, range(3)) == before
