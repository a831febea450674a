"""The memory that a training needs beside activations, and a refusal of what cannot fit.

A trained parameter has four numbers of float32: itself, its gradient, AdamW's two. From 20 million
on parameters are shared out over the ranks, and the first one has the whole policy to sample from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch

from tutelage.config import RunConfig
from tutelage.errors import RunError
from tutelage.policy.described import DescribedModel
from tutelage.policy.machine import SMALL_MODEL, machine_facts
from tutelage.policy.sources import local_folder
from tutelage.weights.config.extensions import has_critic

if TYPE_CHECKING:
    from tutelage.weights.inputs import TrainingInputs


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a training holds: all parameters of its policies, and those that are trained."""

    config: RunConfig
    parameters: int
    trained: int
    gpu: bool

    @classmethod
    def loaded(cls, setting: TrainingInputs) -> Self:
        """That of a training whose policies are loaded."""
        policies = [setting.policy, *setting.others.values()]
        trained = [p.numel() for policy in policies for p in policy.parameters() if p.requires_grad]
        count = sum(policy.count() for policy in policies)
        return cls(setting.config, count, sum(trained), setting.choice.device.type == "cuda")

    def bytes(self) -> int:
        """What the first rank holds."""
        machine, config = machine_facts(), self.config
        share = machine.nodes * machine.ranks if self.parameters >= SMALL_MODEL else 1
        size = (4 * self.parameters + 12 * self.trained) * (1 + has_critic(config))
        if config.needs_reference:  # beside adapters it shares what is frozen
            size += 4 * (self.trained if config.ref.path is None else self.parameters)
        return size // share + 4 * self.parameters * (share > 1) + 2 * self.parameters * self.gpu

    def room(self) -> int:
        """The memory of a GPU, or a rank's part of the main memory; 0 if that is not known."""
        if self.gpu:
            return torch.cuda.get_device_properties(0).total_memory
        return machine_facts().memory // machine_facts().ranks

    def words(self) -> str:
        """What the first rank holds, and of how much."""
        size, room = (f"{n / 1e9:.3g} GB" for n in (self.bytes(), self.room()))
        return (
            f"{size} for weights, gradients and optimizer, beside activations and libraries; "
            f"a {'GPU' if self.gpu else 'rank'} has {room}"
        )

    def check(self) -> None:
        """Raise `RunError` for a training that cannot fit."""
        if 0 < self.room() < self.bytes():
            raise RunError(
                f"a model of {self.parameters / 1e9:.2f} billion parameters does not fit in "
                f"memory: it needs {self.words()}. Use model.lora.rank=16, more memory or GPUs "
                "(torchrun), or a smaller model"
            )


def check_stored(config: RunConfig) -> None:
    """Raise `RunError` for a model that cannot fit by its folder's description, before it is
    loaded."""
    path, lora = config.model.path, config.model.lora
    described = path and DescribedModel.of(Path(local_folder(path)).expanduser())
    if described:
        count = trained = described.count()
        if lora.rank:
            trained = described.adapter_counts(lora.rank, lora.target_modules)[0]
            count += trained
        gpu = torch.cuda.is_available() and config.trainer.device != "cpu"
        Footprint(config, count, trained, gpu).check()
