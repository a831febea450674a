"""The fused decoder straight from the files of a model, so that one copy of the weights is there.

Tensors are read one after the other from safetensors files into the fused ones, and the forward of
transformers that they are compared with is made without weights and given views of them. What is
not read so, other formats, layouts and names, gives None: `model.py` then loads the model of
transformers, and says what is wrong where something is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tutelage.errors import ModelError
from tutelage.policy.network import FusedNetwork
from tutelage.policy.weights import DecoderShape, DecoderWeights

_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_LONGEST_HEAD = 100_000_000
"""Bytes, as in the library that writes them."""


class _Stored(Mapping[str, Tensor]):
    """The tensors of safetensors files. A file is open while one of them is read: what is mapped of
    it counts as memory."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> Tensor:
        with safe_open(self._files[name], framework="pt") as file:
            return file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def stored_tensors(folder: Path) -> Mapping[str, Tensor] | None:
    """The tensors of a model's folder, read when they are asked for; None without such files."""
    if (folder / _FILE).is_file():
        with safe_open(folder / _FILE, framework="pt") as file:
            return _Stored(dict.fromkeys(file.keys(), folder / _FILE))
    if (folder / _INDEX).is_file():
        places: dict[str, str] = json.loads((folder / _INDEX).read_text())["weight_map"]
        return _Stored({name: folder / file for name, file in places.items()})
    return None


def stored_count(folder: Path) -> int | None:
    """The number of parameters in a model's folder, by the heads of its safetensors files, of which
    nothing else is read; None without such files, or where they are damaged."""
    shapes = _stored_shapes(folder)
    return None if shapes is None else sum(map(math.prod, shapes.values()))


def described_count(folder: Path) -> int | None:
    """The number of parameters that a model's `config.json` describes, whatever its weights are
    kept in; None without one, or where it is of no known model."""
    shapes = _described_shapes(folder)
    return None if shapes is None else sum(map(math.prod, shapes.values()))


def layout_of(folder: Path) -> str | None:
    """The `model_type` that a model's folder names; None where it names none."""
    try:
        return json.loads((folder / "config.json").read_text()).get("model_type")
    except (OSError, ValueError, AttributeError):
        return None


def adapter_counts(
    folder: Path, rank: int, modules: Collection[str] = ()
) -> tuple[int, int] | None:
    """The parameters of LoRA's adapters of that rank on the linear layers in the blocks of a
    model's folder, all or those with these names, and the parameters of these layers; None where
    the folder does not say."""
    shapes = _stored_shapes(folder) or _described_shapes(folder) or {}
    named = [(name.split("."), shape) for name, shape in shapes.items() if len(shape) == 2]
    adapted = [
        shape
        for parts, shape in named
        if any(part.isdecimal() for part in parts) and (not modules or parts[-2] in modules)
    ]
    return (rank * sum(map(sum, adapted)), sum(map(math.prod, adapted))) if adapted else None


def _stored_shapes(folder: Path) -> dict[str, Sequence[int]] | None:
    index = folder / _INDEX
    try:
        files = {_FILE} if (folder / _FILE).is_file() else set[str]()
        if not files and index.is_file():
            files = set(json.loads(index.read_text())["weight_map"].values())
        heads = [_shapes(folder / name) for name in sorted(files)]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {name: shape for head in heads for name, shape in head.items()} if files else None


def _described_shapes(folder: Path) -> dict[str, Sequence[int]] | None:
    from transformers import AutoConfig, AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        return None
    try:
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)
    except Exception:  # a broken file comes out of transformers as almost anything; the loader says
        return None
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def _shapes(file: Path) -> dict[str, Sequence[int]]:
    """Of one file: 8 bytes say how long its head is, a JSON object of the tensors."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if size > _LONGEST_HEAD:
            raise ValueError(f"not a safetensors file: {file}")
        head: dict[str, Any] = json.loads(stream.read(size))
    return {name: t["shape"] for name, t in head.items() if name != "__metadata__"}


def stored_network(folder: Path, config: Any) -> tuple[FusedNetwork, Any] | None:
    """The fused decoder of a folder whose layout it is, and the model of transformers over the same
    tensors; None where the files are no such ones."""
    try:
        tensors = stored_tensors(folder)
        if tensors is None:
            return None
        model = _without_weights(config)
        rotary = model.model.rotary_emb
        weights = DecoderWeights.from_hf(
            tensors, DecoderShape.of(config), rotary.inv_freq, float(rotary.attention_scaling)
        )
        network = FusedNetwork.of(weights)
        views = dict(weights.hf_tensors())
        unknown = model.load_state_dict(views, strict=False, assign=True).unexpected_keys
        model.tie_weights()
    except (ModelError, SafetensorError, OSError, RuntimeError, ValueError, KeyError):
        return None
    given = [*model.parameters(), *model.buffers()]
    if unknown or any(tensor.is_meta for tensor in given):
        return None
    return network, model.eval()


def _without_weights(config: Any) -> Any:
    """The model of transformers with rotary tables and no weights."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
    return model
