"""The tables, declared once, in SQLAlchemy Core and with types that every SQL database has.

The columns of a table are those of its record (`columns.py`), so a field that a record gains is a
column here. Keys are natural: a rollout is `(run_id, id)`, because identifiers come from the seed
tree and two runs with one seed, kept in one file, have the same ones; an attempt is its place in
the rollout, and what belongs to it is its place in the attempt. So any record is one insert per
table, with no generated key to read back, and deleting a rollout deletes all below it. `late` is 0
for the attempt that counts and 1, 2, ... for results that came after a terminal status: kept, never
used. A task is stored once per content, whatever its id: a train and a val file may both number
from 0.

A rollout's row also holds its `RolloutSummary`, so that rollouts are counted, averaged, filtered
and sorted without a look at what was said.

A change of any column is a change of the format: raise `FORMAT` with it. A database of another
format is refused (`backend.py`), never changed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import (
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
)
from sqlalchemy.schema import SchemaItem

from tutelage.store.columns import Columns
from tutelage.store.records import (
    CheckpointRow,
    EventRow,
    MetricsRow,
    ResourceRow,
    RolloutSummary,
    RunRow,
    TrainingRow,
)
from tutelage.store.values import ExactText
from tutelage.tracing.records import SpanRecord
from tutelage.types import Attempt, Call, Rollout, Task, ToolResult

FORMAT = 6
"""Of the tables below; what a file holds is in `schema_version`."""

RUN = Columns(RunRow)
TASK = Columns(Task, apart=("place",))
ROLLOUT = Columns(Rollout, apart=("task", "attempts"))
SUMMARY = Columns(RolloutSummary)
ATTEMPT = Columns(Attempt, flat={"failure": "failure_"}, apart=("calls", "tool_results", "reward"))
CALL = Columns(Call, flat={"sampled": ""}, apart=("tools",))
TOOL_RESULT = Columns(ToolResult)
SPAN = Columns(SpanRecord)
METRICS = Columns(MetricsRow)
CHECKPOINT = Columns(CheckpointRow)
RESOURCE = Columns(ResourceRow)
EVENT = Columns(EventRow)
TRAINING_ROW = Columns(TrainingRow)

metadata = MetaData()


def _text(name: str, *more: SchemaItem, key: bool = False) -> Column[str]:
    return Column(name, ExactText, *more, nullable=False, primary_key=key)


def _of_run(name: str, record: Columns[Any], keys: Collection[str], *more: SchemaItem) -> Table:
    """A table of what a run has."""
    run = _text("run_id", ForeignKey("runs.id", ondelete="CASCADE"), key=True)
    return Table(name, metadata, run, *record.columns(keys), *more)


def _place(*names: str) -> list[Column[Any]]:
    """The place of an attempt, or of a part of one: the rollout, then these numbers."""
    return [
        _text("run_id", key=True),
        _text("rollout_id", key=True),
        *(Column(name, Integer, primary_key=True, autoincrement=False) for name in names),
    ]


def _part(name: str, *columns: SchemaItem) -> Table:
    """A table of things that an attempt has in order."""
    owner = ForeignKeyConstraint(
        ["run_id", "rollout_id", "attempt", "late"],
        [f"attempts.{key}" for key in ("run_id", "rollout_id", "position", "late")],
        ondelete="CASCADE",
    )
    return Table(name, metadata, *_place("attempt", "late", "position"), *columns, owner)


schema_version = Table(
    "schema_version",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
)
"""One row: the format of the tables."""

runs = Table("runs", metadata, *RUN.columns(["id"]))

tasks = Table("tasks", metadata, _text("digest", key=True), *TASK.columns())

rollouts = Table(
    "rollouts",
    metadata,
    _text("run_id", ForeignKey("runs.id", ondelete="CASCADE"), key=True),
    *(column for column in ROLLOUT.columns(["id"]) if column.name != "run_id"),
    _text("task", ForeignKey("tasks.digest")),
    *SUMMARY.columns(),
    Index("rollouts_by_step", "run_id", "step", "label"),
    Index("rollouts_by_id", "id"),
    *(
        Index(f"rollouts_by_{name}", "run_id", name)
        for name in ("reward", "turns", "tokens", "cause", "policy_version")
    ),
)

attempts = Table(
    "attempts",
    metadata,
    *_place("position", "late"),
    _text("digest"),
    *ATTEMPT.columns(),
    Column("reward", Double),
    ForeignKeyConstraint(
        ["run_id", "rollout_id"], ["rollouts.run_id", "rollouts.id"], ondelete="CASCADE"
    ),
)

toolsets = Table("toolsets", metadata, _text("digest", key=True), _text("tools"))
"""What models were told about tools, once per content: every call of a rollout repeats it."""

calls = _part("calls", *CALL.columns(), Column("toolset", ExactText, ForeignKey("toolsets.digest")))

tool_results = _part("tool_results", *TOOL_RESULT.columns())

rewards = _part("rewards", _text("name"), Column("value", Double, nullable=False))
"""The named parts of an attempt's reward; the value itself stands in `attempts.reward`."""

spans = _of_run(
    "spans",
    SPAN,
    ["trace_id", "span_id"],
    Index("spans_by_rollout", "run_id", "rollout_id"),
)
"""Spans that the record of a rollout cannot know: those of user code and of other programs. They
may come before their rollout is stored, so only the run must be there."""

training_rows = _of_run(
    "training_rows",
    TRAINING_ROW,
    ["step", "policy", "position"],
    Index("training_rows_by_rollout", "run_id", "rollout_id"),
)
"""What training made of rollouts, step by step."""

metrics = _of_run("metrics", METRICS, ["step"])

checkpoints = _of_run("checkpoints", CHECKPOINT, ["step"])

resources = _of_run("resources", RESOURCE, ["name", "version"])

events = Table("events", metadata, _text("run_id", key=True), *EVENT.columns(["key", "number"]))
"""What happened under a key, such as an execution, in order. The run is empty in a file that holds
the events of no run."""
