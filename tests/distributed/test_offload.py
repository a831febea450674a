"""Where the tensors of sharded models lie between the steps of a training on GPUs, which are
pretended ones here: two ranks with one each (`tests/pretended_device.py`). With a GPU in their
place (`tests/real_device.py`) one rank has it, and its tensors go through NCCL."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pretended_device import NAME, PretendedDevice, with_sharding, without_inference_mode
from tests.real_device import ON_GPU, RealDevice
from tests.tiny_policies import fresh_policy
from tests.weights.samples import config, learn, step_of_rollouts
from torch import Tensor
from torch.distributed.tensor import DTensor

from tutelage.distributed import sharding
from tutelage.distributed.process_group import TorchProcessGroup, join_group
from tutelage.policy.model import Policy
from tutelage.policy.numerics import Numerics
from tutelage.weights.learner import Learner
from tutelage.weights.optim import Optimizer

from .ranks import together

HERE, THERE, RANKS = ("cpu", "cuda", 1) if ON_GPU else ("cpu", NAME, 2)
GAE = ("algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=true")
ACTOR, REFERENCE = "actor.fsdp_config.", "ref.fsdp_config.param_offload=true"
PARTS = ("policy", "policy's state", "critic", "critic's state", "reference", "gradients")


class Group(TorchProcessGroup):
    """Shards over one rank, too, where there is one GPU."""

    def shard(self, policy: Policy, dtype: torch.dtype, **options: Any) -> Policy:
        if self.size > 1:
            return super().shard(policy, dtype, **options)
        made = sharding.shard_policy(policy, 1, dtype, tree=False, **options)
        self._sharded.add(made.network)
        return made


def make_device() -> Any:
    """What the tensors that are not in main memory lie on."""
    return RealDevice() if ON_GPU else PretendedDevice()


def where(tensors: Iterable[Tensor]) -> str:
    """The type of the one device of sharded tensors, of which each rank has its part."""
    parts = list(tensors)
    assert parts
    assert all(isinstance(part, DTensor) for part in parts)
    (device,) = {part.device.type for part in parts}
    return device


def state_of(optimizer: Optimizer) -> list[Tensor]:
    """Its sharded moments."""
    values = [v for part in optimizer._parts for s in part.state.values() for v in s.values()]  # pyright: ignore[reportPrivateUsage]
    return [value for value in values if isinstance(value, DTensor)]


def learned(learner: Learner, rollouts: list[Any], gradients: set[str]) -> dict[str, float]:
    """The metrics of two steps; where gradients lie is noted before each is applied."""
    clip = TorchProcessGroup.clip

    def noted(group: TorchProcessGroup, parameters: Any, limit: float) -> float:
        there = (p.grad for p in parameters if isinstance(p, DTensor) and p.grad is not None)
        gradients.add(where(there))
        return clip(group, parameters, limit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchProcessGroup, "clip", noted)
        return [learn(learner, rollouts, step=step)[1] for step in range(2)][1]


def train(out: Path, keys: tuple[str, ...], device: str) -> None:
    """Two steps of a policy, a critic and a reference; what each rank sees is written down."""
    rollouts = step_of_rollouts(fresh_policy("qwen2"), 3, groups=2, members=2)
    known, gradients = join_group(), set[str]()
    group = Group(known.rank, known.size, shard_from=0)
    settings = config("rollout.response_length=24", *GAE, *keys)
    with pytest.MonkeyPatch.context() as patch, make_device() as used:
        without_inference_mode(patch)
        with_sharding(patch)
        policy = fresh_policy("qwen2")
        policy = policy if device == HERE else policy.to(used.first)
        learner = Learner(policy, settings, Numerics(), group=group)
        metrics = learned(learner, rollouts, gradients)
        critic, reference, trained = learner.critic, learner.reference, learner._policy  # pyright: ignore[reportPrivateUsage]
        assert critic is not None
        assert reference is not None
        head = [t for n, t in critic.model.named_tensors() if n.startswith("value_head")]
        assert {t.device.type for t in head} == {device}
        # The first rank samples from the whole policy, the others have it in main memory.
        assert policy.device.type == (HERE if group.rank else device)
        assert (used.operations > 0) is (device == THERE)
        (gradient,) = gradients
        trunk = [t for n, t in critic.model.named_tensors() if not n.startswith("value_head")]
        optimizer = critic._optimizer  # pyright: ignore[reportPrivateUsage]
        places = (
            where(trained.parameters()),
            where(state_of(learner.optimizer)),
            where(trunk),
            where(state_of(optimizer)),
            where(reference.policy.parameters()),
            gradient,
        )
    found = {"places": dict(zip(PARTS, places, strict=True)), "metrics": metrics}
    (out / f"{group.rank}.json").write_text(json.dumps(found))
    group.map(range(group.size), lambda _: None)  # nobody ends while another gathers a tensor


def ran(place: Path, keys: tuple[str, ...] = (), device: str = THERE) -> list[Any]:
    """What the ranks saw."""
    together(RANKS, place, train, place, keys, device)
    return [json.loads((place / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The metrics of ranks on CPUs."""
    return ran(tmp_path_factory.mktemp("cpu"), device=HERE)[0]["metrics"]


@pytest.mark.full  # ten seconds of two ranks
@pytest.mark.parametrize(
    ("keys", "offloaded"),
    [
        ((f"{ACTOR}param_offload=true", REFERENCE), set(PARTS)),
        ((), set[str]()),
        ((f"{ACTOR}optimizer_offload=true",), {*PARTS} - {"reference"}),
        ((REFERENCE,), {"reference"}),
    ],
    ids=["all", "nothing", "optimizer", "reference"],
)
def test_what_is_offloaded_lies_in_main_memory_between_steps(
    on_cpu: dict[str, float], tmp_path: Path, keys: tuple[str, ...], offloaded: set[str]
) -> None:
    for seen in ran(tmp_path, keys):
        assert seen["places"] == {p: HERE if p in offloaded else THERE for p in PARTS}
        assert seen["metrics"] == pytest.approx(on_cpu, rel=1e-3, abs=1e-4)
