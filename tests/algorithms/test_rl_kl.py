"""KL estimators, the exact KL, entropy, controllers; weights for the sampler's mismatch."""

import math

import flat_losses
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_batches import batches, split

from tutelage.algorithms.rl import (
    CORRECTIONS,
    KL_KINDS,
    AdaptiveKL,
    entropy,
    importance_weights,
    kl_in_reward,
    kl_penalty,
)
from tutelage.errors import ConfigError

K = [0.0, 0.5, -0.5, 3.0, -3.0, 30.0, -30.0]


def flat(kind: str, k: float) -> float:
    x = min(max(-k, -20.0), 20.0)
    return {
        "kl": k,
        "k1": k,
        "abs": abs(k),
        "mse": 0.5 * k * k,
        "k2": 0.5 * k * k,
        "low_var_kl": min(max(math.exp(x) - x - 1, -10.0), 10.0),
        "k3": min(max(math.exp(x) - x - 1, -10.0), 10.0),
    }[kind]


@pytest.mark.parametrize("kind", [k for k in KL_KINDS if k != "full"])
def test_values(kind):
    ref = torch.linspace(-3, -1, len(K), dtype=torch.float64).unsqueeze(0)
    got = kl_penalty(ref + torch.tensor([K]).double(), ref, kind)
    wanted = [flat(kind.removesuffix("+"), k) for k in K]
    assert got[0].tolist() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("kind", [k for k in KL_KINDS if k.endswith("+")])
def test_a_plus_keeps_the_value_and_takes_the_gradient_of_k2(kind):
    ref = torch.linspace(-3, -1, len(K), dtype=torch.float64).unsqueeze(0)
    logp = (ref + torch.tensor([K]).double()).requires_grad_()
    value = kl_penalty(logp, ref, kind)
    assert torch.equal(value.detach(), kl_penalty(logp, ref, kind[:-1]).detach())
    (gradient,) = torch.autograd.grad(value.sum(), logp)
    assert gradient[0].tolist() == pytest.approx(K)


def logits(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)


def test_full_is_exact_and_the_estimators_agree_with_it_on_average():
    # Halved, so that no ratio meets k3's clip.
    policy, reference = logits(0) / 2, logits(1) / 2
    exact = kl_penalty(policy, reference, "full")
    p, q = policy.softmax(-1), reference.softmax(-1)
    for b in range(2):
        for t in range(3):
            wanted = sum(
                float(p[b, t, v]) * math.log(float(p[b, t, v]) / float(q[b, t, v]))
                for v in range(5)
            )
            assert exact[b, t].item() == pytest.approx(wanted)
    assert torch.equal(kl_penalty(policy, reference, "full"), exact)
    # The expectation over the vocabulary of k1 and k3 is the KL.
    for kind in ("k1", "k3"):
        per_token = torch.stack(
            [kl_penalty(p[..., v].log(), q[..., v].log(), kind) for v in range(5)], dim=-1
        )
        torch.testing.assert_close((p * per_token).sum(-1), exact)
    assert torch.autograd.gradcheck(
        lambda p, q: kl_penalty(p, q, "full"), (policy.requires_grad_(), reference)
    )


def test_full_and_entropy_allow_tokens_that_cannot_be_sampled():
    policy = logits(2)
    policy[..., 0] = -torch.inf
    reference = logits(3)
    reference[..., 0] = -torch.inf
    x = policy.clone().requires_grad_()
    for measured, expected in (
        (kl_penalty(x, reference, "full"), kl_penalty(policy[..., 1:], reference[..., 1:], "full")),
        (entropy(x), entropy(policy[..., 1:])),
    ):
        torch.testing.assert_close(measured, expected)
        assert torch.isfinite(torch.autograd.grad(measured.sum(), x)[0]).all()


def test_entropy():
    assert entropy(torch.zeros(1, 1, 8)).item() == pytest.approx(math.log(8))
    assert torch.autograd.gradcheck(entropy, logits(4).requires_grad_())


def test_kl_in_reward():
    scores, kl = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.5, math.nan, 1.0]])
    kl.requires_grad_()
    rewards = kl_in_reward(scores, kl, torch.tensor([[1, 0, 1]]), 0.1)
    assert rewards[0].tolist() == pytest.approx([-0.05, 0.0, 0.9])
    assert not rewards.requires_grad


def test_adaptive_known_answer():
    controller = AdaptiveKL(0.001, 0.1, 10000)
    assert controller.update(0.05, 1024) == pytest.approx(0.00097952, abs=1e-12)
    assert controller.coef == pytest.approx(0.00097952, abs=1e-12)


def test_adaptive_moves_towards_the_target_and_no_faster_than_a_fifth():
    assert AdaptiveKL(1.0, 0.1, 100).update(99.0, 10) == pytest.approx(1.02)
    assert AdaptiveKL(1.0, 0.1, 100).update(0.11, 10) == pytest.approx(1.01)
    assert AdaptiveKL(1.0, 0.1, 100).update(0.1, 10) == 1.0


def test_refuses_what_it_cannot_mean():
    x = torch.zeros(1, 2)
    with pytest.raises(ConfigError, match="'low_var' is unknown; did you mean 'low_var_kl'"):
        kl_penalty(x, x, "low_var")
    for kind in ("full+", "k3++", "+"):
        with pytest.raises(ConfigError, match="is unknown"):
            kl_penalty(x, x, kind)
    with pytest.raises(ValueError, match="full KL needs the logits"):
        kl_penalty(x, x, "full")
    with pytest.raises(ValueError, match="ref_logp_BT has"):
        kl_penalty(x, x[:, :1], "k1")
    with pytest.raises(ConfigError, match="target_kl=0"):
        AdaptiveKL(0.001, 0, 100)


# ------------------------------------------------------------ weights for the mismatch


LOG = torch.tensor([[0.0, 1.0, -1.0, 5.0], [0.3, 0.2, 0.0, -9.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("none", [[1, 1, 1, 0], [1, 1, 0, 0]]),
        ("token_tis", [[1, 2, 0.367879, 0], [1.349859, 1.221403, 0, 0]]),
        ("sequence_tis", [[1, 1, 1, 0], [1.648721, 1.648721, 0, 0]]),
        ("sequence_mask", [[1, 1, 1, 0], [1.648721, 1.648721, 0, 0]]),
        ("icepop", [[1, 0, 0, 0], [1.349859, 1.221403, 0, 0]]),
    ],
)
def test_known_answers(level, expected):
    got = importance_weights(LOG, MASK, level, 2.0)
    torch.testing.assert_close(got, torch.tensor(expected).double(), rtol=1e-5, atol=0)


def test_a_sequence_past_the_cap_is_cut_or_dropped():
    log = torch.full((1, 3), 0.5)
    mask = torch.ones(1, 3)
    assert importance_weights(log, mask, "sequence_tis", 2.0).tolist() == [[2, 2, 2]]
    assert importance_weights(log, mask, "sequence_mask", 2.0).tolist() == [[0, 0, 0]]
    # Below one it is kept as it is: only a ratio that is too great is dropped.
    kept = importance_weights(-log, mask, "sequence_mask", 2.0)
    assert kept[0].tolist() == pytest.approx([0.22313] * 3, rel=1e-4)


@settings(max_examples=40, deadline=None)
@given(batch=batches(), level=st.sampled_from(CORRECTIONS), seed=st.integers(0, 999))
def test_agrees_with_the_flat_formula_however_rollouts_were_cut(batch, level, seed):
    wanted = flat_losses.correction(batch.adv, batch.mask, level, 1.5, batch.rollouts)
    got = importance_weights(
        batch.tensor("adv"), batch.tensor("mask"), level, 1.5, rollouts_B=batch.rollouts
    )
    torch.testing.assert_close(got, torch.tensor(wanted).double())
    changed, places = split(batch, seed)
    cut = importance_weights(
        changed.tensor("adv"), changed.tensor("mask"), level, 1.5, rollouts_B=changed.rollouts
    )
    kept = got[batch.tensor("mask") > 0].tolist()
    assert [cut[p].item() for p in places] == pytest.approx(kept)


@pytest.mark.parametrize("level", CORRECTIONS)
def test_no_gradient_no_overflow_nothing_where_masked(level):
    log = torch.tensor([[900.0, float("nan")]], requires_grad=True)
    weights = importance_weights(log, torch.tensor([[1, 0]]), level, 2.0)
    assert not weights.requires_grad
    assert weights[0, 1] == 0
    assert weights[0, 0].item() in (0, 1, 2)


def test_corrections_refuse_what_they_cannot_mean():
    with pytest.raises(ConfigError, match="did you mean 'icepop'"):
        importance_weights(LOG, MASK, "ice_pop", 2.0)
    with pytest.raises(ConfigError, match=r"cap=0\.5"):
        importance_weights(LOG, MASK, "token_tis", 0.5)
