"""Checkpoints of a planner: the document's fields, and all that planning needs.

`epoch, model_state_dict, optimizer_state_dict, val_loss` are the document's; beside them lie the
vocabulary of task types and workers, the sizes of the network, the search weights and the memory of
the retrieval prior, all as tensors and plain data, so that `torch.load(weights_only=True)` reads
the file. `model.py` has the stored parts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tutelage import files
from tutelage.errors import ModelError, RunError, TutelageError
from tutelage.orchestration.planner.confidence import Confidence
from tutelage.orchestration.planner.decode import PlanIndex, SearchSettings
from tutelage.orchestration.planner.model import PlannerModel
from tutelage.orchestration.planner.network import PlannerShape
from tutelage.orchestration.planner.targets import Vocabulary
from tutelage.orchestration.planner.text import SparseRows

PHASE1 = "phase1_best.pth"
BEST = "checkpoint_best.pth"
SHIPPED = "planner.safetensors"
FORMAT = 2
"""1 had weights for arguments, which plans of a trained planner no longer have."""
_UNREADABLE = (
    OSError, RuntimeError, EOFError, UnpicklingError, ValueError, LookupError, TypeError,
    AttributeError,
)  # fmt: skip
"""What torch raises for a file that holds no tensors."""


def checkpoint(
    model: PlannerModel, optimizer: Mapping[str, Any], epoch: int, val_loss: float
) -> dict[str, Any]:
    """The content of a checkpoint."""
    memory = model.memory
    return {
        "epoch": epoch,
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": dict(optimizer),
        "val_loss": val_loss,
        "format": FORMAT,
        "vocabulary": model.vocabulary.state(),
        "task_types": dict(enumerate(model.vocabulary.catalog.names)),
        "shape": asdict(model.shape),
        "search": asdict(model.settings),
        "confidence": model.confidence and asdict(model.confidence),
        "memory": memory and {"texts": list(memory.texts), "plans": memory.plans_MN},
    }


def write(path: Path, content: Mapping[str, Any], *, keep_previous: bool = False) -> None:
    """Write a file of tensors aside and rename it; the one before stays as `previous_NAME` with
    `keep_previous`. Raises `RunError`."""
    aside = files.temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(dict(content), aside)
        if keep_previous and path.is_file():
            os.replace(path, _previous(path))
        os.replace(aside, path)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            aside.unlink()
        raise RunError(f"cannot write {str(path)!r}: {str(error).partition(chr(10))[0]}") from error


def _previous(path: Path) -> Path:
    return path.with_name(f"previous_{path.name}")


def _check_whole(path: str | Path) -> None:
    """Raise `ModelError` if a part of a file of tensors does not have its checksum."""
    try:
        with ZipFile(path) as parts:
            damaged = parts.testzip()
    except FileNotFoundError:
        return
    except (BadZipFile, OSError) as error:
        raise ModelError(f"{str(path)!r} is no checkpoint that can be read: {error}") from error
    if damaged is not None:
        raise ModelError(
            f"{str(path)!r} is damaged: {damaged!r} in it does not have the checksum that it was "
            "written with"
        )


def save_shipped(content: Mapping[str, Any], path: Path) -> None:
    """Write what planning needs of a checkpoint as a small safetensors file: weights as bfloat16,
    numbers in 16 or 32 bits, and the index without its values, which follow from the rest."""
    plans, (starts, ids, _) = content["memory"]["plans"], content["memory"]["texts"]
    narrow = {torch.float32: torch.bfloat16, torch.int64: torch.uint16}
    tensors = {
        name: tensor if name == "idf" else tensor.to(narrow.get(tensor.dtype, tensor.dtype))
        for name, tensor in content["model_state_dict"].items()
    }
    tensors |= {
        "memory.starts": starts.int(),
        "memory.ids": ids.to(torch.uint16),
        "memory.plans": plans.short(),
    }
    plain = ("vocabulary", "shape", "search", "confidence")
    save_file(tensors, path, {"record": json.dumps({key: content[key] for key in plain})})


def load_shipped(path: Path) -> PlannerModel:
    """Read the planner that `save_shipped` wrote."""
    with safe_open(path, "pt") as file:
        found = json.loads(file.metadata()["record"])
    wide = {torch.bfloat16: torch.float32, torch.bool: torch.bool, torch.float32: torch.float32}
    tensors = {name: t.to(wide.get(t.dtype, torch.int64)) for name, t in load_file(path).items()}
    starts, ids, plans = (tensors.pop(f"memory.{name}") for name in ("starts", "ids", "plans"))
    rows, values = torch.arange(len(plans)).repeat_interleave(starts.diff()), tensors["idf"][ids]
    norms = torch.zeros(len(plans)).index_add(0, rows, values**2).sqrt().clamp(min=1e-9)
    memory = {"texts": (starts, ids, values / norms[rows]), "plans": plans}
    return _planner_of(found | {"model_state_dict": tensors, "memory": memory})


def use_previous(path: Path, note: Callable[[str], None]) -> None:
    """Put the checkpoint before in the place of one that is damaged or that a kill took away.

    Raises `RunError` if there is none.
    """
    older = _previous(path)
    try:
        _check_whole(path)
        if not path.is_file() and older.is_file():
            os.replace(older, path)
        return
    except ModelError as error:
        if not older.is_file():
            raise RunError(
                f"{error}; put a copy back, or start again with another --output"
            ) from error
        _check_whole(older)
        os.replace(older, path)
        note(f"Warning: {error}; continuing from the checkpoint before it")


def read(path: str | Path, refused: type[TutelageError] = ModelError) -> dict[str, Any]:
    """The content of a file of tensors. Raises `refused`."""
    try:
        found = torch.load(path, weights_only=True, map_location="cpu")
    except _UNREADABLE as error:
        raise refused(
            f"the checkpoint {str(path)!r} cannot be read: {str(error).partition(chr(10))[0]}; "
            "give one of tutelage train planner"
        ) from error
    if not isinstance(found, dict):
        raise refused(f"{str(path)!r} is no checkpoint: it holds a {type(found).__name__}")
    return found


def load_planner(path: str | Path) -> PlannerModel:
    """Return the planner of a checkpoint, a run folder or a folder of checkpoints, ready to plan.

    Raises `ModelError` when there is none, or one of another format.
    """
    place = _find(path)
    values = read(place)
    needed = ("model_state_dict", "vocabulary", "shape", "search")
    if missing := [key for key in needed if key not in values]:
        raise ModelError(
            f"{str(place)!r} is no planner: it lacks {missing}; train one with: tutelage train "
            "planner"
        )
    if values.get("format") != FORMAT:
        raise ModelError(
            f"{str(place)!r} is a planner of format {values.get('format')!r}, and this version "
            f"reads {FORMAT}; train it again with: tutelage train planner"
        )
    try:
        return _planner_of(values)
    except (RuntimeError, KeyError, TypeError, ValueError) as error:
        # Torch lists every missing tensor on a line of its own; all but the head say the same.
        reason = " ".join(str(error).split())[:160]
        raise ModelError(
            f"{str(place)!r} is a planner that no longer loads ({reason}); train it again with: "
            "tutelage train planner"
        ) from error


def _planner_of(found: Mapping[str, Any]) -> PlannerModel:
    state: dict[str, Any] = found["model_state_dict"]
    active = state["network.row_of"] < len(state["network.table"]) - 1
    model = PlannerModel(
        Vocabulary.from_state(found["vocabulary"]),
        state["idf"],
        active,
        PlannerShape(**found["shape"]),
    )
    model.load_state_dict(state)
    model.use_catalog(model.vocabulary.catalog)
    model.settings = SearchSettings(**found["search"])
    if found["confidence"] is not None:
        model.confidence = Confidence(**found["confidence"])
    if found["memory"] is not None:
        texts, plans = found["memory"]["texts"], found["memory"]["plans"]
        model.memory = PlanIndex(SparseRows(*texts), plans)
    return model.eval()


def _find(path: str | Path) -> Path:
    """The checkpoint that a path means. Raises `ModelError` when there is none."""
    place: Path | None = Path(path)
    if place.is_dir():
        inside = (place / PHASE1, place / "checkpoints" / PHASE1, place / BEST)
        place = next((candidate for candidate in inside if candidate.is_file()), None)
        if place is None:
            raise ModelError(f"{str(path)!r} has no {PHASE1}; train with: tutelage train planner")
    return place
