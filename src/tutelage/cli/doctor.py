"""`tutelage doctor`: check the hardware and packages, and show how to install missing ones.

`policy/machine.py` describes torch and devices. Without torch the other findings are printed, since
a prompt search over an endpoint does not need torch.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
from importlib import metadata
from pathlib import Path

_TRAIN = "pip install 'tutelage[train]'"
_PACKAGES = (*("transformers", "tokenizers", "safetensors", "gguf", "llguidance", "matplotlib"),)
"""Packages that training needs in addition to torch."""


def doctor() -> None:
    """Check the hardware and the installed packages."""
    from tutelage.cli.console import echo, escape, output

    console, pairs = output(), _check_machine()
    width = max(len(name) for name, _, _ in pairs)
    for name, value, remedy in pairs:
        mark = ("ok  ", "green") if remedy is None else ("!   ", "bold yellow")
        echo(console, mark, f"{name:<{width}}  ", escape(value))
        if remedy is not None:
            echo(console, " " * (width + 6), (escape(remedy), "yellow"))
    missing = sum(remedy is not None for _, _, remedy in pairs)
    summary = "Nothing is missing." if not missing else f"{missing} to look at, marked with '!'."
    search = " --algorithm apo (a prompt search over the endpoint that OPENAI_BASE_URL names)"
    command = "tutelage train math" + search * (not _is_installed("torch"))
    echo(console, f"\n{summary} Start with: {command}")


def _check_machine() -> list[tuple[str, str, str | None]]:
    """Return rows of (name, value, remedy); the remedy is None if there is no problem."""
    from tutelage.tools.sandbox import tier_problems

    free = shutil.disk_usage(Path.cwd()).free / 2**30
    lines: list[tuple[str, str, str | None]] = [("python", platform.python_version(), None)]
    if _is_installed("torch"):
        from tutelage.policy.machine import describe_machine

        lines += describe_machine()
    else:
        value = "missing: prompts are searched over an endpoint, weights are not trained"
        lines.append(("torch", value, _TRAIN))
    full = "a run writes some 100 MB; free some space" if free < 1 else None
    lines.append(("disk", f"{free:.1f} GiB free here", full))
    problems = tier_problems()
    tier = next((tier for tier in ("namespaces", "rlimit") if problems[tier] is None), "none")
    why = "; ".join(f"{tier}: {problem}" for tier, problem in problems.items() if problem)
    need = "python_executor, the code agent and code_reward need user namespaces or Landlock"
    value = tier if tier == "namespaces" else f"{tier} ({why})"
    lines.append(("sandbox", value, need if tier == "none" else None))
    for package in _PACKAGES:
        version = metadata.version(package) if _is_installed(package) else "missing"
        lines.append((package, version, None if _is_installed(package) else _TRAIN))
    return lines


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
