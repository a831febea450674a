"""Aggregations and the value loss: values, denominators, and what masks keep out."""

import flat_losses
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_batches import batches

from tutelage.algorithms.rl import AGGREGATIONS, aggregate, aggregation_denominator, value_loss
from tutelage.errors import ConfigError


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


X, MASK = rows([1, 2, 4], [8, 0, 0]), rows([1, 1, 1], [1, 0, 0])


@pytest.mark.parametrize(
    ("mode", "expected", "denominator"),
    [
        ("token-mean", 15 / 4, 4),
        ("seq-mean-token-sum", 15 / 2, 2),
        ("seq-mean-token-mean", (7 / 3 + 8) / 2, 2),
        ("seq-mean-token-sum-norm", 15 / 2 / 10, 20),
    ],
)
def test_known_answers(mode, expected, denominator):
    assert aggregate(X, MASK, mode, scale=10).item() == pytest.approx(expected)
    assert aggregation_denominator(MASK, mode, scale=10) == denominator


def test_a_rollout_counts_once_however_many_rows_it_became():
    one = ["r", "r"]
    assert aggregate(X, MASK, "seq-mean-token-sum", rollouts_B=one).item() == 15
    assert aggregate(X, MASK, "seq-mean-token-mean", rollouts_B=one).item() == 15 / 4
    assert aggregation_denominator(MASK, "seq-mean-token-sum", rollouts_B=one) == 1


@settings(max_examples=50, deadline=None)
@given(batch=batches(), mode=st.sampled_from(sorted(AGGREGATIONS)))
def test_agrees_with_the_flat_formula(batch, mode):
    got = aggregate(
        batch.tensor("values"), batch.tensor("mask"), mode, rollouts_B=batch.rollouts, scale=7
    )
    wanted = flat_losses.aggregate(batch.values, batch.mask, mode, batch.rollouts, scale=7)
    assert got.item() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
def test_what_is_masked_reaches_neither_value_nor_gradient(mode):
    x = rows([1, 2, float("nan")], [float("inf"), 0, 0]).requires_grad_()
    mask = rows([1, 1, 0], [0, 0, 0])
    total = aggregate(x, mask, mode, scale=1.0)
    assert total.item() in (1.5, 3.0)
    (gradient,) = torch.autograd.grad(total, x)
    assert torch.isfinite(gradient).all()
    assert gradient[mask == 0].abs().sum() == 0


@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
def test_nothing_to_average_is_zero(mode):
    x = X.clone().requires_grad_()
    for denominator in (None, 3.0, 0.0):
        total = aggregate(x, torch.zeros_like(X), mode, denominator=denominator, scale=1.0)
        assert total.item() == 0
        assert torch.autograd.grad(total, x)[0].abs().sum() == 0
    assert aggregation_denominator(torch.zeros_like(X), mode, scale=1.0) == 0


def test_denominators_of_disjoint_parts_add_up():
    for mode in AGGREGATIONS:
        parts = [aggregation_denominator(MASK[b : b + 1], mode, scale=3) for b in range(2)]
        assert sum(parts) == aggregation_denominator(MASK, mode, scale=3)


def test_refuses_what_it_cannot_mean():
    with pytest.raises(ConfigError, match="did you mean 'seq-mean-token-sum'"):
        aggregate(X, MASK, "seq-mean-token-sun")
    with pytest.raises(ConfigError, match="loss_scale_factor is None"):
        aggregate(X, MASK, "seq-mean-token-sum-norm")
    for bad in (0.0, -1.0, float("nan"), torch.tensor(float("inf"))):
        with pytest.raises(ValueError, match="must be positive"):
            aggregate(X, MASK, "token-mean", denominator=bad)
    with pytest.raises(ValueError, match="x_BT has shape"):
        aggregate(X, MASK[:, :2], "token-mean")


# --- the critic ----------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(batch=batches(empty_rows=False), clip=st.sampled_from([0.0, 0.2, 0.5]))
def test_value_loss_agrees_with_the_flat_formula(batch, clip):
    loss, clipped = value_loss(
        batch.tensor("values"),
        batch.tensor("logp"),
        batch.tensor("old"),
        batch.tensor("mask"),
        clip=clip,
        rollouts_B=batch.rollouts,
    )
    wanted = flat_losses.value_loss(batch.values, batch.logp, batch.old, batch.mask, clip)
    assert (loss.item(), clipped.item()) == pytest.approx(wanted)


def test_value_loss_known_answer_and_gradient():
    values = rows([1.0, 0.2, float("nan")]).requires_grad_()
    loss, clipped = value_loss(values, rows([0.0, 1.0, 0]), rows([0.9, -0.5, 0]), rows([1, 1, 0]))
    # Token 0 is within the clip: error 1. Token 1 moved past it: held at 0, error 1, not 0.64.
    assert loss.item() == pytest.approx(0.5 * (1.0 + 1.0) / 2)
    assert clipped.item() == 0.5
    assert torch.autograd.grad(loss, values)[0].tolist() == [[0.5, 0.0, 0.0]]
    plain = rows([0.3, -0.2]).requires_grad_()
    returns, old = rows([0.0, 1.0]), rows([0.2, 0.1])
    assert torch.autograd.gradcheck(
        lambda v: value_loss(v, returns, old, torch.ones(1, 2))[0], plain
    )


def test_value_loss_of_micro_batches_adds_up():
    torch.manual_seed(0)
    values, returns, old = (torch.randn(4, 6).double() for _ in range(3))
    mask = (torch.rand(4, 6) < 0.6).double()
    x = values.requires_grad_()
    whole = torch.autograd.grad(value_loss(x, returns, old, mask)[0], x)[0]
    tokens = aggregation_denominator(mask, "token-mean")
    parts = sum(
        value_loss(
            x[b : b + 1], returns[b : b + 1], old[b : b + 1], mask[b : b + 1], denominator=tokens
        )[0]
        for b in range(4)
    )
    torch.testing.assert_close(torch.autograd.grad(parts, x)[0], whole)
    with pytest.raises(ConfigError, match="clip=-1"):
        value_loss(x, returns, old, mask, clip=-1)
