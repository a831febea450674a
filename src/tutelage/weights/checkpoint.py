"""Checkpoints: all that the rest of a run depends on, written aside and renamed.

A checkpoint is a folder `step_000040/` named after the run's clock tick, with the tensors (weights,
optimizer, the policy that reinforcement learning started from), and the counters as JSON. Random
generators need no place in it: every draw is addressed by the seed tree. A kill while one is
written leaves the one before it, and a folder without its last file is ignored. The format is
torch's, read with `weights_only=True`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from tutelage.errors import RunError
from tutelage.runs.folder import RunFolder, disk_error, write_json

KEPT = 2
"""Older checkpoints are removed; this many stay."""


@dataclass(slots=True)
class State:
    """Where a run stands. Everything here is a function of config and seed, but for `seconds`."""

    phase: str = ""
    """The phase in progress."""
    phase_step: int = 0
    """Steps of it that are done."""
    tick: int = 0
    """The run's clock: grows by one with each training step and each evaluation."""
    policy_version: int = 0
    metrics_lines: int = 0
    rollouts: int = 0
    tokens: int = 0
    max_dlogp: float = 0.0
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    """What ended phases found."""
    phase_data: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the phase in progress remembers."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Wall-clock seconds by phase."""


def save(folder: RunFolder, state: State, tensors: Mapping[str, Any]) -> Path:
    """Write a checkpoint. Raises `RunError` when the disk is full; older ones stay then."""
    final = folder.checkpoints / f"step_{state.tick:06d}"
    aside = folder.checkpoints / f".{final.name}.tmp"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        torch.save(dict(tensors), aside / "tensors.pt")
        _flush(aside / "tensors.pt")
        write_json(aside / "state.json", asdict(state))
        shutil.rmtree(final, ignore_errors=True)
        os.replace(aside, final)
        _flush(folder.checkpoints)
    except (OSError, RuntimeError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise disk_error(final, _disk_reason(error)) from error
    for old in complete(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load(path: Path) -> tuple[State, dict[str, Any]]:
    """Read a checkpoint."""
    try:
        state = State(**json.loads((path / "state.json").read_text()))
        tensors: dict[str, Any] = torch.load(path / "tensors.pt", weights_only=True)
    except (OSError, ValueError, TypeError, RuntimeError, EOFError, UnpicklingError) as error:
        # What torch says of a damaged pickle is about trust in its author, which helps nobody here.
        damaged = isinstance(error, UnpicklingError)
        reason = "tensors.pt is damaged" if damaged else str(error).partition("\n")[0]
        raise RunError(
            f"the checkpoint {str(path)!r} cannot be read: {reason}; remove that folder, and "
            "`tutelage resume` goes on from the one before it"
        ) from error
    return state, tensors


def complete(folder: RunFolder) -> list[Path]:
    """All complete checkpoints, oldest first."""
    if not folder.checkpoints.is_dir():
        return []
    return sorted(
        p
        for p in folder.checkpoints.iterdir()
        if p.name.startswith("step_") and (p / "state.json").is_file()
    )


def _disk_reason(error: OSError | RuntimeError) -> OSError:
    """The error as one of the disk: torch reports a full one by its zip writer's RuntimeError."""
    if isinstance(error, OSError):
        return error
    told = str(error).partition("\n")[0]
    return OSError(f"the disk refused to write (full, over a file-size limit, or failing): {told}")


def _flush(path: Path) -> None:
    """Have the operating system write a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
