"""How forwards are computed: activation type, threads, and whether the sampler differs.

`machine.py` chooses it for the machine and the model; the critic and the policy's update obey it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Numerics:
    """How forwards are computed: activation type, threads, and whether the sampler differs."""

    dtype: torch.dtype = torch.float32
    threads: int = 1

    @property
    def exact(self) -> bool:
        """Whether the trainer recomputes what the sampler computed, to rounding."""
        return self.dtype == torch.float32
