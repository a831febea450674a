"""Numeric settings of forward passes: dtype of activations and threads.

`machine.py` chooses them for the machine and the model; the critic and the policy's update use
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Numerics:
    """Activation dtype and number of threads of a forward pass."""

    dtype: torch.dtype = torch.float32
    threads: int = 1

    @property
    def is_exact(self) -> bool:
        """Return True if sampler and trainer agree up to rounding."""
        return self.dtype == torch.float32
