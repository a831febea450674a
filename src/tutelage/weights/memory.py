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

    @classmethod
    def stored(cls, config: RunConfig) -> Self | None:
        """That of a model by its folder's description, before it is loaded; None without one."""
        path, lora = config.model.path, config.model.lora
        described = path and DescribedModel.of(Path(local_folder(path)).expanduser())
        if not described:
            return None
        count = trained = described.count()
        if lora.rank:
            trained = described.adapter_counts(lora.rank, lora.target_modules)[0]
            count += trained
        gpu = torch.cuda.is_available() and config.trainer.device != "cpu"
        return cls(config, count, trained, gpu)

    def bytes(self) -> int:
        """What the first rank holds."""
        machine, config = machine_facts(), self.config
        share = machine.nodes * machine.ranks if self.parameters >= SMALL_MODEL else 1
        each = 4 * self.parameters + 12 * self.trained
        size = each
        if config.needs_reference:  # beside adapters it shares what is frozen
            whole = self.trained == self.parameters or config.ref.path is not None
            size += 4 * (self.parameters if whole else self.trained)
        if has_critic(config):
            size += each if config.critic.model.path is None else 16 * self.parameters
        return size // share + 4 * self.parameters * (share > 1) + 2 * self.parameters * self.gpu

    def room(self) -> int:
        """The memory of a GPU, or a rank's part of the main memory; 0 if that is not known."""
        if self.gpu:
            return torch.cuda.get_device_properties(0).total_memory
        return machine_facts().memory // machine_facts().ranks

    def words(self) -> str:
        """What the first rank holds, and of how much."""
        place = "a GPU" if self.gpu else "a rank" if machine_facts().ranks > 1 else "this machine"
        return (
            f"{self.bytes() / 1e9:.3g} GB for weights, gradients and optimizer, beside activations "
            f"and libraries; {place} has {self.room() / 1e9:.3g} GB"
        )

    def check(self) -> None:
        """Raise `RunError` for a training that cannot fit."""
        if 0 < self.room() < self.bytes():
            way = "torchrun with more GPUs" if self.gpu else "one rank, more memory"
            raise RunError(
                f"a model of {self.parameters / 1e9:.2f} billion parameters does not fit in "
                f"memory: it needs {self.words()}. Use model.lora.rank=16, {way}, or a smaller "
                "model"
            )
