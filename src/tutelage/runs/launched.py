"""Whether this process is one of several that a launcher such as torchrun has started.

By its variables alone, without torch; `weights/process_group.py` connects the processes.
"""

from __future__ import annotations

import os


def launched_ranks() -> str:
    """How many processes a launcher has started with this one, as it says; "1" without one."""
    return os.environ.get("WORLD_SIZE", "1")


def follows() -> bool:
    """Whether this process is one of several that a launcher has started, and not the first, which
    alone plays, writes and shows."""
    return launched_ranks() != "1" and os.environ.get("RANK", "0") != "0"
