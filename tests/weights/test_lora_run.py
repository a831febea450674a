"""Runs with adapters: only they are trained, kept and resumed; the files are the usual ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tutelage.config.schema import LoraConfig
from tutelage.errors import ConfigError
from tutelage.policy.lora import with_lora
from tutelage.policy.model import load_policy
from tutelage.runs.folder import RunFolder
from tutelage.testing import tiny_policy
from tutelage.weights import checkpoint
from tutelage.weights.config import resolve
from tutelage.weights.learner import _make_reference  # pyright: ignore[reportPrivateUsage]

from . import tiny_job
from .samples import LAPTOP

LORA: dict[str, Any] = {"model__lora__rank": 4, "actor__use_kl_loss": "true"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny_job.material(tmp_path)


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(folder.policy / "model.safetensors")


@pytest.mark.parametrize("estimator", ["grpo", pytest.param("gae", marks=pytest.mark.full)])
def test_killed_and_resumed_is_the_same_bit_for_bit(
    one_thread: None, source: Path, tmp_path: Path, estimator: str
) -> None:
    keys = {**LORA, "algorithm__adv_estimator": estimator}
    whole = tiny_job.run(source, tmp_path / "whole", **keys)
    killed = tiny_job.killed_and_resumed(source, tmp_path / "killed", at=3, **keys)
    first, second = weights(whole), weights(killed)
    assert all(first[name].equal(second[name]) for name in first)
    rewards = [[x["reward/mean"] for x in tiny_job.steps(f)] for f in (whole, killed)]
    assert rewards[0] == rewards[1]


@pytest.mark.full
def test_what_a_run_with_adapters_leaves_behind(
    one_thread: None, source: Path, tmp_path: Path
) -> None:
    from peft import PeftModel  # what it imports is large

    folder = tiny_job.run(source, tmp_path / "run", **LORA)
    lines = tiny_job.steps(folder)
    assert max(x["max_dlogp"] for x in lines) < 1e-4
    assert lines[0]["kl/ref"] == pytest.approx(0.0, abs=1e-6)
    assert lines[-1]["kl/ref"] > 1e-6
    _, tensors = checkpoint.load(checkpoint.list_complete(folder)[-1])
    assert all(".lora_" in name for name in tensors["policy"])
    base = load_file(source / "model" / "model.safetensors")
    merged = weights(folder)
    changed = {name for name in base if not base[name].equal(merged[name])}
    assert changed
    assert all("_proj.weight" in name for name in changed)
    model = AutoModelForCausalLM.from_pretrained(source / "model", dtype=torch.float32)
    peft: Any = PeftModel.from_pretrained(model, str(folder.path / "adapter"))
    ids = torch.arange(20, 40)[None]
    theirs = peft(ids).logits
    ours = AutoModelForCausalLM.from_pretrained(folder.policy, dtype=torch.float32)(ids).logits
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=1e-4)
    assert load_policy(str(folder.policy)).count() == sum(t.numel() for t in base.values())


def test_supervised_training_of_adapters(one_thread: None, source: Path, tmp_path: Path) -> None:
    from tutelage.runs.folder import create
    from tutelage.runs.progress import Progress
    from tutelage.weights import jobs

    keys = [
        f"model.path={source / 'model'}", f"train={source / 'train.jsonl'}", "model.lora.rank=4",
        "batch_size=3", "lr=3e-2", "steps=8", "trainer.threads=1", "actor.optim.warmup_steps=0",
    ]  # fmt: skip
    folder = create(tmp_path / "sft")
    jobs.train(resolve("sft", keys, machine=LAPTOP), folder, Progress())
    losses = [x["loss/sft"] for x in folder.read_metrics() if "loss/sft" in x]
    assert losses[-1] < losses[0]
    assert (folder.path / "adapter" / "adapter_model.safetensors").is_file()


def test_keys_of_adapters(source: Path) -> None:
    with pytest.raises(ConfigError, match="random weights"):
        resolve("math", ["model.lora.rank=4", "model.path=null"], machine=LAPTOP)
    found = resolve(
        "math",
        ["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_alpha=32",
         "actor_rollout_ref.model.target_modules=[q_proj,v_proj]", "model=a/b"],
        machine=LAPTOP
    )  # fmt: skip
    lora = found.config.model.lora
    assert (lora.rank, lora.alpha, lora.target_modules) == (8, 32.0, ("q_proj", "v_proj"))
    unused = resolve("math", ["model.lora.alpha=8"], machine=LAPTOP).unused
    assert set(unused) == {"model.lora.alpha"}


def test_a_resumed_run_has_the_model_without_adapters_as_its_reference(tmp_path: Path) -> None:
    base, keys = tiny_policy(), ["agent.reward_name=math", "model.lora.rank=2"]
    base.save(tmp_path / "base")
    flags = {"model": str(tmp_path / "base"), "train": "tasks.jsonl"}
    config = resolve("rl", keys, machine=LAPTOP, flags=flags).config
    trained = with_lora(base, LoraConfig(rank=2), seed=1)
    trained.load_tensors({name: torch.randn(t.shape) for name, t in trained.named_tensors()})
    found = _make_reference(trained, config, fresh=False, initial_weights=None)
    assert found.network is not trained.network
    plain, ours = (dict(policy.hf_tensors()) for policy in (base, found))
    assert all(torch.equal(plain[name], tensor) for name, tensor in ours.items())
    shared = {t.data_ptr() for t in trained.network.state_dict().values()}
    frozen = [t for n, t in found.network.state_dict().items() if ".lora_" not in n]
    assert all(tensor.data_ptr() in shared for tensor in frozen)
