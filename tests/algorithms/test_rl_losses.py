"""Policy losses: agreement with the flat formulas in value and gradient, independence of how the
batch was cut, options and metrics."""

import flat_losses
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_batches import Batch, batches, make_batch

from tutelage.algorithms import rl
from tutelage.algorithms.rl import (
    AGGREGATIONS,
    LOSSES,
    aggregation_denominator,
    merge_metrics,
    policy_loss,
    select_clip_cov,
    select_kl_cov,
)
from tutelage.errors import ConfigError

MODES = sorted(LOSSES)
SELECTING = ("clip_cov", "kl_cov")
WHOLE_ROLLOUTS = ("gspo", "geo_mean")
SCALE = 11.0


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def selection_of(mode: str, batch: Batch) -> torch.Tensor:
    """A selection that marks a good share of the tokens, as a batch's owner would draw it once."""
    tensors = (batch.tensor("logp"), batch.tensor("adv"), batch.tensor("mask"))
    if mode == "clip_cov":
        return select_clip_cov(*tensors, clip_cov_ratio=0.4, clip_cov_lb=-9, clip_cov_ub=9)
    return select_kl_cov(*tensors, kl_cov_ratio=0.4)


def loss_and_gradient(mode: str, batch: Batch, aggregation: str, **options):
    logp = batch.tensor("logp").requires_grad_()
    loss, metrics = policy_loss(
        mode,
        logp,
        batch.tensor("old"),
        batch.tensor("adv"),
        batch.tensor("mask"),
        aggregation=aggregation,
        rollouts_B=batch.rollouts,
        **options,
    )
    (gradient,) = torch.autograd.grad(loss, logp)
    return loss.detach(), gradient, metrics


def one(mode: str, logp: float, old: float, advantage: float, **options) -> tuple[float, float]:
    """Loss and gradient of one token."""
    x = rows([logp]).requires_grad_()
    loss, _ = policy_loss(mode, x, rows([old]), rows([advantage]), rows([1]), **options)
    return loss.item(), torch.autograd.grad(loss, x)[0].item()


# --- agreement with the formulas -----------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=60, deadline=None)
@given(batch=batches(), aggregation=st.sampled_from(sorted(AGGREGATIONS)))
def test_agrees_with_the_flat_formula_in_value_and_gradient(mode, batch, aggregation):
    options = {}
    selected = set()
    if mode in SELECTING:
        options["selection_BT"] = selection_of(mode, batch)
        selected = {tuple(place) for place in options["selection_BT"].nonzero().tolist()}
    loss, gradient, _ = loss_and_gradient(
        mode, batch, aggregation, clip_ratio_low=0.2, clip_ratio_high=0.28, scale=SCALE, **options
    )
    wanted, slopes = flat_losses.policy(
        mode,
        batch.logp,
        batch.old,
        batch.adv,
        batch.mask,
        batch.rollouts,
        low=0.2,
        high=0.28,
        dual=3.0,
        aggregation=aggregation,
        scale=SCALE,
        selected=selected,
    )
    assert loss.item() == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    expected = torch.zeros_like(gradient)
    for place, slope in slopes.items():
        expected[place] = slope
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)


def test_known_answers_of_vanilla():
    q = torch.tensor(0.5).exp().item()  # 1.65
    assert one("vanilla", -0.5, -1.0, 1.0) == pytest.approx((-1.2, 0.0))
    assert one("vanilla", -0.5, -1.0, 1.0, clip_ratio=0.9) == pytest.approx((-q, -q))
    assert one("vanilla", -0.5, -1.0, -1.0) == pytest.approx((q, q))
    assert one("vanilla", -1.0, -0.5, -1.0) == pytest.approx((0.8, 0.0))
    # Dual clip: exp(2) = 7.4 times the penalty, bounded by c.
    assert one("vanilla", -1.0, -3.0, -1.0) == pytest.approx((3.0, 0.0))
    assert one("vanilla", -1.0, -3.0, -1.0, clip_ratio_c=5.0) == pytest.approx((5.0, 0.0))
    # The log-ratio is held within 20 before the exponential.
    assert one("vanilla", 0.0, -900.0, -1.0) == pytest.approx((3.0, 0.0))


def test_clip_ratio_is_the_default_of_low_and_high():
    assert one("vanilla", -0.5, -1.0, 1.0, clip_ratio=0.3)[0] == pytest.approx(-1.3)
    assert one("vanilla", -1.0, -0.5, -1.0, clip_ratio=0.3)[0] == pytest.approx(0.7)
    both = {"clip_ratio": 0.3, "clip_ratio_low": 0.1, "clip_ratio_high": 0.4}
    assert one("vanilla", -0.5, -1.0, 1.0, **both)[0] == pytest.approx(-1.4)
    assert one("vanilla", -1.0, -0.5, -1.0, **both)[0] == pytest.approx(0.9)


def test_known_answers_of_the_others():
    assert one("gpg", -2.0, -1.0, 0.5) == pytest.approx((1.0, -0.5))
    assert one("cispo", -0.5, -1.0, 1.0) == pytest.approx((1.2 * 0.5, -1.2))
    assert one("sapo", -1.0, -1.0, 1.0) == pytest.approx((-2.0, -1.0))
    assert one("sapo", -1.0, -1.0, -1.0) == pytest.approx((2 / 1.05, 1.0))
    # verl's coefficient: 0.1 times |d|, whose slope is 1.
    assert one("kl_cov", -0.5, -1.0, 0.0) == pytest.approx((0.05, 0.1))
    # Held at e^0.4, as the paper has it.
    assert one("geo_mean", -0.5, -1.0, 1.0)[0] == pytest.approx(-torch.tensor(0.4).exp().item())


def test_gspo_clips_a_sequence_at_its_papers_range():
    """3e-4 below and 4e-4 above: PPO's 0.2 would never clip a mean over tokens."""
    assert one("gspo", -0.999, -1.0, 1.0) == pytest.approx((-1.0004, 0.0))
    assert one("gspo", -1.001, -1.0, -1.0) == pytest.approx((0.9997, 0.0))
    inside = torch.tensor(3e-4).double().exp().item()
    assert one("gspo", -0.9997, -1.0, 1.0) == pytest.approx((-inside, -inside))


def test_cispo_has_no_lower_clamp():
    q = torch.tensor(-3.0).double().exp().item()
    assert one("cispo", -4.0, -1.0, 1.0) == pytest.approx((q * 4.0, -q))


@pytest.mark.parametrize("mode", ["gspo", "sapo", "geo_mean"])
def test_losses_of_sequences_weigh_a_long_rollout_as_a_short_one(mode):
    """Without a word about it: three tokens of one rollout against one of another."""
    logp = rows([-1.0, -1.0, -1.0], [-1.0, 0, 0]).requires_grad_()
    mask = rows([1, 1, 1], [1, 0, 0])
    adv = rows([-1, -1, -1], [1, 0, 0])
    loss, _ = policy_loss(mode, logp, logp.detach(), adv, mask)
    gradient = torch.autograd.grad(loss, logp)[0]
    assert gradient[0].sum().item() == pytest.approx(0.5, rel=0.1)
    assert gradient[1].sum().item() == pytest.approx(-0.5, rel=0.1)


def test_every_loss_declares_what_it_takes():
    told = {mode: (own.aggregation, own.clip) for mode, own in rl.LOSSES.items()}
    assert told == flat_losses.OWN


def test_gspo_uses_the_mean_log_ratio_of_the_rollout_and_caps_it():
    logp, old = rows([0.0, -1.0], [-2.0, 0]), rows([-0.3, -1.0], [-2.0, 0])
    mask, adv = rows([1, 1], [1, 0]), rows([-1, -1], [-1, 0])
    loss, _ = policy_loss("gspo", logp, old, adv, mask, rollouts_B=["r", "r"], clip_ratio=0.5)
    assert loss.item() == pytest.approx(torch.tensor(0.1).exp().item())  # 0.3 over 3 tokens
    value, slope = one("gspo", 0.0, -50.0, -1.0)
    assert value == pytest.approx(torch.tensor(10.0).double().exp().item())
    assert slope == 0


# --- the loss does not depend on how the batch was cut -------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40, deadline=None)
@given(
    batch=batches(),
    aggregation=st.sampled_from(sorted(AGGREGATIONS)),
    parts=st.integers(2, 4),
    pad=st.integers(0, 3),
    seed=st.integers(0, 999),
)
def test_micro_batches_add_up_to_the_whole_batch(mode, batch, aggregation, parts, pad, seed):
    options = {"selection_BT": selection_of(mode, batch)} if mode in SELECTING else {}
    whole, gradient, whole_metrics = loss_and_gradient(
        mode, batch, aggregation, scale=SCALE, **options
    )
    denominator = aggregation_denominator(
        batch.tensor("mask"), aggregation, rollouts_B=batch.rollouts, scale=SCALE
    )
    together = mode in WHOLE_ROLLOUTS or aggregation == "seq-mean-token-mean"
    unit = batch.rollouts if together else list(range(len(batch.rollouts)))
    total, cut, metrics = 0.0, torch.zeros_like(gradient), []
    for part in range(parts):
        wanted = [b for b in range(len(unit)) if (unit[b] + seed) % parts == part]
        piece = batch.rows(wanted)
        if not wanted:
            continue
        tensors = [
            torch.nn.functional.pad(piece.tensor(name), (0, pad, 0, pad), value=fill)
            for name, fill in (("logp", float("nan")), ("old", 3.0), ("adv", 9.0), ("mask", 0))
        ]
        logp = tensors[0].requires_grad_()
        if options:
            options["selection_BT"] = torch.nn.functional.pad(
                selection_of(mode, batch)[wanted], (0, pad, 0, pad), value=True
            )
        loss, measured = policy_loss(
            mode,
            *tensors,
            aggregation=aggregation,
            rollouts_B=[*piece.rollouts, *(f"padding-{i}" for i in range(pad))],
            denominator=denominator,
            **options,
        )
        total += loss.item()
        metrics.append(measured)
        width = gradient.shape[1]
        (padded,) = torch.autograd.grad(loss, logp)
        cut[wanted] = padded[: len(wanted), :width]
        assert padded[len(wanted) :].abs().sum() == padded[:, width:].abs().sum() == 0
    assert total == pytest.approx(whole.item(), rel=1e-9, abs=1e-12)
    torch.testing.assert_close(cut, gradient, rtol=1e-9, atol=1e-12)
    for name, value in merge_metrics(metrics).items():
        torch.testing.assert_close(value, whole_metrics[name])


@pytest.mark.parametrize("mode", MODES)
def test_no_trained_token_is_no_loss(mode):
    x = rows([0.1, 0.2]).requires_grad_()
    loss, metrics = policy_loss(mode, x, rows([0, 0]), rows([1, 1]), rows([0, 0]))
    assert loss.item() == 0
    assert torch.autograd.grad(loss, x)[0].abs().sum() == 0
    assert {name: v.item() for name, v in metrics.items()} == {
        "clip_fraction": 0,
        "approx_kl": 0,
        "ratio_max": 0,
        "tokens": 0,
    }


@pytest.mark.parametrize("mode", MODES)
def test_gradient_goes_to_the_new_log_probabilities_only_and_keeps_the_dtype(mode):
    logp, old, adv = (torch.randn(2, 3).requires_grad_() for _ in range(3))
    loss, _ = policy_loss(mode, logp, old, adv, torch.ones(2, 3))
    assert loss.dtype == torch.float32
    loss.backward()
    assert logp.grad is not None
    assert old.grad is None
    assert adv.grad is None


# --- selections ----------------------------------------------------------------------------------


def test_clip_cov_selects_inside_the_band_and_detaches():
    torch.manual_seed(1)
    logp, adv = torch.randn(40, 50).double() * 2, torch.randn(40, 50).double()
    mask = (torch.rand(40, 50) < 0.8).double()
    generator = torch.Generator().manual_seed(5)
    picked = select_clip_cov(logp, adv, mask, clip_cov_ratio=0.01, generator=generator)
    tokens = int(mask.sum())
    assert int(picked.sum()) == int(0.01 * tokens)
    covariances = flat_losses.covariances(logp.tolist(), adv.tolist(), mask.tolist())
    assert all(1 < covariances[tuple(p)] < 5 for p in picked.nonzero().tolist())
    again = select_clip_cov(
        logp, adv, mask, clip_cov_ratio=0.01, generator=torch.Generator().manual_seed(5)
    )
    other = select_clip_cov(
        logp, adv, mask, clip_cov_ratio=0.01, generator=torch.Generator().manual_seed(6)
    )
    assert torch.equal(picked, again)
    assert not torch.equal(picked, other)
    x = logp.clone().requires_grad_()
    loss, metrics = policy_loss("clip_cov", x, logp, adv, mask, selection_BT=picked)
    (gradient,) = torch.autograd.grad(loss, x)
    assert gradient[picked].abs().sum() == 0
    assert (gradient[(mask > 0) & ~picked] != 0).all()
    assert metrics["clip_fraction"].item() == pytest.approx(int(picked.sum()) / tokens)


def test_kl_cov_takes_the_greatest_covariances():
    batch = make_batch(12, empty_rows=False)
    picked = select_kl_cov(
        batch.tensor("logp"), batch.tensor("values"), batch.tensor("mask"), kl_cov_ratio=0.3
    )
    covariances = flat_losses.covariances(batch.logp, batch.values, batch.mask)
    ranked = sorted(covariances, key=lambda p: -covariances[p])
    chosen = {tuple(p) for p in picked.nonzero().tolist()}
    assert chosen == set(ranked[: max(1, int(0.3 * len(ranked)))])
    least = select_kl_cov(batch.tensor("logp"), batch.tensor("values"), batch.tensor("mask"))
    assert least.nonzero().tolist() == [list(ranked[0])]


@pytest.mark.parametrize("mode", SELECTING)
def test_without_a_selection_the_rows_given_are_the_batch(mode):
    batch = make_batch(7)
    values = (
        {"clip_cov_ratio": 0.3, "clip_cov_lb": -9.0}
        if mode == "clip_cov"
        else {"kl_cov_ratio": 0.3}
    )
    select = {"clip_cov": select_clip_cov, "kl_cov": select_kl_cov}[mode]
    picked = select(batch.tensor("logp"), batch.tensor("adv"), batch.tensor("mask"), **values)
    chosen = loss_and_gradient(mode, batch, "token-mean", **values)
    given_ = loss_and_gradient(mode, batch, "token-mean", selection_BT=picked)
    assert picked.any()
    assert torch.equal(chosen[1], given_[1])


# --- weights, metrics, refusals ------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_importance_weights_multiply_each_tokens_loss(mode):
    batch = make_batch(9)
    options = {"selection_BT": selection_of(mode, batch)} if mode in SELECTING else {}
    loss, gradient, _ = loss_and_gradient(mode, batch, "token-mean", **options)
    doubled = torch.full(gradient.shape, 2.0, dtype=torch.float64)
    twice, steeper, _ = loss_and_gradient(mode, batch, "token-mean", weights_BT=doubled, **options)
    assert gradient.abs().sum() > 0
    torch.testing.assert_close(twice, 2 * loss)
    torch.testing.assert_close(steeper, 2 * gradient)


def test_metrics():
    logp, old = rows([-0.5, -1.0, -1.0, 7.0]), rows([-1.0, -1.0, -3.0, 0.0])
    adv, mask = rows([1, 1, -1, 1]), rows([1, 1, 1, 0])
    _, metrics = policy_loss("vanilla", logp.requires_grad_(), old, adv, mask)
    d = torch.tensor([0.5, 0.0, 2.0]).double()
    assert metrics["tokens"].item() == 3
    assert metrics["clip_fraction"].item() == pytest.approx(2 / 3)  # one upper, one dual clip
    assert metrics["ratio_max"].item() == pytest.approx(d.exp().max().item())
    assert metrics["approx_kl"].item() == pytest.approx((d.exp() - d - 1).mean().item())
    assert all(v.ndim == 0 and not v.requires_grad for v in metrics.values())
    _, none = policy_loss("sapo", logp, old, adv, mask)
    assert none["clip_fraction"].item() == 0


def test_refuses_what_it_cannot_mean():
    x = rows([0.0, 0.0])
    with pytest.raises(ConfigError, match="'gsp0'; did you mean 'gspo'"):
        policy_loss("gsp0", x, x, x, x)
    with pytest.raises(ConfigError, match=r"'tau_poz' is unknown; did you mean 'tau_pos'"):
        policy_loss("sapo", x, x, x, x, tau_poz=1.0)
    with pytest.raises(ConfigError, match="did you mean 'token-mean'"):
        policy_loss("vanilla", x, x, x, x, aggregation="token_mean")
    with pytest.raises(ConfigError, match=r"clip_ratio_low=-0\.1"):
        policy_loss("vanilla", x, x, x, x, clip_ratio_low=-0.1)
    with pytest.raises(ValueError, match="old_logp_BT has shape"):
        policy_loss("vanilla", x, rows([0.0]), x, x)
