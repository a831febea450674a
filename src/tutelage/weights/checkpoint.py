"""Checkpoints: the whole state of a run, written to a temporary folder that is then renamed.

A checkpoint is a folder named by its number of training steps, such as `step_000040/`. It has the
policy as an ordinary Hugging Face folder, `tensors.pt` with the exact weights and optimizer state,
the counters as JSON, and `checksums.json`, which is written last and compared with every file by
`load`. Training can continue from any checkpoint that was saved during training, also after the run
has finished. Checkpoints between phases, such as `step_000040_tick_000045/`, are also named by the
run's clock and are removed when the run has finished. They have no random state, since every draw
is addressed by the seed tree.

If the process is killed while it writes a checkpoint, the previous one remains, and a folder
without its last file is ignored. The tensors have torch's format, read with `weights_only=True`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from tutelage.errors import RunError
from tutelage.runs.folder import RunFolder, disk_error, write_json

KEPT = 2
"""Default number of training checkpoints that are kept in addition to the best one."""
SUMS = "checksums.json"
BEST = "best"
"""Key of the results for the step with the best validation result, and that result."""
DROPPED = "dropped_groups"
"""Key of the results for the number of groups that asynchronous training has dropped."""
COLD, RL, CONTROL, SFT = "cold_start", "rl", "control", "sft"
TRAINED: Mapping[str, str] = {RL: "rl_steps", SFT: "sft_steps"}
"""Phases from whose checkpoints training can continue, and the keys of their steps in results."""
_NAME = re.compile(r"step_\d{6,}(_tick_\d{6,})?")
_BETWEEN = "_tick_"
_PARTS = "parts"
"""A folder in torch's distributed format, with the state that is sharded over ranks."""
_DAMAGED = ".damaged"


@dataclass(slots=True)
class TrainingState:
    """State of a training run. All fields except `seconds` depend only on config and seed."""

    phase: str = ""
    """The phase in progress."""
    phase_step: int = 0
    """Number of completed steps of the phase."""
    tick: int = 0
    """The run's clock: grows by one with each training step and each evaluation."""
    policy_version: int = 0
    metrics_lines: int = 0
    rollouts: int = 0
    tokens: int = 0
    max_dlogp: float | None = None
    """None until rows have been compared."""
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    """Results of the phases that have ended."""
    phase_data: dict[str, Any] = field(default_factory=dict[str, Any])
    """Data of the phase in progress."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Wall-clock seconds by phase."""


def get_path(folder: RunFolder, state: TrainingState) -> Path:
    """Return the checkpoint folder of a training state."""
    done = state.results.get("done", ())
    if state.phase in TRAINED and state.phase not in done:
        return folder.checkpoints / f"step_{state.phase_step:06d}"
    steps = (state.results[name] for name in TRAINED.values() if name in state.results)
    return folder.checkpoints / f"step_{next(steps, 0):06d}{_BETWEEN}{state.tick:06d}"


def save(
    folder: RunFolder,
    state: TrainingState,
    tensors: Mapping[str, Any],
    write_policy: Callable[[Path], None] | None = None,
    keep: int | None = KEPT,
    write_shards: Callable[[Path], None] | None = None,
) -> Path:
    """Write a checkpoint and remove older ones.

    `write_policy` creates the folder with the policy in it. The last `keep` checkpoints of training
    (None for all) and the best one are kept. `write_shards` writes the tensors that are sharded
    over ranks. Raises `RunError` if the disk is full; older checkpoints are kept then.
    """
    final = get_path(folder, state)
    aside = final.with_name(f".{final.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        if write_policy is None:
            aside.mkdir(parents=True)
        else:
            write_policy(aside)
        torch.save(dict(tensors), aside / "tensors.pt")
        if write_shards is not None:
            write_shards(aside / _PARTS)
        write_json(aside / "state.json", asdict(state))
        write_checksums(aside)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(aside, final)
        _flush(folder.checkpoints)
    except (OSError, RuntimeError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        reason = error.__cause__ or error
        if not isinstance(reason, OSError):  # torch reports a full disk by a RuntimeError
            text = str(error).partition("\n")[0]
            reason = OSError(f"the disk refused to write (full, or failing): {text}")
        raise disk_error(final, reason) from error
    best: dict[str, Any] | None = state.results.get(BEST)
    trained, there = list_training(folder), list_complete(folder)
    between = [path for path in there if path not in trained]
    kept = {*(trained[-keep:] if keep else trained), *between[-1 if trained else -KEPT :]}
    for old in there:
        if old not in kept and (best is None or old.name != f"step_{best['step']:06d}"):
            shutil.rmtree(old, ignore_errors=True)
    return final


def write_checksums(folder: Path) -> None:
    """Flush all files of a folder to disk, then write their checksums."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    for path in paths:
        _flush(path)
    write_json(folder / SUMS, {str(path.relative_to(folder)): _hash_file(path) for path in paths})


def verify_checksums(folder: Path) -> None:
    """Raise `RunError` if a file of the folder does not match its checksum."""
    try:
        sums: dict[str, str] = json.loads((folder / SUMS).read_text(encoding="utf-8"))
        wrong = [name for name in sums if _hash_file(folder / name) != sums[name]]
        reason = f"{wrong[0]} is damaged: its checksum does not match" if wrong else ""
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
    if reason:
        fix = f"restore a copy of {str(folder)!r}, or start with another --output"
        raise RunError(f"cannot read {str(folder)!r}: {reason}; {fix}")


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def load(path: Path) -> tuple[TrainingState, dict[str, Any]]:
    """Load a checkpoint. Raises `RunError` if a file is missing or damaged."""
    verify_checksums(path)
    try:
        state = TrainingState(**json.loads((path / "state.json").read_text()))
        tensors: dict[str, Any] = torch.load(path / "tensors.pt", weights_only=True)
        if (path / _PARTS).is_dir():
            tensors |= importlib.import_module("tutelage.distributed.checkpoint").read(
                path / _PARTS
            )
    except (OSError, ValueError, TypeError, RuntimeError, EOFError, UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise RunError(f"cannot read {str(path)!r}: {reason}") from error
    return state, tensors


def load_newest(
    folder: RunFolder, log: Callable[[str], None]
) -> tuple[TrainingState, dict[str, Any]] | None:
    """Load the newest intact checkpoint of a run, or return None if there is no checkpoint.

    Newer damaged checkpoints are reported to `log` and renamed. Raises `RunError` if all
    checkpoints are damaged.
    """
    damaged: dict[Path, RunError] = {}
    for path in reversed(list_complete(folder)):
        try:
            values = load(path)
        except RunError as error:
            damaged[path] = error
            continue
        for bad, error in damaged.items():
            aside = bad.with_name(bad.name + _DAMAGED)
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(bad, aside)
            way = f"continuing from the previous checkpoint, {path.name}"
            log(f"Warning: {error}; it was renamed to {aside.name}; {way}")
        return values
    if damaged:
        raise next(iter(damaged.values()))
    return None


def list_complete(folder: RunFolder) -> list[Path]:
    """Return all complete checkpoints, oldest first."""
    if not folder.checkpoints.is_dir():
        return []
    paths = (p for p in folder.checkpoints.iterdir() if _NAME.fullmatch(p.name))
    return sorted(p for p in paths if (p / SUMS).is_file())


def list_training(folder: RunFolder) -> list[Path]:
    """Return the complete checkpoints saved during training, oldest first."""
    return [path for path in list_complete(folder) if _BETWEEN not in path.name]


def remove_intermediate(folder: RunFolder) -> None:
    """Remove all checkpoints saved between phases if a training checkpoint exists."""
    trained = list_training(folder)
    for path in list_complete(folder) if trained else ():
        if path not in trained:
            shutil.rmtree(path, ignore_errors=True)


def _flush(path: Path) -> None:
    """Flush a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
