"""The committed requests, and their sentences for a seed.

`read_requests` reads `kit.jsonl`; `fill` puts what the folder of a seed has into the placeholders,
by the rules that the rows give in words (`names.py` follows them), or says why it cannot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.orchestration.grading.names import CannotFillError, names_for
from benchmarks.orchestration.kit import FolderContents, folder_contents

from tutelage.seeds import SeedTree

FILE = Path(__file__).parents[1] / "requests" / "kit.jsonl"


@dataclass(frozen=True, slots=True)
class KitRequest:
    """A row of `kit.jsonl`."""

    id: str
    request: str
    """With placeholders such as {note}."""
    uses: Sequence[str]
    end_state: str
    answer: bool
    """Whether an answer in words is wanted."""
    steps: int
    names: Mapping[str, str]
    """What fills each placeholder, in words."""


@dataclass(frozen=True, slots=True)
class FilledRequest:
    """A request for the folder of a seed."""

    request: KitRequest
    folder: FolderContents
    names: Mapping[str, str]
    sentence: str | None
    """None where the folder of this seed has nothing that fits."""
    reason: str = ""
    """Why there is no sentence."""


def read_requests(path: Path = FILE) -> tuple[KitRequest, ...]:
    """All requests, in their order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines if line]
    return tuple(KitRequest(**row) for row in rows)


def fill(request: KitRequest, seed: int) -> FilledRequest:
    """The request with the names of the folder of a seed: the same each time."""
    return fill_from(request, folder_contents(seed))


def fill_from(request: KitRequest, folder: FolderContents) -> FilledRequest:
    """The request with names of a folder that is made already."""
    random = SeedTree(folder.seed, ("kit requests", request.id)).python()
    try:
        names = names_for(request.id, folder, random)
    except CannotFillError as error:
        return FilledRequest(request, folder, {}, None, str(error))
    if {*names} != {*request.names}:
        raise KeyError(f"{request.id} has the names {[*request.names]}, and got {[*names]}")
    return FilledRequest(request, folder, names, request.request.format(**names))
