"""Content of a run folder for its report, as far as it can be read.

A killed run needs a report too, so nothing here raises because of the folder's content: an
unreadable part is empty and leaves a remark. `view.py` formats the content.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tutelage.bounded import json_lines
from tutelage.errors import TutelageError
from tutelage.runs.figures import read_object, to_finite
from tutelage.runs.folder import RunFolder
from tutelage.runs.report.formatting import count_noun, cut
from tutelage.runs.report.transcripts import CAUSES, Transcript, read_transcript
from tutelage.runs.stored import open_run
from tutelage.runs.stored_evaluation import StoredEvaluation, is_graded, parse_evaluation
from tutelage.statistics.outcome import UNSEEN, RewardKind, Success, summarise
from tutelage.types import JSON, Mode, Rollout

if TYPE_CHECKING:
    from tutelage.config import Resolved, RunConfig
    from tutelage.store import Store

_LABELS = (
    "before/sampled",
    "before/greedy",
    "after/sampled",
    "after/greedy",
    "after/no_tools",
    "control/sampled",
    "control/greedy",
)
"""Labels of the rollouts of each evaluation."""

Points = tuple[tuple[float, float], ...]
"""Curve as (step, value) pairs in order."""


@dataclass(slots=True)
class ReportSource:
    """Data of a report, read from a run folder."""

    path: Path
    result: JSON = field(default_factory=dict[str, Any])
    conditions: JSON = field(default_factory=dict[str, Any])
    config: Resolved | None = None
    metrics: Sequence[JSON] = ()
    evaluations: dict[str, Sequence[Transcript]] = field(
        default_factory=dict[str, Sequence[Transcript]]
    )
    families: dict[str, Mapping[str, StoredEvaluation]] = field(
        default_factory=dict[str, Mapping[str, StoredEvaluation]]
    )
    """Evaluations by name, then by family of tasks."""
    kind: RewardKind = UNSEEN
    """Kind of the run's rewards."""
    trained_rollouts: int | None = None
    failed: Sequence[tuple[int, str, str]] = ()
    """Number, cause and first message of failed training rollouts."""
    remarks: list[str] = field(default_factory=list[str])

    @property
    def settings(self) -> RunConfig | None:
        """Configuration of the run, or None if it cannot be read."""
        return None if self.config is None else self.config.config

    def number(self, key: str) -> float | None:
        """Return a finite number from the result, or None if it is missing."""
        return to_finite(self.result.get(key))

    def text(self, key: str) -> str | None:
        """Return a shortened text from the result, or None if it is missing or empty."""
        value = self.result.get(key)
        return cut(value, 120) if isinstance(value, str) and value else None

    def phase(self, name: str) -> list[JSON]:
        """Return the metrics of a phase, such as `cold_start`, `rl` or `control`."""
        return [line for line in self.metrics if line.get("phase") == name]

    def curve(self, phase: str, metric: str) -> Points:
        """Return the steps and values of a metric in a phase, if the values are finite."""
        pairs = ((to_finite(x.get("step")), to_finite(x.get(metric))) for x in self.phase(phase))
        return tuple((step, y) for step, y in pairs if step is not None and y is not None)

    def metric_names(self, phase: str) -> list[str]:
        """Return the sorted names of all metrics of a phase."""
        return sorted({name for line in self.phase(phase) for name in line})


def read_source(folder: RunFolder) -> ReportSource:
    """Read the data of a report from a run folder, with a remark for each unreadable file."""
    source = ReportSource(folder.path)
    if not folder.result.is_file():
        source.remarks.append("The run has not ended: there is no result.json yet.")
    source.result = read_object(folder.result, source.remarks)
    source.config = _read_config(folder.config, source.remarks)
    rule = None if source.settings is None else Success.parse(source.settings.reward.success)
    known = None
    if "graded" in source.result:
        graded = is_graded(source.result)
        rates = (value for key, value in source.result.items() if key.startswith("success_"))
        known = RewardKind(graded, not graded or any(isinstance(rate, float) for rate in rates))
    _read_store(folder, source, rule, known)
    source.conditions = read_object(folder.conditions, source.remarks)
    source.metrics = list(_read_lines(folder.metrics, source.remarks))
    return source


def _read_config(path: Path, errors: list[str]) -> Resolved | None:
    from tutelage.config import Resolved

    if not path.is_file():
        errors.append("There is no config.json.")
        return None
    try:
        return Resolved.from_json(path.read_text(encoding="utf-8"))
    except (TutelageError, ValueError, OSError, RecursionError) as error:
        errors.append(f"{path.name} cannot be read: {cut(str(error), 300)}")
        return None


def _read_lines(path: Path, errors: list[str]) -> Iterator[JSON]:
    if not path.is_file():
        errors.append("There is no metrics.jsonl.")
        return
    broken = 0
    whole = path.read_bytes().rpartition(b"\n")[0]  # a line cut off by a kill is no damage
    for _, line in json_lines(whole):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            yield cast("JSON", value)
        else:
            broken += 1
    if broken:
        errors.append(f"Left out: {count_noun(broken, 'broken line')} of metrics.jsonl.")


def _read_store(
    folder: RunFolder, source: ReportSource, rule: Success | None, kind: RewardKind | None
) -> None:
    from sqlalchemy.exc import SQLAlchemyError

    source.kind = kind or UNSEEN
    if folder.store_address() is None:
        source.remarks.append("There is no store.db, so no rollouts can be shown.")
        return
    try:
        with open_run(folder) as (store, run_id):
            _read_evaluations(store, run_id, source, rule, kind)
            source.trained_rollouts = store.count(run_id, mode=Mode.TRAIN, label="")
            causes: Counter[str] = Counter()
            examples: dict[str, str] = {}
            for failed in store.failures(run_id, mode=Mode.TRAIN, label=""):
                cause = "cancelled" if failed.cause is None else CAUSES[failed.cause]
                causes[cause] += failed.number
                examples.setdefault(cause, cut(failed.example, 300))
            ordered = sorted(causes, key=lambda cause: (-causes[cause], cause))
            source.failed = [(causes[cause], cause, examples[cause]) for cause in ordered]
    except (TutelageError, SQLAlchemyError, ValueError, KeyError, TypeError) as error:
        source.remarks.append(f"{folder.store.name} cannot be read: {cut(str(error), 300)}")


def _read_evaluations(
    store: Store, run_id: str, source: ReportSource, rule: Success | None, kind: RewardKind | None
) -> None:
    """Read transcripts and the rates by task family. Determine the kind of rewards if it is
    unknown."""
    if kind is None:
        kind = RewardKind()
        for label in _LABELS:
            kind = kind.update((r for r in store.rollouts(run_id, label=label) if r.attempts), rule)
    source.kind = kind
    for label in _LABELS:
        episodes: list[Transcript] = []
        bare: list[Rollout] = []
        for rollout in store.rollouts(run_id, label=label):
            if rollout.attempts:
                episodes.append(read_transcript(rollout, rule, kind))
                bare.append(replace(rollout, attempts=(replace(rollout.last, calls=()),)))
        if episodes:
            source.evaluations[label] = episodes
            by_family = summarise(bare, rule, kind).by_family
            source.families[label] = {n: parse_evaluation(e.record()) for n, e in by_family.items()}
