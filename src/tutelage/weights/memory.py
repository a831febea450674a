"""Estimate the memory of a training without activations, and refuse a training that cannot fit.

A trained parameter has four numbers in float32: its value, its gradient, and two of AdamW. Models
of 20 million parameters or more are sharded over the ranks, and rank 0 also has the whole policy
for sampling.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch

from tutelage.config import RunConfig
from tutelage.errors import RunError
from tutelage.policy.described import DescribedModel
from tutelage.policy.machine import SMALL_MODEL, detect_machine
from tutelage.policy.sources import local_folder
from tutelage.weights.config.extensions import has_critic

if TYPE_CHECKING:
    from tutelage.weights.inputs import TrainingInputs


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory estimate of a training from the number of all and of trained parameters."""

    config: RunConfig
    parameters: int
    trained: int
    gpu: bool

    @classmethod
    def from_inputs(cls, inputs: TrainingInputs) -> Self:
        """Create the estimate for a training with loaded policies."""
        policies = [inputs.policy, *inputs.others.values()]
        trained = [p.numel() for policy in policies for p in policy.parameters() if p.requires_grad]
        count = sum(policy.count() for policy in policies)
        return cls(inputs.config, count, sum(trained), inputs.choice.device.type == "cuda")

    def required_bytes(self) -> int:
        """Return the required memory of rank 0 in bytes."""
        machine, config = detect_machine(), self.config
        share = machine.nodes * machine.ranks if self.parameters >= SMALL_MODEL else 1
        size = (4 * self.parameters + 12 * self.trained) * (1 + has_critic(config))
        if config.needs_reference:  # beside adapters it shares what is frozen
            size += 4 * (self.trained if config.ref.path is None else self.parameters)
        return size // share + 4 * self.parameters * (share > 1) + 2 * self.parameters * self.gpu

    def available_bytes(self) -> int:
        """Return the memory of a GPU or a rank's share of main memory in bytes, or 0 if unknown."""
        if self.gpu:
            return torch.cuda.get_device_properties(0).total_memory
        return detect_machine().memory // detect_machine().ranks

    def describe(self) -> str:
        """Describe the required and the available memory of rank 0."""
        size, room = (f"{n / 1e9:.3g} GB" for n in (self.required_bytes(), self.available_bytes()))
        return (
            f"{size} for weights, gradients and optimizer, beside activations and libraries; "
            f"a {'GPU' if self.gpu else 'rank'} has {room}"
        )

    def check(self) -> None:
        """Raise `RunError` if the training does not fit into memory."""
        if 0 < self.available_bytes() < self.required_bytes():
            raise RunError(
                f"a model of {self.parameters / 1e9:.2f} billion parameters does not fit in "
                f"memory: it needs {self.describe()}. Use model.lora.rank=16, more memory or GPUs "
                "(torchrun), or a smaller model"
            )


def check_model_fits(config: RunConfig) -> None:
    """Raise `RunError` if the configured model does not fit into memory, without loading it."""
    path, lora = config.model.path, config.model.lora
    described = path and DescribedModel.from_folder(Path(local_folder(path)).expanduser())
    if described:
        count = trained = described.count()
        if lora.rank:
            trained = described.adapter_counts(lora.rank, lora.target_modules)[0]
            count += trained
        gpu = torch.cuda.is_available() and config.trainer.device != "cpu"
        Footprint(config, count, trained, gpu).check()
