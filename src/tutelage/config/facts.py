"""What a configuration is checked against: the machine it will run on, and what is built.

Both are passed in, never detected here: finding GPUs needs torch, and a test of an eight-GPU
command should run anywhere. `Built` is the one place to extend when a backend is added; until then
a key that asks for it is refused (`checks.py`), never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tutelage.config.extensions import Extensions
from tutelage.config.schema import RunConfig


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a run: GPUs it can see, CPU cores it may use, whether vLLM can be reached."""

    cuda_devices: int
    cores: int
    vllm: bool = False
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class Built:
    """What the package can do today; everything else that the schema names is refused."""

    extensions: Extensions = field(default=Extensions(), hash=False)
    """The registries of estimators, losses and agent types; see `extensions.py`."""
    backends: tuple[str, ...] = ("native",)
    narrowed_sampling: bool = False
    """Training with top_p or top_k, which needs the support set replayed in the trainer."""
    gradient_checkpointing: bool = False
    offload: bool = False
    nodes: int = 1
    gpus_per_node: int = 1
    tensor_parallel: int = 1

    @classmethod
    def everything(cls) -> Built:
        """All that the schema can name: what the checks allow once every part exists."""
        return cls(
            backends=("native", "vllm", "openai"),
            narrowed_sampling=True,
            gradient_checkpointing=True,
            offload=True,
            nodes=1024,
            gpus_per_node=1024,
            tensor_parallel=1024,
        )


BUILT = Built()
"""What is built today."""


def device_of(config: RunConfig, machine: Machine) -> Literal["cpu", "cuda"]:
    """Where the run trains: what `trainer.device` names, or the GPU that `auto` finds."""
    if config.trainer.device == "auto":
        return "cuda" if machine.cuda_devices else "cpu"
    return config.trainer.device
