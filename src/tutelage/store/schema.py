"""The tables, declared once, in SQLAlchemy Core and with types that every SQL database has.

Keys are natural: a rollout is `(run_id, id)`, because identifiers come from the seed tree and two
runs with one seed, kept in one file, have the same ones; an attempt is its place in the rollout,
and what belongs to it is its place in the attempt. So any record is one insert per table, with no
generated key to read back, and deleting a rollout deletes all below it. `late` is 0 for the
attempt that counts and 1, 2, ... for results that came after a terminal status: kept, never used.
A task is stored once per content, whatever its id: a train and a val file may both number from 0.

A change here is a change of the file format: add a migration (`migrations.py`) with it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
)

from tutelage.store.values import ExactText

metadata = MetaData()


def _run() -> Column[Any]:
    reference = ForeignKey("runs.id", ondelete="CASCADE")
    return Column("run_id", ExactText, reference, primary_key=True)


def _text(name: str) -> Column[str]:
    return Column(name, ExactText, nullable=False)


def _clock(name: str) -> Column[float]:
    """A time that files of the first format do not have; 0 is unknown."""
    return Column(name, Double, nullable=False, server_default="0")


def _below(parent: str, *keys: str) -> ForeignKeyConstraint:
    names = {"rollouts": ("run_id", "id"), "attempts": ("run_id", "rollout_id", "position", "late")}
    return ForeignKeyConstraint(keys, [f"{parent}.{n}" for n in names[parent]], ondelete="CASCADE")


def _part(name: str, *columns: Column[Any]) -> Table:
    """A table of things that an attempt has in order."""
    keys = (
        Column("run_id", ExactText, primary_key=True),
        Column("rollout_id", ExactText, primary_key=True),
        Column("attempt", Integer, primary_key=True),
        Column("late", Integer, primary_key=True),
        Column("position", Integer, primary_key=True),
    )
    owner = _below("attempts", "run_id", "rollout_id", "attempt", "late")
    return Table(name, metadata, *keys, *columns, owner)


schema_version = Table(
    "schema_version",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    _text("name"),
)
"""One row per format this file has had; the largest is the present one."""

runs = Table(
    "runs",
    metadata,
    Column("id", ExactText, primary_key=True),
    _text("name"),
    _text("recipe"),
    _text("algorithm"),
    _text("config"),
    Column("seed", BigInteger, nullable=False),
    _text("folder"),
    _text("status"),
    Column("result", ExactText),
    Column("created", Double, nullable=False),
    Column("updated", Double, nullable=False),
)

tasks = Table(
    "tasks",
    metadata,
    Column("digest", ExactText, primary_key=True),
    _text("id"),
    _text("fields"),
)

rollouts = Table(
    "rollouts",
    metadata,
    _run(),
    Column("id", ExactText, primary_key=True),
    Column("task", ExactText, ForeignKey("tasks.digest"), nullable=False),
    _text("mode"),
    Column("step", BigInteger, nullable=False),
    _text("label"),
    _text("group_id"),
    Column("group_index", BigInteger, nullable=False),
    _text("status"),
    Index("rollouts_by_step", "run_id", "step", "label"),
    Index("rollouts_by_id", "id"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("run_id", ExactText, primary_key=True),
    Column("rollout_id", ExactText, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("late", Integer, primary_key=True),
    _text("id"),
    Column("attempt_index", BigInteger, nullable=False),
    _text("status"),
    _text("digest"),
    Column("answer", ExactText),
    Column("reward", Double),
    Column("failure_cause", ExactText),
    Column("failure_message", ExactText),
    Column("failure_traceback", ExactText),
    Column("stop", ExactText),
    Column("seconds", Double, nullable=False),
    _clock("started"),
    _below("rollouts", "run_id", "rollout_id"),
)

toolsets = Table(
    "toolsets",
    metadata,
    Column("digest", ExactText, primary_key=True),
    _text("tools"),
)
"""What models were told about tools, once per content: every call of a rollout repeats it."""

calls = _part(
    "calls",
    _text("id"),
    _text("agent"),
    Column("call_index", BigInteger, nullable=False),
    _text("messages"),
    _text("reply"),
    _text("sampling"),
    _text("parse_errors"),
    Column("prompt_ids", LargeBinary, nullable=False),
    Column("token_ids", LargeBinary, nullable=False),
    Column("logprobs", LargeBinary, nullable=False),
    Column("raw_logprobs", LargeBinary, nullable=False),
    _text("stop_reason"),
    Column("policy_version", BigInteger, nullable=False),
    Column("toolset", ExactText, ForeignKey("toolsets.digest")),
    Column("limits", ExactText),
    Column("policy", ExactText, server_default="main"),
    Column("allowed", LargeBinary),
    _clock("started"),
    _clock("seconds"),
)
"""`limits` is the constraint of the reply, as JSON with its keys in order."""

tool_results = _part(
    "tool_results",
    _text("call_id"),
    _text("name"),
    _text("arguments"),
    _text("text"),
    Column("error", ExactText),
    Column("seconds", Double, nullable=False),
    _clock("started"),
)

rewards = _part(
    "rewards",
    _text("name"),
    Column("value", Double, nullable=False),
)
"""The named parts of an attempt's reward; the value itself stands in `attempts.reward`."""

spans = Table(
    "spans",
    metadata,
    _run(),
    Column("trace_id", ExactText, primary_key=True),
    Column("span_id", ExactText, primary_key=True),
    _text("rollout_id"),
    Column("attempt_id", ExactText),
    Column("parent_id", ExactText),
    _text("name"),
    _text("kind"),
    Column("start_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger, nullable=False),
    _text("attributes"),
    _text("events"),
    _text("status"),
    _text("status_message"),
    _text("resource"),
    _text("scope"),
    Index("spans_by_rollout", "run_id", "rollout_id"),
)
"""Spans that the record of a rollout cannot know: those of user code and of other programs. They
may come before their rollout is stored, so only the run must be there."""

metrics = Table(
    "metrics",
    metadata,
    _run(),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    _text("data"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _run(),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    _text("path"),
)

resources = Table(
    "resources",
    metadata,
    _run(),
    Column("name", ExactText, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("step", BigInteger, nullable=False),
    _text("kind"),
    _text("data"),
)
