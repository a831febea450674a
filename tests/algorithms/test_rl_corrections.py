"""Weights for the mismatch between sampler and trainer."""

import flat_losses
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_batches import batches, split

from tutelage.algorithms.rl import CORRECTIONS, importance_weights
from tutelage.errors import ConfigError

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


def test_refuses_what_it_cannot_mean():
    with pytest.raises(ConfigError, match="did you mean 'icepop'"):
        importance_weights(LOG, MASK, "ice_pop", 2.0)
    with pytest.raises(ConfigError, match=r"cap=0\.5"):
        importance_weights(LOG, MASK, "token_tis", 0.5)
