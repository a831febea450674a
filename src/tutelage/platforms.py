"""Which platforms work and which are refused, decided from facts, so that any can be pretended.

`cli` and `Trainer` refuse before anything is imported that a platform lacks; `policy/machine.py`
finds the facts with torch, chooses the device by the answer, and `doctor` shows it.
"""

from __future__ import annotations

import platform
from typing import Literal, NamedTuple

from tutelage.errors import ConfigError

Accelerator = Literal["none", "cuda", "rocm", "mps"]


class Support(NamedTuple):
    """The device that `trainer.device=auto` takes, None where nothing runs, and what to know."""

    device: Literal["cpu", "cuda"] | None
    remark: str = ""


def platform_support(system: str, accelerator: Accelerator = "none") -> Support:
    """What runs on a `platform.system()` with this accelerator."""
    if system == "Windows":
        why = "Tutelage does not run on Windows, which lacks fork, process groups and file locks. "
        return Support(None, f"{why}Install it in WSL 2 (wsl --install), where it runs as on Linux")
    if accelerator == "mps":
        return Support("cpu", "Apple's GPU (mps) is not supported; training runs on the CPU")
    if accelerator == "rocm":
        return Support("cuda", "an AMD GPU through ROCm, on which Tutelage is not tested")
    return Support("cuda" if accelerator == "cuda" else "cpu")


def check_platform(system: str | None = None) -> None:
    """Raise `ConfigError` on a platform where nothing runs; this one unless `system` is given."""
    found = platform_support(system or platform.system())
    if found.device is None:
        raise ConfigError(f"{found.remark}.")
