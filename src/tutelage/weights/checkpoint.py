"""Checkpoints: all that the rest of a run depends on, written aside and renamed.

A checkpoint is a folder named by training steps, `step_000040/`: the policy as an ordinary Hugging
Face folder, `tensors.pt` with the bits of weights and optimizer, the counters as JSON, and
`checksums.json`, written last, which `load` compares with every file. It is saved in the middle of
training, so training goes on from any of them, also after the run has finished. Between phases
there are `step_000040_tick_000045/`, named by the run's clock too; they go when the run has
finished. Random generators need no place in it: every draw is addressed by the seed tree.

A kill while one is written leaves the one before it, and a folder without its last file is ignored.
The format of the tensors is torch's, read with `weights_only=True`.
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
"""Checkpoints of training that stay beside the best one, unless the run asks for another number."""
SUMS = "checksums.json"
BEST = "best"
"""Where the results have the step that did best in validation, and how well."""
DROPPED = "dropped_groups"
"""Where the results have how many groups asynchronous training has dropped."""
COLD, RL, CONTROL, SFT = "cold_start", "rl", "control", "sft"
TRAINED: Mapping[str, str] = {RL: "rl_steps", SFT: "sft_steps"}
"""Phases from whose checkpoints training can go on, and what the results call their steps."""
_NAME = re.compile(r"step_\d{6,}(_tick_\d{6,})?")
_BETWEEN = "_tick_"
_PARTS = "parts"
"""A folder in torch's distributed format, with the state of what is shared out over ranks."""
_DAMAGED = ".damaged"


@dataclass(slots=True)
class TrainingState:
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
    max_dlogp: float | None = None
    """None until rows have been compared."""
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    """What ended phases found."""
    phase_data: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the phase in progress remembers."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Wall-clock seconds by phase."""


def place(folder: RunFolder, state: TrainingState) -> Path:
    """Where the checkpoint of a state lies."""
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
    write_parts: Callable[[Path], None] | None = None,
) -> Path:
    """Write a checkpoint, whose folder `write_policy` makes with the policy in it, and remove older
    ones: the last `keep` of training stay (None for all), and the best. `write_parts` writes what
    is shared out over ranks.

    Raises `RunError` when the disk is full; older ones stay then.
    """
    final = place(folder, state)
    aside = final.with_name(f".{final.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        if write_policy is None:
            aside.mkdir(parents=True)
        else:
            write_policy(aside)
        torch.save(dict(tensors), aside / "tensors.pt")
        if write_parts is not None:
            write_parts(aside / _PARTS)
        write_json(aside / "state.json", asdict(state))
        seal(aside)
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
    trained, there = of_training(folder), complete(folder)
    between = [path for path in there if path not in trained]
    kept = {*(trained[-keep:] if keep else trained), *between[-1 if trained else -KEPT :]}
    for old in there:
        if old not in kept and (best is None or old.name != f"step_{best['step']:06d}"):
            shutil.rmtree(old, ignore_errors=True)
    return final


def seal(folder: Path) -> None:
    """Flush the files of a folder to the disk, and keep a checksum of each in a last one."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    for path in paths:
        _flush(path)
    write_json(folder / SUMS, {str(path.relative_to(folder)): _sum(path) for path in paths})


def check_seal(folder: Path) -> None:
    """Raise `RunError` where a file of a complete folder is not as it was written."""
    try:
        sums: dict[str, str] = json.loads((folder / SUMS).read_text(encoding="utf-8"))
        wrong = [name for name in sums if _sum(folder / name) != sums[name]]
        reason = f"{wrong[0]} is damaged: its checksum does not match" if wrong else ""
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
    if reason:
        way = f"restore a copy of {str(folder)!r}, or start with another --output"
        raise RunError(f"cannot read {str(folder)!r}: {reason}; {way}")


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def load(path: Path) -> tuple[TrainingState, dict[str, Any]]:
    """Read a checkpoint whose files have their checksums. Raises `RunError` for any other."""
    check_seal(path)
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
    folder: RunFolder, note: Callable[[str], None]
) -> tuple[TrainingState, dict[str, Any]] | None:
    """Read the newest checkpoint of a run that is as it was written, None if there is none yet.

    Newer ones that are damaged are said to `note` and set aside. Raises `RunError` where no
    checkpoint is left.
    """
    damaged: dict[Path, RunError] = {}
    for path in reversed(complete(folder)):
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
            note(f"Warning: {error}; it was renamed to {aside.name}; {way}")
        return values
    if damaged:
        raise next(iter(damaged.values()))
    return None


def complete(folder: RunFolder) -> list[Path]:
    """All complete checkpoints, oldest first."""
    if not folder.checkpoints.is_dir():
        return []
    paths = (p for p in folder.checkpoints.iterdir() if _NAME.fullmatch(p.name))
    return sorted(p for p in paths if (p / SUMS).is_file())


def of_training(folder: RunFolder) -> list[Path]:
    """The complete checkpoints that were saved in the middle of training, oldest first."""
    return [path for path in complete(folder) if _BETWEEN not in path.name]


def drop_between(folder: RunFolder) -> None:
    """Remove the checkpoints that were saved after training, where training can go on from one."""
    trained = of_training(folder)
    for path in complete(folder) if trained else ():
        if path not in trained:
            shutil.rmtree(path, ignore_errors=True)


def _flush(path: Path) -> None:
    """Have the operating system write a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
