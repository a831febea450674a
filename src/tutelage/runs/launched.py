"""Ranks that a launcher such as torchrun has started.

Read from the environment variables, without torch; `weights/process_group.py` connects the
processes.
"""

from __future__ import annotations

import os


def world_size() -> str:
    """Return the environment variable WORLD_SIZE, or "1" without a launcher."""
    return os.environ.get("WORLD_SIZE", "1")


def is_nonzero_rank() -> bool:
    """Return True for all ranks except rank 0, which alone plays, writes and prints."""
    return world_size() != "1" and os.environ.get("RANK", "0") != "0"
