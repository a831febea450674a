"""Read the size of a model from its `config.json`, without reading its weights."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class DescribedModel:
    """Architecture (`model_type`) and parameter shapes of a model."""

    layout: str
    shapes: dict[str, Sequence[int]]

    @staticmethod
    def from_folder(folder: Path) -> DescribedModel | None:
        """Read a model folder's config. Returns None if it is missing, invalid or unsupported."""
        from transformers import AutoConfig, AutoModelForCausalLM

        if not (folder / "config.json").is_file():
            return None
        try:
            config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
            with torch.device("meta"):
                model: Any = AutoModelForCausalLM.from_config(config)
        except Exception:  # transformers raises many types of exception for a broken file
            return None
        return DescribedModel(config.model_type, {n: p.shape for n, p in model.named_parameters()})

    def count(self) -> int:
        """Return the number of parameters."""
        return sum(map(math.prod, self.shapes.values()))

    def adapter_counts(self, rank: int, modules: Collection[str] = ()) -> tuple[int, int]:
        """Return the parameter counts of LoRA adapters of this rank and of the adapted layers.

        These layers are all linear layers of the blocks, or only those named in `modules`.
        """
        named = [(name.split("."), s) for name, s in self.shapes.items() if len(s) == 2]
        adapted = [
            shape
            for parts, shape in named
            if any(part.isdecimal() for part in parts) and (not modules or parts[-2] in modules)
        ]
        return rank * sum(map(sum, adapted)), sum(map(math.prod, adapted))
