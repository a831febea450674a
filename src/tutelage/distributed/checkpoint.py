"""What is sharded, in a checkpoint: torch's distributed format, written by all ranks at once.

It is next to `state.json` and is read whole by the first rank, which gives every rank what it
needs: so a run is resumed by any number of ranks, or by one process. One process writes
`tensors.pt` alone. `weights/checkpoint.py` calls this.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_saver import save


def write(place: str, values: dict[str, Any]) -> None:
    """Write what the ranks hold, each its part."""
    save(values, checkpoint_id=place)


def read(place: Path) -> dict[str, Any]:
    """The whole of it, in this process."""
    with tempfile.TemporaryDirectory(prefix="tutelage-parts-") as folder:
        file = Path(folder) / "whole.pt"
        dcp_to_torch_save(str(place), str(file))
        return cast("dict[str, Any]", _numbered(torch.load(file, weights_only=True)))


def _numbered(values: object) -> object:
    """The same with numbers as keys, as optimizers have them: the format makes them texts."""
    if isinstance(values, dict):
        items = cast("dict[str, object]", values).items()
        return {int(k) if k.isdecimal() else k: _numbered(v) for k, v in items}
    if isinstance(values, list):
        return [_numbered(value) for value in cast("list[object]", values)]
    return values
