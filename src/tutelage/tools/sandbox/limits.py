"""What code in a sandbox may use, and the names of the tiers that hold it to that.

Shared by both sides: the client in this process (`client.py`) and the server that starts sandboxes
(`server.py`), which runs without the rest of the package; so this imports nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Tier: TypeAlias = Literal["namespaces", "rlimit", "none"]
TIERS: tuple[Tier, ...] = ("namespaces", "rlimit", "none")
"""From the strongest to no protection at all."""

MIB = 1 << 20
MAX_VALUE = 1 << 17
"""Characters of a value that is handed out; reading one takes the reader a thousand times as much
memory."""


PACKAGES = (
    "numpy", "scipy", "sympy", "mpmath", "gmpy2", "networkx", "pandas", "dateutil", "pytz",
    "tzdata", "six", "sortedcontainers",
)  # fmt: skip
"""Packages that code may import where they are installed, beside the standard library."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one sandbox; `seconds` and `output` hold for each execution in it."""

    seconds: float = 5.0
    """Wall-clock time of one execution; after it the interpreter is killed."""
    memory: int = 512 * MIB
    """Bytes of address space of a process."""
    disk: int = 32 * MIB
    """Bytes of all its files together, which also bounds each."""
    processes: int = 1
    """Processes at once; more than one only in the tier `namespaces`."""
    output: int = 4000
    """Characters of output that are kept of one execution, from its beginning and its end."""
    packages: tuple[str, ...] = PACKAGES
    """Installed packages that it may import, and so read."""
