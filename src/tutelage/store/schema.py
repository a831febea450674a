"""The tables of the store in SQLAlchemy Core, with column types that every SQL database has.

The columns of a table are the fields of its record (`columns.py`). Keys are natural: the key of a
rollout is `(run_id, id)`, because ids are derived from the seed and two runs with the same seed in
one store have the same ids; the key of an attempt is its position in the rollout, and the key of a
part its position in the attempt. So each record is one insert per table, without generated keys,
and deleting a rollout deletes all its rows. `late` is 0 for valid attempts and 1, 2, ... for
results that arrived after a terminal status, which are kept but not used. Tasks are stored once per
content and not by id, because a train and a val file may both number their tasks from 0.

The row of a rollout includes its `RolloutSummary`, so that rollouts are counted, averaged, filtered
and sorted without reading conversations.

Any change of a column changes the format: increase `FORMAT` with it. A database of another format
is rejected (`backend.py`) and not changed.
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

FORMAT = 7
"""Format of the tables below; the table `schema_version` has the format of a database."""

RUN = Columns(RunRow)
TASK = Columns(Task, omit=("place",))
ROLLOUT = Columns(Rollout, omit=("task", "attempts"))
SUMMARY = Columns(RolloutSummary)
ATTEMPT = Columns(Attempt, flat={"failure": "failure_"}, omit=("calls", "tool_results", "reward"))
CALL = Columns(Call, flat={"sampled": ""}, omit=("tools",))
TOOL_RESULT = Columns(ToolResult)
SPAN = Columns(SpanRecord)
METRICS = Columns(MetricsRow)
CHECKPOINT = Columns(CheckpointRow)
RESOURCE = Columns(ResourceRow)
EVENT = Columns(EventRow)
TRAINING_ROW = Columns(TrainingRow)

metadata = MetaData()


def _text_col(name: str, *items: SchemaItem, key: bool = False) -> Column[str]:
    return Column(name, ExactText, *items, nullable=False, primary_key=key)


def _run_table(name: str, record: Columns[Any], keys: Collection[str], *items: SchemaItem) -> Table:
    """Create a table of a run's records."""
    run = _text_col("run_id", ForeignKey("runs.id", ondelete="CASCADE"), key=True)
    return Table(name, metadata, run, *record.columns(keys), *items)


def _attempt_columns(*names: str) -> list[Column[Any]]:
    """Create the key columns of attempts and their parts: rollout, then one number per name."""
    return [
        _text_col("run_id", key=True),
        _text_col("rollout_id", key=True),
        *(Column(name, Integer, primary_key=True, autoincrement=False) for name in names),
    ]


def _part(name: str, *columns: SchemaItem) -> Table:
    """Create a table for ordered parts of attempts."""
    owner = ForeignKeyConstraint(
        ["run_id", "rollout_id", "attempt", "late"],
        [f"attempts.{key}" for key in ("run_id", "rollout_id", "position", "late")],
        ondelete="CASCADE",
    )
    return Table(name, metadata, *_attempt_columns("attempt", "late", "position"), *columns, owner)


schema_version = Table(
    "schema_version",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
)
"""One row with the format of the tables."""

runs = Table("runs", metadata, *RUN.columns(["id"]))

tasks = Table("tasks", metadata, _text_col("digest", key=True), *TASK.columns())

rollouts = Table(
    "rollouts",
    metadata,
    _text_col("run_id", ForeignKey("runs.id", ondelete="CASCADE"), key=True),
    *(column for column in ROLLOUT.columns(["id"]) if column.name != "run_id"),
    _text_col("task", ForeignKey("tasks.digest")),
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
    *_attempt_columns("position", "late"),
    _text_col("digest"),
    *ATTEMPT.columns(),
    Column("reward", Double),
    ForeignKeyConstraint(
        ["run_id", "rollout_id"], ["rollouts.run_id", "rollouts.id"], ondelete="CASCADE"
    ),
)

toolsets = Table("toolsets", metadata, _text_col("digest", key=True), _text_col("tools"))
"""Tool descriptions, stored once per content, because every call of a rollout repeats them."""

calls = _part("calls", *CALL.columns(), Column("toolset", ExactText, ForeignKey("toolsets.digest")))

tool_results = _part("tool_results", *TOOL_RESULT.columns())

rewards = _part("rewards", _text_col("name"), Column("value", Double, nullable=False))
"""Named parts of an attempt's reward; the value itself is in `attempts.reward`."""

spans = _run_table(
    "spans",
    SPAN,
    ["trace_id", "span_id"],
    Index("spans_by_rollout", "run_id", "rollout_id"),
)
"""Spans of user code and other programs, which are not in rollout records. They may be stored
before their rollout, so only the run is a foreign key."""

training_rows = _run_table(
    "training_rows",
    TRAINING_ROW,
    ["step", "policy", "position"],
    Index("training_rows_by_rollout", "run_id", "rollout_id"),
)
"""Training rows of rollouts, by step."""

metrics = _run_table("metrics", METRICS, ["step"])

checkpoints = _run_table("checkpoints", CHECKPOINT, ["step"])

resources = _run_table("resources", RESOURCE, ["name", "version"])

events = Table("events", metadata, _text_col("run_id", key=True), *EVENT.columns(["key", "number"]))
"""Ordered events under a key, such as an execution. The run id is empty for events without a
run."""
