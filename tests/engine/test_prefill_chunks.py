"""Long prompts: prefilled in chunks, while others go on, within the memory that is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from playback import finish, one, prompt, request, short_chunks, slowly
from tests.marks import long
from torch.utils._python_dispatch import TorchDispatchMode

from tutelage.engine.factory import make_engine
from tutelage.engine.native import NativeEngine
from tutelage.engine.protocol import Request
from tutelage.errors import OutOfMemoryError
from tutelage.policy.model import Policy
from tutelage.testing import tiny_engine, tiny_policy
from tutelage.types import Sampled, Sampling

KINDS = ["qwen2", *long("qwen3"), "packed", "gpt2", *long("sliding")]
kinds = pytest.mark.parametrize("kind", KINDS)
SYSTEM = prompt(99, 70)


def policy_and_engine(
    kind: str, tiny: Any, patch: pytest.MonkeyPatch, **options: Any
) -> tuple[Policy, NativeEngine]:
    """A tiny policy and an engine that prefills more than 32 tokens in chunks of 16."""
    short_chunks(patch, whole=32, chunk=16)
    if kind == "packed":
        patch.setattr("tutelage.engine.backends.SMALL_MODEL", 0)
    policy = tiny("qwen3" if kind == "packed" else kind)
    return policy, make_engine(policy, schedule="free", **{"slots": 6, **options}).engine


def calls_of(engine: NativeEngine, patch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The number of rows and of new tokens of each call of the engine's backend."""
    calls: list[tuple[int, ...]] = []
    extend = engine._backend.extend

    def noted(ids_BT: torch.Tensor, *others: Any) -> torch.Tensor:
        calls.append(tuple(ids_BT.shape))
        return extend(ids_BT, *others)

    patch.setattr(engine._backend, "extend", noted)
    return calls


@kinds
def test_chunks_sample_what_a_plain_forward_would(
    kind: str, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long and short, some with a long beginning in common, some equal, in a few slots."""
    policy, engine = policy_and_engine(kind, tiny, monkeypatch, slots=4)
    calls = calls_of(engine, monkeypatch)
    tails = [prompt(seed, 3 + 37 * seed % 101) for seed in range(8)]
    asked = [
        Request(
            SYSTEM * (s % 2) + tails[s // 2 * 2], Sampling(max_tokens=6), s, s, shared=70 * (s % 2)
        )
        for s in range(8)
    ]
    asked += [replace(asked[1], seed=50), replace(asked[6], seed=51)]
    for got, wanted in zip(finish(engine, asked), asked, strict=True):
        expected = slowly(policy, wanted)
        assert got.token_ids == expected.token_ids
        assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert max(count for _, count in calls) <= 32
    assert {count for rows, count in calls if rows == 1} >= {16}


@kinds
def test_others_go_on_between_the_chunks(
    kind: str, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, engine = policy_and_engine(kind, tiny, monkeypatch)
    early, late = (request(s, max_tokens=4) for s in (1, 2))
    long = request(3, ids=prompt(3, 150), max_tokens=3)
    handles = {engine.submit(early): early}
    engine.step()
    handles[engine.submit(long)] = long
    engine.step()
    handles[engine.submit(late)] = late
    assert engine.prefilling
    ended: list[Request] = []
    while engine.is_busy:
        for handle, got in engine.step():
            ended.append(handles[handle])
            assert got.token_ids == slowly(policy, handles[handle]).token_ids
    assert ended == [early, late, long]
    again = [request(s, ids=prompt(s, 100), max_tokens=3) for s in (4, 5)]
    assert [g.token_ids for g in finish(engine, again)] == [
        slowly(policy, r).token_ids for r in again
    ]


@pytest.mark.parametrize("large", [True, *long(False)])
@pytest.mark.parametrize("size", [1024, 1025, *long(1000)])
def test_a_prompt_of_up_to_1024_tokens_is_computed_in_one_call(
    size: int, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bits are those of that call, also where a longer prompt is prefilled meanwhile."""
    if large:
        monkeypatch.setattr("tutelage.engine.backends.SMALL_MODEL", 0)
    policy = tiny_policy(max_positions=2048)
    engine = tiny_engine(policy, slots=3)
    calls = calls_of(engine, monkeypatch)
    wanted = Request(prompt(1, size), Sampling(max_tokens=2), 1, order=1)
    got = one(engine, wanted)
    rows = 1 if large or size > 1024 else 4
    assert (calls[0] == (rows, size)) == (size <= 1024)
    assert max(tokens for _, tokens in calls[1:]) == (1 if size <= 1024 else calls[0][1])
    longer = Request(prompt(2, 1500), Sampling(max_tokens=2), 2)
    if size <= 1024:
        assert finish(engine, [longer, wanted])[1].logprobs[0] == got.logprobs[0]


@pytest.mark.parametrize("kind", ["qwen2", "packed"])
def test_new_weights_between_two_chunks_compute_the_whole_prompt(
    kind: str, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a running request has is computed again in chunks, where that is long."""
    policy, engine = policy_and_engine(kind, tiny, monkeypatch)
    changed = tiny_policy(policy.config.model_type, seed=5)
    running = request(1, ids=prompt(1, 40), max_tokens=30)
    waiting = Request(SYSTEM + prompt(2, 60), Sampling(max_tokens=5), 3, shared=70)
    handles = [engine.submit(running)]
    while not engine.decoded_tokens:
        engine.step()
    handles.append(engine.submit(waiting))
    for _ in range(2):
        assert not engine.step()
    engine.update_weights(changed, 1)
    ended: dict[int, Sampled] = {}
    while engine.is_busy:
        ended |= dict(engine.step())
    got = ended[handles[1]]
    assert (got.policy_version, got.versions) == (1, None)
    assert got.token_ids == slowly(changed, waiting).token_ids
    spans = ended[handles[0]].versions
    assert spans is not None
    assert [version for version, _ in spans] == [0, 1]


def test_a_prompt_that_memory_cannot_hold_is_refused(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is tried; one that fits into what an earlier one took is not refused."""
    policy, engine = policy_and_engine("qwen2", tiny, monkeypatch)
    wanted = request(1, ids=prompt(1, 200), max_tokens=2)
    masks = 16 * 16 * 200
    free = masks + 200 * policy.token_bytes(torch.float32)
    monkeypatch.setattr("tutelage.engine.native.free_memory", lambda _: free - 1)
    with pytest.raises(OutOfMemoryError, match=r"200 tokens.* 0\.00 GB .* 0\.00 GB are"):
        engine.submit(wanted)
    monkeypatch.setattr("tutelage.engine.native.free_memory", lambda _: free)
    engine.submit(wanted)
    with pytest.raises(OutOfMemoryError, match="200 tokens"):
        engine.submit(wanted)
    finish(engine)
    monkeypatch.setattr("tutelage.engine.native.free_memory", lambda _: masks)
    one(engine, wanted)
    monkeypatch.setattr("tutelage.engine.native.free_memory", lambda _: 0)
    one(engine, request(2, ids=prompt(2, 32), max_tokens=2))


class _Largest(TorchDispatchMode):
    """Notes the most elements of a tensor that an operation returned."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.elements = max(self.elements, out.numel())
        return out


@pytest.mark.parametrize("large", [False, True])
def test_memory_grows_with_the_length_of_a_prompt_and_not_with_its_square(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr("tutelage.engine.backends.SMALL_MODEL", 0)
    engine = tiny_engine(tiny_policy(max_positions=4096), slots=2)
    engine.submit(request(1, ids=prompt(1, 3000), max_tokens=1))
    with _Largest() as seen:
        finish(engine)
    assert seen.elements <= 4 * 256 * 1024, "the scores of a chunk in a prompt of 1,024 tokens"
