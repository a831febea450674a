"""The machine that a run will be on, as its configuration is checked against it.

It is passed in, never detected here: finding GPUs needs torch, and a test of an eight-GPU command
should run anywhere (`policy/machine.py` looks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tutelage.config.schema import RunConfig


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a run: GPUs it can see, CPU cores it may use, bytes of its main memory; the
    nodes that a launcher has started the run on, the ranks on each, and bytes of a GPU's memory."""

    cuda_devices: int
    cores: int
    nodes: int = 1
    memory: int = 0
    ranks: int = 1
    gpu_memory: int = 0
    vllm: bool = False
    """Whether the trainer's own environment has vLLM."""

    def device_of(self, config: RunConfig) -> Literal["cpu", "cuda"]:
        """Where the run trains: what `trainer.device` names, or the GPU that `auto` finds."""
        found = config.trainer.device == "auto" and self.cuda_devices
        return "cuda" if found or config.trainer.device == "cuda" else "cpu"

    def placed_ranks(self, config: RunConfig) -> int:
        """How many ranks Ray is to have: where a Ray is named and no launcher has started several,
        one on each node, or on each of its GPUs that train. 1 is this process alone."""
        if self.nodes * self.ranks > 1 or not config.ray_kwargs.ray_init.is_named:
            return 1
        gpus = config.trainer.n_gpus_per_node if self.device_of(config) == "cuda" else None
        return config.trainer.nnodes * (gpus or 1)
