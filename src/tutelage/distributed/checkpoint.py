"""The sharded part of a checkpoint, in torch's distributed format, written by all ranks together.

It is next to `state.json` and is read whole by rank 0, which sends every rank its part, so a run
can be resumed on any number of ranks, or on one process. A run on one process writes only
`tensors.pt`. `weights/checkpoint.py` calls this.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_saver import save


def write(folder: str, state: dict[str, Any]) -> None:
    """Write this rank's shards of a state to a folder. Must be called on all ranks."""
    save(state, checkpoint_id=folder)


def read(folder: Path) -> dict[str, Any]:
    """Read a sharded state from a folder and return the full state."""
    with tempfile.TemporaryDirectory(prefix="tutelage-parts-") as temporary:
        file = Path(temporary) / "whole.pt"
        dcp_to_torch_save(str(folder), str(file))
        return cast("dict[str, Any]", _restore_integer_keys(torch.load(file, weights_only=True)))


def _restore_integer_keys(values: object) -> object:
    """Convert numeric keys back to integers; the format stores optimizer keys as strings."""
    if isinstance(values, dict):
        items = cast("dict[str, object]", values).items()
        return {int(k) if k.isdecimal() else k: _restore_integer_keys(v) for k, v in items}
    if isinstance(values, list):
        return [_restore_integer_keys(value) for value in cast("list[object]", values)]
    return values
