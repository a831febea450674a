"""Resource limits of a sandbox, and the names of the tiers that enforce them.

Shared by the client in this process (`client.py`) and the server that starts sandboxes
(`server.py`), which runs without the rest of the package; so this module imports nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Tier: TypeAlias = Literal["namespaces", "rlimit", "none"]
TIERS: tuple[Tier, ...] = ("namespaces", "rlimit", "none")
"""All tiers, from the strongest to no protection."""

MIB = 1 << 20
MAX_VALUE = 1 << 17
"""Maximum characters of a returned value; parsing it takes about a thousand times as much
memory."""


PACKAGES = (
    "numpy", "scipy", "sympy", "mpmath", "gmpy2", "networkx", "pandas", "dateutil", "pytz",
    "tzdata", "six", "sortedcontainers",
)  # fmt: skip
"""Packages that code may import if installed, besides the standard library."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Resource limits of a sandbox; `seconds` and `output` apply to each execution."""

    seconds: float = 5.0
    """Wall-clock seconds of one execution, after which the interpreter is killed."""
    memory: int = 512 * MIB
    """Bytes of address space per process."""
    disk: int = 32 * MIB
    """Bytes of all files together, and of each file."""
    output: int = 4000
    """Characters of output kept per execution, from its beginning and end."""
    packages: tuple[str, ...] = PACKAGES
    """Installed packages that the code may import and read."""
