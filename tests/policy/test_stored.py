"""A model's weights straight from its files: the same bits, one copy, and what goes another way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tutelage.errors import ModelError
from tutelage.policy.model import Policy, load_policy
from tutelage.policy.stored import stored_network, stored_tensors

Fresh = Callable[..., Policy]


def saved(policy: Policy, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    policy.save(folder)
    tensors = load_file(folder / "model.safetensors")
    meta = {"format": "pt"}
    save_file({n: t.to(dtype) for n, t in tensors.items()}, folder / "model.safetensors", meta)
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_no_model_of_transformers_is_loaded(
    fresh: Fresh, kind: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the bits are those that transformers loads."""
    folder = saved(fresh(kind), tmp_path / "model", dtype)
    with monkeypatch.context() as patch:
        patch.setattr("tutelage.policy.model.stored_network", lambda *_: None)
        wanted = load_policy(str(folder))
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", None)
    found = load_policy(str(folder))
    for (name, mine), (known, theirs) in zip(found.named(), wanted.named(), strict=True):
        assert name == known
        assert torch.equal(mine, theirs)
        assert mine.is_leaf
        assert mine.requires_grad
    mine, theirs = (p.network.weights for p in (found, wanted))  # type: ignore[union-attr]
    assert torch.equal(mine.inv_freq, theirs.inv_freq)
    assert mine.rope_scale == theirs.rope_scale


def test_the_model_that_is_compared_is_no_second_copy(fresh: Fresh, tmp_path: Path) -> None:
    folder = saved(fresh("qwen2"), tmp_path / "model")
    config = transformers.AutoConfig.from_pretrained(folder)
    made = stored_network(folder, config)
    assert made is not None
    network, model = made
    ours = {t.untyped_storage().data_ptr() for t in network.parameters()}
    assert {t.untyped_storage().data_ptr() for t in model.parameters()} <= ours


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
    found = stored_tensors(folder)
    assert found is not None
    assert sorted(found) == names
    assert len(found) == len(names)
    loaded = load_policy(str(folder))
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.parameters(), policy.parameters(), strict=True)
    )


@pytest.mark.parametrize("fault", ["lacks", "unknown", "shape", "cut"])
def test_what_does_not_fit_goes_the_way_that_says_so(
    fresh: Fresh, fault: str, tmp_path: Path
) -> None:
    folder = saved(fresh("llama"), tmp_path / "model")
    file, config = folder / "model.safetensors", transformers.AutoConfig.from_pretrained(folder)
    tensors: dict[str, Any] = load_file(file)
    if fault == "lacks":
        del tensors["model.layers.1.mlp.up_proj.weight"]
    elif fault == "unknown":
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
    elif fault == "shape":
        tensors["model.norm.weight"] = torch.ones(16)
    save_file(tensors, file, {"format": "pt"})
    if fault == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    assert stored_network(folder, config) is None
    if fault != "unknown":
        with pytest.raises(ModelError):
            load_policy(str(folder))
