"""Training on a pretended GPU: no tensors of two devices meet, and it learns what the CPU does.

`tests/pretended_device.py` says what is checked, and what only a GPU can show.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.pretended_device import DeviceError, PretendedDevice, on_device, process_ended
from tests.tiny_policies import fresh_policy

from tutelage.algorithms.rl import LOSSES
from tutelage.config.schema import LoraConfig
from tutelage.policy.lora import with_lora
from tutelage.policy.model import Policy
from tutelage.policy.numerics import Numerics
from tutelage.policy.row import Row
from tutelage.types import Call, Rollout
from tutelage.weights.cold_start import supervised_step
from tutelage.weights.learner import Learner
from tutelage.weights.optim import SUPERVISED, Kind, make_optimizer

from .samples import config, learn, step_of_rollouts

__all__ = ["process_ended"]
Fresh = Callable[..., Policy]
FLOAT, BF16 = Numerics(), Numerics(torch.bfloat16)
KL = ("actor.use_kl_loss=true", "actor.kl_loss_coef=0.3")
RUNS: dict[str, Sequence[str]] = {
    **{f"loss {name}": (f"actor.policy_loss.loss_mode={name}",) for name in LOSSES},
    "entropy": ("actor.entropy_coeff=0.01", "algorithm.adv_estimator=rloo"),
    "gae and its critic": ("algorithm.adv_estimator=gae", "actor.ppo_epochs=2"),
    "kl in the reward": ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"),
    "kl low_var": (*KL, "actor.kl_loss_type=low_var_kl"),
    "kl full": (*KL, "actor.kl_loss_type=full"),
    "kl k1+": (*KL, "actor.kl_loss_type=k1+"),
    "token_tis": ("rollout.correction=token_tis", "actor.max_tokens_per_micro_batch=64"),
    "recomputed blocks": ("model.enable_gradient_checkpointing=true",),
}

ALIKE = ("loss cispo", "loss sapo", "loss gpg", "loss geo_mean", "loss clip_cov", "kl low_var")
"""Runs that do on a device what others do there, too."""


@functools.cache
def rollouts(kind: str) -> list[Rollout]:
    """A step's rollouts of the policy of that kind, recorded on the CPU, once: they take longer
    than what is tested."""
    return step_of_rollouts(fresh_policy(kind), 3, groups=2, members=2)


@functools.cache
def on_cpu(kind: str, run: str) -> dict[str, float]:
    """What a learner of the CPU says."""
    return learned(fresh_policy(kind), RUNS[run], kind=kind)


def learned(
    policy: Policy, overrides: Sequence[str] = (), numerics: Numerics = FLOAT, kind: str = "qwen2"
) -> dict[str, float]:
    """The metrics of a step of a learner, and of one that shows what it changed."""
    settings = config("rollout.response_length=24", *overrides)
    if settings.model.enable_gradient_checkpointing:
        policy.network.enable_checkpointing()
    learner = Learner(policy, settings, numerics)
    first, second = (learn(learner, rollouts(kind), step=step)[1] for step in range(2))
    assert learner.state_dict()
    return {**first, **{f"second {name}": value for name, value in second.items()}}


def assert_same(found: dict[str, float], wanted: dict[str, float]) -> None:
    assert found == pytest.approx(wanted, rel=1e-3, abs=1e-4)


@pytest.mark.full
@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=pytest.mark.full) if run in ALIKE else run for run in RUNS]
)
@on_device
def test_a_learner_learns_what_it_does_on_the_cpu(
    device: PretendedDevice, fresh: Fresh, run: str
) -> None:
    wanted = on_cpu("qwen2", run)
    assert not device.operations, "the CPU's policy is on the CPU"
    found = learned(fresh("qwen2").to(device.first), RUNS[run])
    assert_same(found, wanted)
    assert device.operations


@pytest.mark.full
@pytest.mark.parametrize("run", ["loss vanilla", "gae and its critic", "kl full"])
@on_device
def test_it_runs_in_bfloat16(device: PretendedDevice, fresh: Fresh, run: str) -> None:
    policy = fresh("qwen3").to(device.first)
    values = learned(policy, RUNS[run], BF16)
    assert values["grad_norm"] > 0
    assert {t.dtype for t in policy.parameters()} == {torch.float32}


@pytest.mark.full
@pytest.mark.parametrize(("kind", "run"), [("gpt2", "gae and its critic"), ("gemma", "token_tis")])
@on_device
def test_other_architectures_learn_too(
    device: PretendedDevice, fresh: Fresh, kind: str, run: str
) -> None:
    found = learned(fresh(kind).to(device.first), RUNS[run], kind=kind)
    assert_same(found, on_cpu(kind, run))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
@on_device
def test_adapters_learn(device: PretendedDevice, fresh: Fresh, kind: str) -> None:
    """Made before the policy moves, as a run does, and after."""
    lora = LoraConfig(rank=4, alpha=8.0)
    wanted = learned(with_lora(fresh(kind), lora, seed=1), kind=kind)
    moved = with_lora(fresh(kind), lora, seed=1).to(device.first)
    made_there = with_lora(fresh(kind).to(device.first), lora, seed=1)
    for policy in (moved, made_there):
        assert_same(learned(policy, kind=kind), wanted)
        assert all(t.device.type == "cpu" for t in policy.network.state().values())


@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@on_device
def test_supervised_steps(
    device: PretendedDevice, fresh: Fresh, optimizer: Kind, tmp_path: Any
) -> None:
    """And what was learned there is saved as a folder."""
    calls = [call for r in rollouts("qwen2")[:3] for call in r.last.calls]
    rows = [Row(c.prompt_ids + c.sampled.token_ids, mask(c)) for c in calls]
    losses: list[list[float]] = []
    for where in (device.first, torch.device("cpu")):
        policy = fresh("qwen2").to(where)
        optim = SUPERVISED.model_copy(update={"lr": 1e-3})
        used = make_optimizer(policy.named_tensors(), optim, optimizer)
        steps = [supervised_step(policy, used, rows, FLOAT, 1.0, 64) for _ in range(3)]
        losses.append([values["loss/sft"] for values in steps])
        again = make_optimizer(policy.named_tensors(), optim, optimizer)
        again.load_state_dict(used.state_dict())
        policy.save(tmp_path / where.type)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0][2] < losses[0][0]


def mask(call: Call) -> tuple[int, ...]:
    return (0,) * len(call.prompt_ids) + (1,) * len(call.sampled.token_ids)


@pytest.mark.full
@on_device
def test_a_tensor_that_was_left_behind_is_caught(device: PretendedDevice, fresh: Fresh) -> None:
    """The check checks: a weight that another one's move forgot."""
    policy = fresh("qwen2").to(device.first)
    network: Any = policy.network
    network.norm = torch.nn.Parameter(torch.ones(network.norm.shape))
    with pytest.raises(DeviceError, match=r"one of the CPU \(32,\), policy/"):
        learned(policy)
