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
    _below("rollouts", "run_id", "rollout_id"),
)

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
)

tool_results = _part(
    "tool_results",
    _text("call_id"),
    _text("name"),
    _text("arguments"),
    _text("text"),
    Column("error", ExactText),
    Column("seconds", Double, nullable=False),
)

rewards = _part(
    "rewards",
    _text("name"),
    Column("value", Double, nullable=False),
)
"""The named parts of an attempt's reward; the value itself stands in `attempts.reward`."""

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
