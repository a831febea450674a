"""The figures of every run in the same words, whatever it trains: figures and tables.

A kind makes `Figures` of the small files of a run (`RunFiles`); `evaluate/compared.py` adds the
scores that the store has, and compares. Nothing is played and nothing raises for what is missing:
a run that was stopped says less. A `Table` is what the terminal, the pages and the docs all show,
each with one function.
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
"""How test tasks were played: at temperature 0, or at the temperature of training."""
_SAMPLE = 1 << 20
"""Bytes at both ends of a weights file by which it is known again."""


class Labels(NamedTuple):
    """Under which names a measure of the test tasks lies."""

    before: str
    """Of its rollouts in the store."""
    after: str
    means: str
    """Of its means in `result.json`: `reward_before_NAME` and so on."""


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """What a run used, its tests included; None is not known.

    `tokens` are those read and written in model calls, `dollars` what was paid for them: 0 where
    every model ran here.
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
    """What was trained by a run, and how."""

    BUILT_IN: ClassVar[str] = "built-in"
    """What an agent of Tutelage's own is called."""
    UNTRAINED: ClassVar[str] = "nothing"
    """What an evaluation trains."""

    trained: str
    """What was trained, such as `prompt`, `weights` or `orchestration`."""
    algorithm: str = ""
    base: str = ""
    """The model that was trained, or whose prompt was, in words."""
    base_mark: str | None = None
    """Equal for equal models; None where the folder does not tell."""
    tested_mark: str | None = None
    """That of the weights that were tested after a training."""
    agent: str = ""
    """The agent that played, by its file or its name; empty where that is not known."""
    agent_mark: str | None = None
    """Equal for equal code of an own agent."""
    grader: str = ""
    updates: str = ""
    """How long it trained, such as `15 steps`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(TrainedSummary):
    """One run, as far as its small files tell."""

    labels: Mapping[Measure, Labels] = field(default_factory=dict[Measure, Labels])
    """Of the tests before and after; empty where a run is scored on no tasks."""
    success: str | None = None
    """What the user says is a success; None is the grader's own word."""
    failed_reward: float | None = None
    """What a failed rollout counts as; None is the reward that it has."""
    start_won: bool = False
    """Whether what was there before is also the outcome, and was played once for both."""
    spent: ResourceUsage | None = None
    """None takes what the store has counted."""
    dollars: float | None = None
    """What was paid where the store is what counts the rest."""
    best: Path | None = None
    """Where the best prompt or policy lies."""
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The small files of a run, each as far as it can be read."""

    run: RunFolder
    config: JSON
    settings: JSON
    """The keys, without their origins."""
    result: JSON
    agent: JSON

    @classmethod
    def of(cls, run: RunFolder) -> RunFiles:
        """Those of a folder."""
        config = read_object(run.config)
        settings = dict(config.get("config") or {})
        return cls(run, config, settings, read_object(run.result), read_object(run.agent))

    def section(self, name: str) -> Mapping[str, Any]:
        """A section of the keys; empty where it is none."""
        found: object = self.settings.get(name)
        return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}

    def agent_mark(self) -> str | None:
        """What the code of an own agent was when the run began."""
        sources: object = read_object(self.run.path / "fingerprint.json").get("sources")
        marks = cast("Mapping[str, str]", sources) if isinstance(sources, Mapping) else {}
        return next((mark for name, mark in marks.items() if name.startswith("the agent ")), None)

    def number(self, name: str) -> float | None:
        """A number of the result."""
        return finite(self.result.get(name))

    def count(self, name: str) -> int | None:
        """A whole number of the result."""
        value = self.number(name)
        return None if value is None else int(value)

    def metrics(self) -> list[JSON]:
        """The lines of metrics; none where they cannot be read."""
        with suppress(OSError, ValueError):
            return self.run.read_metrics()
        return []


def read_object(path: Path, remarks: list[str] | None = None) -> JSON:
    """The JSON object of a file; empty if there is none, with a remark on what is damaged."""
    if not path.is_file():
        return {}
    lines: list[str] = [] if remarks is None else remarks
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        lines.append(f"{path.name} cannot be read: {error}")
        return {}
    if not isinstance(found, dict):
        lines.append(f"{path.name} holds no JSON object")
        return {}
    return cast("JSON", found)


def finite(value: Any) -> float | None:
    """A value of JSON that is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def folder_hash(folder: Path) -> str | None:
    """A mark of the weights in a folder, by sizes and both ends of each file; None without any."""
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
    """One row of a table: its cells as text, and of each its tone, `good`, `bad`, `dim` or none."""

    cells: Sequence[str]
    tones: Sequence[str] = ()
    strong: bool = False
    first: bool = False
    """Whether it begins a group of rows."""

    def tone(self, index: int) -> str:
        """The tone of a cell."""
        return self.tones[index] if self.tones else ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table in words."""

    columns: Sequence[str]
    rows: Sequence[TableRow]
    right: Collection[int] = ()
    """Columns that are set to the right."""
    title: str = ""
    lead: str = ""
