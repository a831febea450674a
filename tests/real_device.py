"""The machine's GPU, for the tests that otherwise run on a pretended one.

    TUTELAGE_TEST_GPU=1 make test-full ARGS="tests/engine/test_engine_on_device.py -k 'not caught'"

The tests that say "is caught" are about what the pretended one refuses.
"""

from __future__ import annotations

import collections
import contextlib
import os
from typing import Any

import torch

ON_GPU = os.environ.get("TUTELAGE_TEST_GPU") == "1"


class RealDevice(contextlib.nullcontext[Any]):
    """What `PretendedDevice` is to a test, but for the places that wait: it counts none."""

    def __init__(self) -> None:
        super().__init__(self)
        self.first = self.second = torch.device("cuda", 0)
        self.waits: collections.Counter[str] = collections.Counter()
        torch.cuda.init()
        self._before = self._allocations()

    @property
    def operations(self) -> int:
        """Allocations of its memory so far."""
        return self._allocations() - self._before

    def _allocations(self) -> int:
        return torch.cuda.memory_stats(self.first).get("allocation.all.allocated", 0)
