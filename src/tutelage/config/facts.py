"""Description of the machine of a run, for checks of the configuration.

`policy/machine.py` detects the machine, because finding GPUs needs torch, and because a test of an
eight-GPU command should run anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tutelage.config.schema import RunConfig


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources of a run: visible GPUs, usable CPU cores, bytes of main memory, nodes used by the
    launcher, ranks per node, and bytes of GPU memory."""

    cuda_devices: int
    cores: int
    nodes: int = 1
    memory: int = 0
    ranks: int = 1
    gpu_memory: int = 0
    vllm: bool = False
    """True if the trainer's environment has vLLM."""

    def training_device(self, config: RunConfig) -> Literal["cpu", "cuda"]:
        """Return the training device: `trainer.device`, or for `auto` a GPU if one is visible."""
        has_gpu = config.trainer.device == "auto" and self.cuda_devices
        return "cuda" if has_gpu or config.trainer.device == "cuda" else "cpu"

    def count_ray_ranks(self, config: RunConfig) -> int:
        """Return the number of ranks started by Ray: one per node or training GPU if Ray is
        configured without a launcher; 1 means that only this process trains."""
        if self.nodes * self.ranks > 1 or not config.ray_kwargs.ray_init.is_configured:
            return 1
        gpus = config.trainer.n_gpus_per_node if self.training_device(config) == "cuda" else None
        return config.trainer.nnodes * (gpus or 1)
