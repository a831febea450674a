"""Ranks that a launcher such as torchrun has started.

Read from the environment variables, without torch; `weights/process_group.py` connects the
processes.
"""

from __future__ import annotations

import os


def launched_ranks() -> str:
    """Return the number of ranks as text, from WORLD_SIZE; "1" without a launcher."""
    return os.environ.get("WORLD_SIZE", "1")


def follows() -> bool:
    """Return True for a rank other than the first, which alone plays, writes and prints."""
    return launched_ranks() != "1" and os.environ.get("RANK", "0") != "0"
