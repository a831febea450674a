"""Drawing: right distribution, right support, right log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tutelage.engine.sampler import draw, draw_uniforms


def logits_of(seed: int, vocab: int = 12) -> torch.Tensor:
    return 2 * torch.randn(1, vocab, generator=torch.Generator().manual_seed(seed))


def spread(logits: torch.Tensor, count: int = 4000, **limits: float) -> torch.Tensor:
    """Shares of the tokens drawn by evenly spread uniforms."""
    u = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    rows = logits.expand(count, -1)
    token, _, _ = draw(
        rows,
        u,
        torch.full((count,), limits.get("temperature", 1.0)),
        torch.full((count,), limits.get("top_p", 1.0)),
        torch.full((count,), int(limits.get("top_k", 0))),
    )
    return torch.bincount(token, minlength=logits.shape[1]) / count


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_with_their_probability(temperature: float) -> None:
    logits = logits_of(0)
    wanted = (logits[0] / temperature).softmax(0)
    torch.testing.assert_close(spread(logits, temperature=temperature), wanted, atol=1e-3, rtol=0)


@given(
    seed=st.integers(0, 50),
    top_k=st.integers(0, 15),
    top_p=st.floats(0.01, 1.0),
    uniform=st.floats(0, 1, exclude_max=True),
)
@example(seed=0, top_k=1, top_p=1.0, uniform=float(np.nextafter(np.float32(1), np.float32(0))))
@settings(max_examples=100, deadline=None)
def test_a_drawn_token_is_always_in_the_support(
    seed: int, top_k: int, top_p: float, uniform: float
) -> None:
    logits = logits_of(seed)
    logits[0, -1] = -torch.inf  # never possible, and where rounding up would land
    token, logp, raw = draw(
        logits,
        torch.tensor([np.float32(uniform) if uniform < 1 - 2**-24 else 1 - 2**-24]),
        torch.tensor([0.8]),
        torch.tensor([top_p]),
        torch.tensor([top_k]),
    )
    warm = (logits[0].double() / 0.8).softmax(0)
    order = warm.argsort(descending=True)
    allowed = order[:top_k] if top_k else order
    mass = warm[allowed] / warm[allowed].sum()
    needed = int((mass.cumsum(0) < top_p - 1e-6).sum()) + 1
    assert int(token) in allowed[:needed].tolist()
    assert float(logp) == pytest.approx(float(warm[token].log()), abs=1e-5)
    assert float(raw) == pytest.approx(float(logits[0].log_softmax(0)[token]), abs=1e-5)


def test_top_k_and_top_p_renormalise_within_the_support() -> None:
    logits = logits_of(3)
    probs = logits[0].softmax(0)
    best = probs.argsort(descending=True)[:3]
    wanted = torch.zeros(12).index_put((best,), probs[best] / probs[best].sum())
    torch.testing.assert_close(spread(logits, top_k=3), wanted, atol=1e-3, rtol=0)
    ordered = probs.sort(descending=True)
    count = int((ordered.values.cumsum(0) < 0.8).sum()) + 1
    kept = ordered.indices[:count]
    wanted = torch.zeros(12).index_put((kept,), probs[kept] / probs[kept].sum())
    torch.testing.assert_close(spread(logits, top_p=0.8), wanted, atol=1e-3, rtol=0)


def test_uniforms_are_a_function_of_the_seed_and_prefixes_of_one_stream() -> None:
    assert np.array_equal(draw_uniforms(7, 5), draw_uniforms(7, 50)[:5])
    assert not np.array_equal(draw_uniforms(7, 5), draw_uniforms(8, 5))
    many = draw_uniforms(1, 10_000)
    assert 0 <= many.min() < many.max() < 1
    assert abs(many.mean() - 0.5) < 0.02
    draw_uniforms(2**63 - 1, 1)


@pytest.mark.parametrize("temperature", [None, 0.0, 0.7])
@pytest.mark.parametrize("vocab", [8192, 8200])
def test_a_large_vocabulary_is_drawn_from_as_a_small_one(
    vocab: int, temperature: float | None
) -> None:
    """Lines of logits that several draws share, with tokens that a grammar rules out."""
    generator = torch.Generator().manual_seed(vocab)
    logits = 3 * torch.randn(5, vocab, generator=generator)
    logits[3, 100:] = -torch.inf
    logits[4, :-1] = -torch.inf
    line = torch.arange(60) % 5
    uniform = torch.rand(60, generator=generator)
    uniform[-6:] = 1 - 2**-24
    warm = None if temperature is None else torch.full((60,), temperature)
    token, logp, raw = draw(logits, uniform, warm, line_B=line)
    plain = logits.double().log_softmax(-1)[line]
    wanted = (logits.double() / (temperature or 1)).log_softmax(-1)[line]
    if temperature == 0:
        assert token.tolist() == logits[line].argmax(-1).tolist()
    else:
        above = wanted.exp().cumsum(-1).gather(1, token[:, None]).squeeze(1)
        chance = wanted.gather(1, token[:, None]).squeeze(1).exp()
        assert bool((chance > 0).all())
        assert bool((above > uniform - 1e-5).all())
        assert bool((above - chance <= uniform + 1e-5).all())
    for got, of in ((logp, wanted), (raw, plain)):
        expected = of.gather(1, token[:, None]).squeeze(1).float()
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
