"""Checkpoints of a planner.

Besides `epoch, model_state_dict, optimizer_state_dict, val_loss`, a checkpoint contains the
vocabulary of task types and workers, the sizes of the network, the search settings and the memory
of the retrieval prior. All values are tensors and plain data, so that
`torch.load(weights_only=True)` reads the file. `model.py` defines the stored objects.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from tutelage import files
from tutelage.errors import ModelError, RunError, TutelageError
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.plan.catalog import Catalog, parse_tools
from tutelage.orchestration.plan.dag import NoPlanError
from tutelage.orchestration.planner.confidence import Confidence
from tutelage.orchestration.planner.model import PlanIndex, PlannerModel, SearchSettings
from tutelage.orchestration.planner.targets import Vocabulary
from tutelage.orchestration.planner.text import SparseRows
from tutelage.policy.sources import artefact

PHASE1 = "phase1_best.pth"
BEST = "checkpoint_best.pth"
SHIPPED = "planner.safetensors"
FORMAT = 3
"""Version of the format. Version 2 had dropout rates and shares of requests, version 1 weights for
arguments."""


def make_checkpoint(
    model: PlannerModel, optimizer: Mapping[str, Any], epoch: int, val_loss: float
) -> dict[str, Any]:
    """Return a planner checkpoint as a dict."""
    memory = model.memory
    return {
        "epoch": epoch,
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": dict(optimizer),
        "val_loss": val_loss,
        "format": FORMAT,
        "vocabulary": {
            "task_types": [tool.to_row() for tool in model.vocabulary.catalog.tools],
            "workers": list(model.vocabulary.workers),
        },
        "width": model.width,
        "search": asdict(model.settings),
        "confidence": model.confidence and asdict(model.confidence),
        "memory": memory and {"texts": list(memory.texts), "plans": memory.plans_MN},
    }


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically. Raises `RunError` if the file cannot be written."""
    aside = files.temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(dict(content), aside)
        os.replace(aside, path)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            aside.unlink()
        raise RunError(f"cannot write {str(path)!r}: {str(error).partition(chr(10))[0]}") from error


def read(path: str | Path, error_type: type[TutelageError] = ModelError) -> dict[str, Any]:
    """Read a checkpoint file. Raises `error_type` if the file cannot be read."""
    try:
        return dict(torch.load(path, weights_only=True, map_location="cpu"))
    except Exception as error:  # torch raises various types for invalid files
        raise error_type(
            f"cannot read the checkpoint {str(path)!r}: {str(error).partition(chr(10))[0]}; use "
            "a checkpoint of: tutelage train planner"
        ) from error


def load_planner(path: str | Path) -> PlannerModel:
    """Load the planner from a checkpoint, a run folder or a folder of checkpoints, in eval mode.

    Raises `ModelError` if there is no checkpoint or its format is not supported.
    """
    place = Path(path)
    if place.is_dir():
        inside = (place / PHASE1, place / "checkpoints" / PHASE1, place / BEST)
        place = next((candidate for candidate in inside if candidate.is_file()), inside[0])
    values = read(place)
    if values.get("format") != FORMAT:
        raise ModelError(
            f"{str(place)!r} has planner format {values.get('format')!r}, but this version needs "
            f"format {FORMAT}; train a new planner with: tutelage train planner"
        )
    return _build_planner(values)


def builtin_planner(catalog: Catalog | None = None) -> PlannerModel:
    """Load the planner included in the package. Raises `NoPlanError` if the catalog is not the
    built-in catalog."""
    if catalog is not None and catalog != builtin_graph().catalog:
        raise NoPlanError(
            "the built-in planner supports only the built-in tools, and this catalog has others, "
            f"such as {catalog.names[0]!r}; train a planner with: tutelage train planner --phase 1 "
            "--catalog FILE, and pass it with --checkpoint"
        )
    return load_shipped(artefact("planner") / SHIPPED)


def load_shipped(path: Path) -> PlannerModel:
    """Load a planner from a compact safetensors file with bfloat16 weights. Raises `ModelError` if
    the file is damaged."""
    try:
        with safe_open(path, "pt") as file:
            found = json.loads(file.metadata()["record"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{str(path)!r} is damaged: {error}; reinstall tutelage") from error
    wide = {torch.bfloat16: torch.float32, torch.bool: torch.bool, torch.float32: torch.float32}
    tensors = {name: t.to(wide.get(t.dtype, torch.int64)) for name, t in load_file(path).items()}
    starts, ids, plans = (tensors.pop(f"memory.{name}") for name in ("starts", "ids", "plans"))
    rows, values = torch.arange(len(plans)).repeat_interleave(starts.diff()), tensors["idf"][ids]
    norms = torch.zeros(len(plans)).index_add(0, rows, values**2).sqrt().clamp(min=1e-9)
    memory = {"texts": (starts, ids, values / norms[rows]), "plans": plans}
    return _build_planner(found | {"model_state_dict": tensors, "memory": memory})


def _build_planner(values: Mapping[str, Any]) -> PlannerModel:
    state, known = values["model_state_dict"], values["vocabulary"]
    model = PlannerModel(
        Vocabulary(Catalog(parse_tools(known["task_types"])), tuple(known["workers"])),
        state["idf"],
        state["network.row_of"] < len(state["network.table"]) - 1,
        values["width"],
    )
    model.load_state_dict(state)
    model.use_catalog(model.vocabulary.catalog)
    model.settings = SearchSettings(**values["search"])
    if values["confidence"] is not None:
        model.confidence = Confidence(**values["confidence"])
    if values["memory"] is not None:
        texts, plans = values["memory"]["texts"], values["memory"]["plans"]
        model.memory = PlanIndex(SparseRows(*texts), plans)
    return model.eval()
