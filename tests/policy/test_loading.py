"""A model's weights from its files: the bits that transformers loads, in one copy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.marks import long

from tutelage.errors import ModelError
from tutelage.policy.hf_model import HFNetwork
from tutelage.policy.model import (
    Policy,
    _make_network,  # pyright: ignore[reportPrivateUsage]
    load_policy,
)
from tutelage.policy.network import FusedNetwork
from tutelage.policy.weights import DecoderShape, DecoderWeights

Fresh = Callable[..., Policy]


def saved(policy: Policy, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    policy.save(folder)
    tensors = load_file(folder / "model.safetensors")
    meta = {"format": "pt"}
    save_file({n: t.to(dtype) for n, t in tensors.items()}, folder / "model.safetensors", meta)
    return folder


@pytest.mark.parametrize("dtype", [torch.bfloat16, *long(torch.float32)])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_the_bits_are_those_that_transformers_loads(
    fresh: Fresh, kind: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    folder = saved(fresh(kind), tmp_path / "model", dtype)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rotary = model.model.rotary_emb
    wanted = DecoderWeights.from_hf(
        model.state_dict(), DecoderShape.of(model.config), rotary.inv_freq, rotary.attention_scaling
    )
    found = load_policy(str(folder))
    for (name, mine), (known, theirs) in zip(found.named(), wanted.named(), strict=True):
        assert name == known
        assert torch.equal(mine, theirs)
        assert mine.is_leaf
        assert mine.requires_grad
    mine = found.network.weights  # type: ignore[union-attr]
    assert torch.equal(mine.inv_freq, wanted.inv_freq)
    assert mine.rope_scale == wanted.rope_scale


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_the_model_that_is_compared_is_no_second_copy(
    fresh: Fresh, kind: str, tmp_path: Path
) -> None:
    folder = saved(fresh(kind), tmp_path / "model")
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    network: Any = _make_network(model)
    assert isinstance(network, FusedNetwork)
    ours = {t.untyped_storage().data_ptr() for t in network.parameters()}
    assert {t.untyped_storage().data_ptr() for t in model.parameters()} <= ours


def test_a_layout_that_is_not_fused_keeps_its_tensors(fresh: Fresh, tmp_path: Path) -> None:
    folder = saved(fresh("llama"), tmp_path / "model")
    config = transformers.AutoConfig.from_pretrained(folder)
    config.mlp_bias = True
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    network: Any = _make_network(model)
    assert isinstance(network, HFNetwork)
    kept = network.model.state_dict()
    assert kept.keys() == state.keys()
    assert all(torch.equal(kept[name], state[name]) for name in state)


def test_files_in_parts_are_read_by_their_index(fresh: Fresh, tmp_path: Path) -> None:
    policy = fresh("llama")
    folder = saved(policy, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, places = sorted(tensors), dict[str, str]()
    for part in range(2):
        file = f"model-{part}.safetensors"
        save_file({n: tensors[n] for n in names[part::2]}, folder / file, {"format": "pt"})
        places |= dict.fromkeys(names[part::2], file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    loaded = load_policy(str(folder))
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.parameters(), policy.parameters(), strict=True)
    )


@pytest.mark.parametrize("fault", ["lacks", "shape", "cut"])
def test_damaged_weights_are_refused(fresh: Fresh, fault: str, tmp_path: Path) -> None:
    folder = saved(fresh("llama"), tmp_path / "model")
    file = folder / "model.safetensors"
    tensors: dict[str, Any] = load_file(file)
    if fault == "lacks":
        del tensors["model.layers.1.mlp.up_proj.weight"]
    elif fault == "shape":
        tensors["model.norm.weight"] = torch.ones(16)
    save_file(tensors, file, {"format": "pt"})
    if fault == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError):
        load_policy(str(folder))
