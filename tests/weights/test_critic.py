"""The critic: what it computes, what its gradient is, and exactly when it is trained alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.marks import first, long
from torch import Tensor

from tutelage.algorithms.rl.value import explained_variance
from tutelage.config import RunConfig
from tutelage.policy.numerics import Numerics
from tutelage.policy.row import Row
from tutelage.policy.value import ValueModel
from tutelage.seeds import SeedTree
from tutelage.weights.batch import Batch
from tutelage.weights.critic import Critic
from tutelage.weights.learner import Learner
from tutelage.weights.scoring import score_tokens

from .samples import config, learn, make_batch, step_of_rollouts
from .test_update import Probe, assert_same, split

Fresh = Callable[..., Any]
LAYOUTS = ("qwen2", "qwen3", "llama", "gpt2")
GAE = ("algorithm.adv_estimator=gae", "agent.num_chains=4", "critic.optim.lr=1e-2")


def value_model(policy: Any, seed: int = 0) -> ValueModel:
    """A critic whose head is not zero any more, so that gradients reach the trunk."""
    described: Any = policy.config
    model = ValueModel(policy.copy().network, described.hidden_size)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_tensors():
            if name.startswith("value_head"):
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return model


def values_of(model: ValueModel, rows: list[Row], settings: RunConfig) -> torch.Tensor:
    return score_tokens(rows, settings.actor.max_tokens_per_micro_batch, model.values)


def batch_of(policy: Any, seed: int, *keys: str) -> Batch:
    """A batch with the values of a critic that is not flat."""
    settings = config(*GAE, *keys)
    rollouts = step_of_rollouts(policy, seed)
    rows = make_batch(rollouts, config()).rows
    values = values_of(value_model(policy), rows, settings)
    return make_batch(rollouts, settings, values_BT=values)


@pytest.mark.parametrize("layout", first(1, LAYOUTS))
def test_values_are_those_of_each_row_alone(fresh: Fresh, layout: str) -> None:
    """Packed with others, or alone: the value of the state in which the token was sampled."""
    policy = fresh(layout, 1)
    model = value_model(policy)
    rows = make_batch(step_of_rollouts(policy, 1), config()).rows
    together = values_of(model, rows, config())
    for b, row in enumerate(rows):
        alone = model.values([row])
        assert together[b, alone.columns_K] == pytest.approx(
            alone.values.detach().numpy(), abs=1e-5
        )
        assert alone.columns_K.tolist() == [c for c, m in enumerate(row.mask) if m]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_value_looks_at_nothing_from_its_own_token_on(fresh: Fresh, layout: str) -> None:
    model = value_model(fresh(layout, 2))
    row = Row((5, 6, 7, 8, 9), (0, 0, 1, 1, 1))
    other = Row((5, 6, 7, 30, 40), row.mask)
    a, b = model.values([row]).values, model.values([other]).values
    assert torch.allclose(a[:2], b[:2], atol=1e-6)
    assert not torch.allclose(a[2], b[2], atol=1e-4)


def test_a_fresh_critic_says_zero_and_shares_no_tensor(fresh: Fresh) -> None:
    policy = fresh("qwen2", 3)
    before = [t.clone() for t in policy.parameters()]
    learner = Learner(policy, config(*GAE), Numerics())
    critic = learner.critic
    assert critic is not None
    batch = make_batch(step_of_rollouts(policy, 3), config())
    assert not critic.values(batch.rows).any()
    with torch.no_grad():
        for tensor in critic.model.parameters():
            tensor.add_(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


class Kept(Probe):
    """Keeps the critic's gradients."""

    def __init__(self, model: ValueModel) -> None:
        self.policy = model
        self.steps = []


def gradient(policy: Any, batch: Batch, *keys: str) -> tuple[list[Tensor], dict[str, float]]:
    critic = Critic(value_model(policy), config(*GAE, *keys), Numerics())
    probe: Any = Kept(critic.model)
    critic._optimizer = probe  # pyright: ignore[reportPrivateUsage]
    told = critic.update(batch, seeds=SeedTree(0), rate=1.0)
    (grads,) = probe.steps
    return grads, told


@pytest.mark.parametrize("layout", [LAYOUTS[0], *long(*LAYOUTS[1:])])
def test_its_gradient_is_the_formulas(fresh: Fresh, layout: str) -> None:
    policy = fresh(layout, 4)
    batch = batch_of(policy, 4)
    found, told = gradient(policy, batch, "critic.cliprange_value=0.5")
    model, total = value_model(policy), 0.0
    loss: Any = 0.0
    for b, row in enumerate(batch.rows):
        values = model.values([Row(row.ids, row.mask)])
        for v, column in zip(values.values, values.columns_K.tolist(), strict=True):
            old, aim = batch.old_values_BT[b, column], batch.returns_BT[b, column]
            held = v.clamp(old - 0.5, old + 0.5)
            loss = loss + 0.5 * torch.maximum((v - aim) ** 2, (held - aim) ** 2)
            total += 1
    wanted = torch.autograd.grad(loss / total, model.parameters())
    assert_same(found, wanted)
    assert told["loss/value"] == pytest.approx(float(loss.detach()) / total, rel=1e-4)


@pytest.mark.parametrize(
    "cut", ["ppo_micro_batch_size_per_gpu=3", *long("ppo_micro_batch_size_per_gpu=1")]
)
def test_micro_batches_and_rows_do_not_change_it(fresh: Fresh, cut: str) -> None:
    policy = fresh("qwen2", 5)
    batch = batch_of(policy, 5)
    wanted, told = gradient(policy, batch)
    found, again = gradient(policy, batch, f"critic.{cut}")
    assert_same(found, wanted)
    assert again == pytest.approx(told, abs=1e-5)
    pieces = split(batch)
    parents = [
        next(
            b
            for b, whole in enumerate(batch.rows)
            if whole.ids[: len(row.ids)] == row.ids and batch.rollouts_B[b] == owner
        )
        for row, owner in zip(pieces.rows, pieces.rollouts_B, strict=True)
    ]
    width = pieces.mask_BT.shape[1]
    pieces = dataclasses.replace(
        pieces,
        returns_BT=batch.returns_BT[parents][:, :width] * pieces.mask_BT,
        old_values_BT=batch.old_values_BT[parents][:, :width] * pieces.mask_BT,
    )
    assert_same(gradient(policy, pieces, f"critic.{cut}")[0], wanted)


def test_explained_variance() -> None:
    g = torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert explained_variance(g, g) == 1
    assert explained_variance(g + 5, g) == pytest.approx(1), "a constant error explains all"
    assert explained_variance(torch.zeros(4), g) == 0
    assert explained_variance(-g, g) == pytest.approx(-3)
    assert explained_variance(g, torch.ones(4)) == 0
    assert explained_variance(g / 2, g) == pytest.approx(0.75)


def test_the_policy_moves_by_no_bit_in_the_warm_up(fresh: Fresh) -> None:
    policy = fresh("qwen2", 7)
    settings = config(*GAE, "trainer.critic_warmup=2", "actor.optim.lr=1e-2")
    learner = Learner(policy, settings, Numerics())
    rollouts = step_of_rollouts(policy, 7)
    for step in range(3):
        before, version = [t.clone() for t in policy.parameters()], policy.version
        learn(learner, rollouts, seed=step, step=step)
        same = all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
        assert same == (step < 2)
        assert (policy.version == version) == (step < 2)
