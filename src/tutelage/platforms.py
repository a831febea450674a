"""Supported and unsupported platforms.

`cli` and `Trainer` refuse an unsupported platform before any import that it lacks;
`policy/machine.py` detects the accelerator with torch and chooses the device, and `doctor` shows
it.
"""

from __future__ import annotations

import platform
from typing import Literal

from tutelage.errors import ConfigError

Accelerator = Literal["none", "cuda", "rocm", "mps"]


Support = tuple[Literal["cpu", "cuda"] | None, str]
"""The device of `trainer.device=auto`, None on an unsupported platform, and a remark."""


def platform_support(system: str, accelerator: Accelerator = "none") -> Support:
    """Return the device for a platform and an accelerator, or None if unsupported, and a remark."""
    if system == "Windows":
        why = "Tutelage does not run on Windows, which lacks fork, process groups and file locks. "
        return None, f"{why}Install it in WSL 2 (wsl --install), where it runs as on Linux"
    if accelerator == "mps":
        return "cpu", "Apple's GPU (mps) is not supported; training runs on the CPU"
    if accelerator == "rocm":
        return "cuda", "an AMD GPU through ROCm, on which Tutelage is not tested"
    return ("cuda" if accelerator == "cuda" else "cpu"), ""


def check_platform(system: str | None = None) -> None:
    """Raise `ConfigError` if the platform (by default the current one) is not supported."""
    device, reason = platform_support(system or platform.system())
    if device is None:
        raise ConfigError(f"{reason}.")
