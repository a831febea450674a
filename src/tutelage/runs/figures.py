"""Figures of a run of any kind, and tables of them.

A kind makes `Figures` from the small files of a run (`RunFiles`); `evaluate/compared.py` adds the
scores of the store, and compares. Nothing is played, and missing files raise nothing: a stopped run
has fewer figures. The terminal, the pages and the docs show a `Table`, each with one function.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, cast

from tutelage.runs.folder import RunFolder
from tutelage.types import JSON

Measure = Literal["greedy", "sampled"]
MEASURES: tuple[Measure, ...] = ("greedy", "sampled")
"""How test tasks are sampled: at temperature 0, or at the training temperature."""
_SAMPLE = 1 << 20
"""Bytes at each end of a weights file that are hashed."""


class Labels(NamedTuple):
    """Labels of the evaluations before and after training in stored results."""

    before: str
    """Label of its rollouts in the store before training."""
    after: str
    means: str
    """Name of its means in `result.json`, as in `reward_before_NAME`."""


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Resources used by a run, including its tests. Unknown values are None.

    `tokens` are prompt and completion tokens of model calls, `dollars` their price: 0 if every
    model ran locally.
    """

    rollouts: int | None = None
    test_rollouts: int | None = None
    calls: int | None = None
    optimiser_calls: int | None = None
    tokens: int | None = None
    dollars: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedSummary:
    """Description of the trained object and of the training method."""

    BUILT_IN: ClassVar[str] = "built-in"
    """Name of built-in agents."""
    UNTRAINED: ClassVar[str] = "nothing"
    """Value of `trained` for an evaluation."""

    trained: str
    """Trained object, such as `prompt`, `weights` or `orchestration`."""
    algorithm: str = ""
    base: str = ""
    """Name of the model that was trained, or whose prompt was."""
    base_mark: str | None = None
    """Identifier that is equal for equal models; None if unknown."""
    tested_mark: str | None = None
    """Identifier of the weights that were tested after training."""
    agent: str = ""
    """File or name of the agent; empty if unknown."""
    agent_mark: str | None = None
    """Hash of the code of a custom agent."""
    grader: str = ""
    updates: str = ""
    """Length of the training, such as `15 steps`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(TrainedSummary):
    """Summary of a run, computed from its metadata files."""

    labels: Mapping[Measure, Labels] = field(default_factory=dict[Measure, Labels])
    """Labels of the tests before and after training; empty for a run without test scores."""
    success: str | None = None
    """The user's definition of success; None uses the grader's own."""
    failed_reward: float | None = None
    """Reward of a failed rollout; None keeps the reward that it has."""
    start_won: bool = False
    """True if the initial state is also the outcome and was tested once for both."""
    spent: ResourceUsage | None = None
    """Resources used; None takes the counts of the store."""
    dollars: float | None = None
    """Cost in US dollars, if the store has the other counts."""
    best: Path | None = None
    """Path of the best prompt or policy."""
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Parsed metadata files of a run. Unreadable files are empty."""

    run: RunFolder
    config: JSON
    settings: JSON
    """The keys, without their origins."""
    result: JSON
    agent: JSON

    @classmethod
    def read(cls, run: RunFolder) -> RunFiles:
        """Read the metadata files of a run folder."""
        config = read_object(run.config)
        settings = dict(config.get("config") or {})
        return cls(run, config, settings, read_object(run.result), read_object(run.agent))

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a section of the configuration, or an empty mapping if it is missing."""
        found: object = self.settings.get(name)
        return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}

    def agent_hash(self) -> str | None:
        """Return the hash of a custom agent's code at the start of the run."""
        sources: object = read_object(self.run.path / "fingerprint.json").get("sources")
        marks = cast("Mapping[str, str]", sources) if isinstance(sources, Mapping) else {}
        return next((mark for name, mark in marks.items() if name.startswith("the agent ")), None)

    def number(self, name: str) -> float | None:
        """Return a number from the result, or None if it is missing."""
        return to_finite(self.result.get(name))

    def count(self, name: str) -> int | None:
        """Return an integer from the result, or None if it is missing."""
        value = self.number(name)
        return None if value is None else int(value)

    def metrics(self) -> list[JSON]:
        """Return the logged metrics, or an empty list if they cannot be read."""
        with suppress(OSError, ValueError):
            return self.run.read_metrics()
        return []


def read_object(path: Path, errors: list[str] | None = None) -> JSON:
    """Read a JSON object from a file. Returns an empty dict if the file is missing or invalid, and
    appends a message to `errors` if it is invalid."""
    if not path.is_file():
        return {}
    lines: list[str] = [] if errors is None else errors
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        lines.append(f"{path.name} cannot be read: {error}")
        return {}
    if not isinstance(found, dict):
        lines.append(f"{path.name} does not contain a JSON object")
        return {}
    return cast("JSON", found)


def to_finite(value: Any) -> float | None:
    """Convert a JSON value to a float, or return None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def folder_hash(folder: Path) -> str | None:
    """Hash the weights in a folder by the sizes and both ends of the files. Returns None if there
    are no weights."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    digest = hashlib.blake2b(digest_size=16)
    try:
        for path in files:
            size = path.stat().st_size
            with path.open("rb") as file:
                digest.update(f"{path.name} {size}".encode() + file.read(_SAMPLE))
                file.seek(max(0, size - _SAMPLE))
                digest.update(file.read(_SAMPLE))
    except OSError:
        return None
    return f"weights:{digest.hexdigest()}"


# ---------------------------------------------------------------- tables


@dataclass(frozen=True, slots=True)
class TableRow:
    """Table row with the text and the tone (`good`, `bad`, `dim` or empty) of each cell."""

    cells: Sequence[str]
    tones: Sequence[str] = ()
    strong: bool = False
    first: bool = False
    """True if the row begins a group of rows."""

    def tone(self, index: int) -> str:
        """Return the tone of a cell."""
        return self.tones[index] if self.tones else ""


@dataclass(frozen=True, slots=True)
class Table:
    """Table with text cells."""

    columns: Sequence[str]
    rows: Sequence[TableRow]
    right: Collection[int] = ()
    """Columns that are right-aligned."""
    title: str = ""
    lead: str = ""
