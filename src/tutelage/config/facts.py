"""Machine of a run, against which its configuration is checked.

It is passed in, never detected here: finding GPUs needs torch, and a test of an eight-GPU command
should run anywhere. `policy/machine.py` detects it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tutelage.config.schema import RunConfig


@dataclass(frozen=True, slots=True)
class Machine:
    """Visible GPUs, usable CPU cores and bytes of main memory; nodes that a launcher started the
    run on, ranks per node, and bytes of GPU memory."""

    cuda_devices: int
    cores: int
    nodes: int = 1
    memory: int = 0
    ranks: int = 1
    gpu_memory: int = 0
    vllm: bool = False
    """True if the trainer's environment has vLLM."""

    def device_of(self, config: RunConfig) -> Literal["cpu", "cuda"]:
        """Return the training device: `trainer.device`, or for `auto` a GPU if there is one."""
        found = config.trainer.device == "auto" and self.cuda_devices
        return "cuda" if found or config.trainer.device == "cuda" else "cpu"

    def placed_ranks(self, config: RunConfig) -> int:
        """Return the number of ranks that Ray places: with a configured Ray and no launcher, one
        per node or per training GPU; 1 means this process alone."""
        if self.nodes * self.ranks > 1 or not config.ray_kwargs.ray_init.is_named:
            return 1
        gpus = config.trainer.n_gpus_per_node if self.device_of(config) == "cuda" else None
        return config.trainer.nnodes * (gpus or 1)
