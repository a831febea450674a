"""Laws 2 and 3 on gradients: they do not depend on the cut, the padding, or what is shared."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.marks import long

from tutelage.policy import network
from tutelage.policy.packing import MicroBatch, plan_micro_batches
from tutelage.policy.row import Row
from tutelage.testing import tiny_policy

KINDS = ["qwen2", "qwen3", "llama", "gpt2", "sliding"]
FEW = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

policy_of = functools.cache(tiny_policy)


@st.composite
def groups(draw: Any) -> list[Row]:
    """Rows of a few prompts, some prompts begin alike; turns and observations alternate."""
    ids = st.integers(0, 319)
    system = draw(st.lists(ids, max_size=5))
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 3))):
        prompt = [*system, *draw(st.lists(ids, max_size=12))]
        for _ in range(draw(st.integers(1, 3))):
            row, mask = list(prompt), [0] * len(prompt)
            for trained in draw(st.lists(st.booleans(), max_size=4)):
                piece = draw(st.lists(ids, min_size=1, max_size=9))
                row += piece
                mask += [int(trained)] * len(piece)
            if row:
                rows.append(Row(tuple(row), tuple(mask)))
    return rows or [Row((1, 2, 3), (0, 0, 1))]


def weights_of(rows: Sequence[Row]) -> list[list[float]]:
    """A weight for each token, a function of the row's own content, as an advantage would be."""
    return [[((7 * t + 3 * i) % 11 - 5) / 5 for i, t in enumerate(row.ids)] for row in rows]


def scored(
    policy: Any, rows: Sequence[Row], batches: Sequence[Sequence[int]], **options: Any
) -> tuple[dict[tuple[int, int], float], list[torch.Tensor]]:
    """Log-probability of each trained (row, column), and the gradient of their weighted sum."""
    weights = weights_of(rows)
    total = [torch.zeros_like(p) for p in policy.parameters()]
    logp: dict[tuple[int, int], float] = {}
    for batch in batches:
        scores = policy.score([rows[i] for i in batch], **options)
        where = [
            (batch[r], c)
            for r, c in zip(scores.rows_K.tolist(), scores.columns_K.tolist(), strict=True)
        ]
        logp |= dict(zip(where, scores.logp_K.tolist(), strict=True))
        weight = torch.tensor([weights[r][c] for r, c in where])
        grads = torch.autograd.grad(
            (scores.logp_K * weight).sum(), policy.parameters(), allow_unused=True
        )
        for sum_, grad in zip(total, grads, strict=True):
            if grad is not None:
                sum_ += grad
    return logp, total


def assert_same(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    assert one[0].keys() == other[0].keys()
    assert one[0] == pytest.approx(other[0], abs=2e-5)
    # 1e-5 of the gradient's norm: entries that cancel to nothing carry the rounding of the rest.
    scale = max(1.0, max(float(g.norm()) for g in one[1]))
    for a, b in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 * scale, rtol=0)


@pytest.mark.full
@pytest.mark.parametrize("layout", ["qwen2", "qwen3"])
@given(rows=groups(), data=st.data())
@FEW
def test_no_cut_into_micro_batches_changes_the_gradient(
    one_thread: None, layout: str, rows: list[Row], data: Any
) -> None:
    policy = policy_of(layout)
    order = data.draw(st.permutations(range(len(rows))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(rows)), max_size=3)) | {len(rows)})
    batches = [order[a:b] for a, b in zip([0, *cuts], cuts, strict=False)]
    alone = scored(policy, rows, [[i] for i in range(len(rows))])
    assert_same(alone, scored(policy, rows, batches))
    expected = {(r, c) for r, row in enumerate(rows) for c, m in enumerate(row.mask) if m and c}
    assert alone[0].keys() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_every_network_agrees_with_itself_however_the_batch_is_cut(kind: str, tiny: Any) -> None:
    rows = fixed_rows()
    one = scored(tiny(kind), rows, [[i] for i in range(len(rows))], temperature=0.7)
    assert_same(one, scored(tiny(kind), rows, [range(len(rows))], temperature=0.7))
    assert_same(one, scored(tiny(kind), rows, [[3, 0], [4, 2, 1]], temperature=0.7))


def fixed_rows() -> list[Row]:
    generator = torch.Generator().manual_seed(2)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(5, 320, (count,), generator=generator).tolist())

    system, prompt = ids(4), ids(11)
    return [
        Row(system + prompt + ids(20), (0,) * 15 + (1,) * 6 + (0,) * 5 + (1,) * 9),
        Row(system + prompt + ids(3), (0,) * 15 + (1,) * 3),
        Row(system + ids(40), (0,) * 30 + (1,) * 14),
        Row(ids(2), (0, 1)),
        Row(ids(9), (1,) * 9),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_padding_a_row_with_untrained_tokens_changes_nothing(kind: str, tiny: Any) -> None:
    rows = fixed_rows()
    longer = [Row(r.ids + (7,) * (3 + i), r.mask + (0,) * (3 + i)) for i, r in enumerate(rows)]
    batch = [range(len(rows))]
    assert_same(scored(tiny(kind), rows, batch), scored(tiny(kind), longer, batch))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_trained_tokens_add_nothing(kind: str, tiny: Any) -> None:
    rows = [*fixed_rows(), Row((5, 6, 7), (0, 0, 0)), Row((9,), (0,))]
    with_them = scored(tiny(kind), rows, [range(len(rows))])
    assert_same(scored(tiny(kind), rows, [range(5)]), with_them)
    scores = tiny(kind).score(rows[5:])
    assert scores.logp_K.shape == scores.entropy_K.shape == (0,)
    scores.logp_K.sum().backward()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.7, *long(1.0, 1.5)])
def test_scores_are_of_the_tempered_distribution(kind: str, temperature: float, tiny: Any) -> None:
    row = fixed_rows()[2]
    policy = tiny(kind)
    every = [Row((*row.ids[:30], token), (0,) * 30 + (1,)) for token in range(320)]
    with torch.no_grad():
        plain = policy.score(every).logp_K
        scores = policy.score(every, temperature=temperature)
    torch.testing.assert_close(plain.exp().sum(), torch.tensor(1.0), atol=1e-4, rtol=0)
    wanted = (plain / temperature).log_softmax(0)
    torch.testing.assert_close(scores.logp_K, wanted, atol=2e-5, rtol=1e-5)
    entropy = -(wanted.exp() * wanted).sum()
    torch.testing.assert_close(scores.entropy_K[0], entropy, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_entropy_has_a_gradient_only_when_asked_for(kind: str, tiny: Any) -> None:
    policy, rows = tiny(kind), fixed_rows()
    assert not policy.score(rows).entropy_K.requires_grad
    scores = policy.score(rows, entropy_gradient=True)
    grads = torch.autograd.grad(scores.entropy_K.sum(), policy.parameters())
    assert max(float(g.abs().max()) for g in grads) > 0


@pytest.mark.parametrize("entropy", [False, True])
def test_vocabulary_scores_in_chunks_give_the_same_gradient(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, entropy: bool
) -> None:
    policy, rows = tiny("qwen3"), fixed_rows()

    def found() -> tuple[list[torch.Tensor], torch.Tensor]:
        scores = policy.score(rows, temperature=1.5, entropy_gradient=entropy)
        assert scores.entropy_K.requires_grad == entropy
        weight_K = torch.arange(float(len(scores.logp_K))) % 5 - 2
        value = (weight_K * (scores.logp_K + 0.3 * scores.entropy_K)).sum()
        return list(torch.autograd.grad(value, policy.parameters())), scores.entropy_K.detach()

    whole, entropy_K = found()
    monkeypatch.setattr(network, "_LOGITS_LIMIT", 320 * 7)
    chunked, again_K = found()
    torch.testing.assert_close(again_K, entropy_K)
    size = max(float(g.norm()) for g in whole)
    for a, b in zip(whole, chunked, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 * size, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_a_large_model_keeps_less_for_its_backward_pass_and_has_the_same_gradient(
    kind: str, dtype: torch.dtype, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tiny(kind)

    def found() -> tuple[list[torch.Tensor], int]:
        kept = dict[int, int]()

        def pack(t: torch.Tensor) -> torch.Tensor:
            kept[t.data_ptr()] = t.numel()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            value = policy.score(fixed_rows(), dtype=dtype).logp_K.sum()
        return list(torch.autograd.grad(value, policy.parameters())), sum(kept.values())

    plain, most = found()
    monkeypatch.setattr(policy.network, "large", True)
    lean, least = found()
    for (name, _), a, b in zip(policy.named_tensors(), plain, lean, strict=True):
        # The gradients of an embedding that is the head too are added in another order.
        bound = 1e-5 if name == "embed" else 0.0
        torch.testing.assert_close(b, a, atol=bound, rtol=bound, msg=name)
    assert least < 0.75 * most


def test_bfloat16_activations_stay_close_and_gradients_arrive_in_float32(tiny: Any) -> None:
    policy, rows = tiny("qwen2"), fixed_rows()
    exact = policy.score(rows).logp_K
    scores = policy.score(rows, dtype=torch.bfloat16)
    assert float((scores.logp_K - exact).detach().abs().max()) < 1.0
    grads = torch.autograd.grad(scores.logp_K.sum(), policy.parameters())
    wanted = torch.autograd.grad(exact.sum(), policy.parameters())
    assert all(g.dtype == torch.float32 for g in grads)
    for got, want in zip(grads, wanted, strict=True):
        assert torch.cosine_similarity(got.flatten(), want.flatten(), dim=0) > 0.95


@given(rows=groups(), limit=st.integers(1, 80), shared=st.booleans())
@settings(max_examples=100, deadline=None)
def test_micro_batches_hold_every_row_once_and_stay_within_the_limit(
    rows: list[Row], limit: int, shared: bool
) -> None:
    """Where prefixes are shared it holds for the tokens that are computed."""
    batches = plan_micro_batches(rows, limit, shared=shared)
    assert sorted(i for batch in batches for i in batch) == list(range(len(rows)))
    assert len(batches) <= len(plan_micro_batches(rows, limit))
    for mine in ([rows[i] for i in batch] for batch in batches):
        size = _computed(mine) if shared else sum(len(row.ids) for row in mine)
        assert len(mine) == 1 or size <= limit


def _computed(rows: list[Row]) -> int:
    """Tokens that a micro-batch of these rows computes."""
    laid = MicroBatch.pack(rows, torch.device("cpu"), torch.float32)
    queries = torch.cat([s.queries_RT.flatten() for s in laid.segments]).unique()
    return int((queries < len(laid.ids_N) - 1).sum())
