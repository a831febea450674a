"""Low-rank adapters (LoRA, Hu et al. 2021) on a frozen model.

An adapted linear layer computes with `W + (alpha / rank) B A`, where only A [rank, in] and
B [out, rank] are trained; B is initialised with zeros, so a fresh adapter changes nothing. On the
fused decoder trainer and engine compute this sum with the same operation, so their weights are
equal bit for bit: the trainer with gradients to A and B, the engine after each update. Other
architectures use the layers of `peft`. Memory holds the adapted matrices twice, and optimizer state
for the adapters only; a step computes about as much as full training does. `save_adapter` writes
peft's format.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from tutelage.config.schema import LoraConfig
from tutelage.errors import ConfigError, MissingExtraError
from tutelage.policy.folder import save_tensors
from tutelage.policy.hf_model import HFNetwork, Network
from tutelage.policy.model import Policy
from tutelage.policy.network import Block, FusedNetwork
from tutelage.policy.sources import local_folder
from tutelage.policy.weights import PARTS, DecoderShape, DecoderWeights, Layer

_FUSED = {
    field: tuple(name.split(".")[1] for name in PARTS[field])
    for field in ("qkv", "out", "gate_up", "down")
}
MODULES = tuple(name for names in _FUSED.values() for name in names)
"""The linear layers of a Llama or Qwen block by their Hugging Face names."""


def with_lora(policy: Policy, lora: LoraConfig, *, seed: int) -> Policy:
    """Return a policy that adds new adapters to frozen weights, initialised from `seed`.

    Raises `ConfigError` if a target is not a linear layer, `MissingExtraError` without peft.
    """
    if importlib.util.find_spec("peft") is None:
        raise MissingExtraError(
            "model.lora needs peft, which is not installed: `pip install tutelage[lora]`"
        )
    network = policy.network
    if isinstance(network, FusedNetwork):
        adapted: Network = _LoraNetwork.create(network, lora, seed)
    else:
        adapted = _PeftNetwork.create(network, lora, seed)
    return Policy(adapted, policy.config, policy.codec, version=policy.version)


# ---------------------------------------------------------------- on the fused decoder


class _LoraBlock(Block):
    """A frozen decoder block with adapters, named like its linear layers."""

    def __init__(
        self, layer: Layer, adapters: Mapping[str, nn.ParameterDict], scale: float, s: DecoderShape
    ):
        super().__init__(layer)
        self._scale, self._shape = scale, s
        self._adapters = dict(adapters)
        for name, adapter in adapters.items():
            self.add_module(name, adapter)

    def tensors(self) -> Layer:
        """Return the block's adapted weights, with gradients to the adapters."""
        layer, changed = super().tensors(), dict[str, Tensor]()
        for field, modules in _FUSED.items():
            if not any(module in self._adapters for module in modules):
                continue
            fused: Tensor = getattr(layer, field)
            parts: list[Tensor] = []
            for module, part in zip(modules, fused.split(self._shape.sizes(field)), strict=True):
                if (ab := self._adapters.get(module)) is not None:
                    part = torch.addmm(part, ab["lora_B"], ab["lora_A"], alpha=self._scale)
                parts.append(part)
            changed[field] = parts[0] if len(parts) == 1 else torch.cat(parts)
        return replace(layer, **changed)


class _LoraNetwork(FusedNetwork):
    """The fused decoder with LoRA adapters, and their merged `weights` for sampling."""

    def __init__(
        self, base: DecoderWeights, adapters: Mapping[str, Tensor], lora: LoraConfig
    ) -> None:
        """Create a network from a frozen base, whose tensors are shared, and adapters.

        `adapters` are named like `layers.0.q_proj.lora_A`.
        """
        numbers = iter(range(base.shape.layers))

        def lora_block(layer: Layer) -> Block:
            at = f"layers.{next(numbers)}"
            own = {
                m: nn.ParameterDict({k: adapters[f"{at}.{m}.{k}"] for k in ("lora_A", "lora_B")})
                for m in MODULES
                if f"{at}.{m}.lora_A" in adapters
            }
            return _LoraBlock(layer, own, lora.alpha / lora.rank, base.shape)

        super().__init__(base, lora_block)
        self.lora = lora
        with torch.no_grad():
            self._merged = super().weights

    @staticmethod
    def create(network: FusedNetwork, lora: LoraConfig, seed: int) -> _LoraNetwork:
        """Add new adapters to a network. The tensors of the network are frozen and shared."""
        targets = lora.target_modules or MODULES
        unknown = [name for name in targets if name not in MODULES]
        if unknown:
            raise ConfigError(
                f"model.lora.target_modules has {unknown[0]!r}, which is not a linear layer of "
                f"this model; choose from {', '.join(MODULES)}"
            )
        base = network.weights
        for tensor in base.parameters():
            tensor.requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        adapters: dict[str, Tensor] = {}
        for i, layer in enumerate(base.layers):
            for field, modules in _FUSED.items():
                fused: Tensor = getattr(layer, field)
                for module, rows in zip(modules, base.shape.sizes(field), strict=True):
                    if module not in targets:
                        continue
                    # The initialisation of torch's linear layers, as in peft.
                    bound = 1 / math.sqrt(fused.shape[1])
                    a = torch.empty(lora.rank, fused.shape[1])
                    a.uniform_(-bound, bound, generator=generator)
                    name = f"layers.{i}.{module}"
                    adapters[f"{name}.lora_A"] = a.to(network.device)
                    adapters[f"{name}.lora_B"] = torch.zeros(rows, lora.rank).to(network.device)
        return _LoraNetwork(base, adapters, lora)

    @property
    def weights(self) -> DecoderWeights:
        """Return the merged weights, from which the engine samples."""
        return self._merged

    def named_tensors(self) -> Iterable[tuple[str, Tensor]]:
        """Return the adapter tensors by name."""
        return ((name, t) for name, t in self.named_parameters() if ".lora_" in name)

    @torch.no_grad()
    def copy(self) -> _LoraNetwork:
        """Return a network with the same base and copies of the adapters."""
        base = replace(
            self._merged, layers=[Block.tensors(b) for b in cast("list[Block]", list(self.layers))]
        )
        network = _LoraNetwork(base, {n: t.clone() for n, t in self.named_tensors()}, self.lora)
        network.checkpoints_blocks = self.checkpoints_blocks
        return network

    def to(self, *args: Any, **kwargs: Any) -> _LoraNetwork:
        """Move the base and the adapters to another device, and merge them there."""
        super().to(*args, **kwargs)
        with torch.no_grad():
            self._merged = super().weights
        return self

    @torch.no_grad()
    def merge(self) -> None:
        """Merge the adapters in place into the weights that the engine samples from."""
        for layer, block in zip(
            self._merged.layers, cast("list[Block]", list(self.layers)), strict=True
        ):
            for merged, current in zip(layer.items(), block.tensors().items(), strict=True):
                if merged is not None and current is not None and merged is not current:
                    merged.copy_(current)


# ---------------------------------------------------------------- on other architectures


class _PeftNetwork(HFNetwork):
    """A transformers model with peft adapters, used by both trainer and engine."""

    lora: LoraConfig

    @staticmethod
    def create(network: HFNetwork, lora: LoraConfig, seed: int) -> _PeftNetwork:
        """Add new adapters to a network. The tensors of the network are frozen."""
        import peft

        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft warns of settings that it corrects itself
            torch.manual_seed(seed)
            try:
                model: Any = peft.get_peft_model(network.model, _peft_config(lora, None))
            except ValueError as error:
                raise ConfigError(f"model.lora does not fit this model: {error}") from error
        adapted = _PeftNetwork(model, network.device)
        adapted.lora = lora
        return adapted

    def body(self) -> Any:
        """Return the model without its output head."""
        return self.model.get_base_model().base_model

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the merged weights by their Hugging Face names."""
        return HFNetwork(deepcopy(self.model).merge_and_unload(), self.device).hf_tensors()


# ---------------------------------------------------------------- as files


def save_adapter(policy: Policy, folder: Path, *, base: str) -> bool:
    """Write a policy's adapters to a folder that peft's `PeftModel.from_pretrained` can load.

    `base` is the model that the adapters belong to. Returns False, and writes nothing, without
    adapters.
    """
    network = policy.network
    if not isinstance(network, (_LoraNetwork, _PeftNetwork)):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    base = local_folder(base)
    config = _peft_config(network.lora, base)
    config.inference_mode = True
    config.save_pretrained(str(folder))
    tensors: dict[str, Tensor] = {}
    for name, tensor in network.named_tensors():
        if ".default." in name:  # an adapter made by peft
            name = name.replace(".default.", ".")
        else:
            _, layer, module, kind = name.split(".")
            block = "mlp" if module in MODULES[4:] else "self_attn"
            name = f"base_model.model.model.layers.{layer}.{block}.{module}.{kind}.weight"
        tensors[name] = tensor.detach().cpu().contiguous().clone()
    save_tensors(tensors, folder / "adapter_model.safetensors")
    return True


def _peft_config(lora: LoraConfig, base: str | None) -> Any:
    from peft import LoraConfig as PeftConfig

    alpha: Any = lora.alpha  # typed as int in peft, which also works with a float
    return PeftConfig(
        r=lora.rank,
        lora_alpha=int(alpha) if float(alpha).is_integer() else alpha,
        target_modules=list(lora.target_modules) or "all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )
