"""The store: all records of a run in one database, which survives a kill at any moment.

It owns the tables and converts the records of `types.py` to rows and back; no other package writes
SQL. `open_store` opens a store; a training loop writes its rollouts with a `StoreWriter`. See
`schema.py` for the tables, `queries.py` for the queries and `store.py` for the writes.
"""

from __future__ import annotations

from tutelage.store.export import FORMATS, export_rows, rollout_record
from tutelage.store.records import (
    CheckpointRow,
    FailureCount,
    Grade,
    MetricsRow,
    ResourceRow,
    RolloutSummary,
    RunRow,
    Totals,
    TrainingRow,
)
from tutelage.store.store import Store, open_store
from tutelage.store.values import dump_json
from tutelage.store.writer import Listener, StoreWriter

__all__ = [
    "FORMATS",
    "CheckpointRow",
    "FailureCount",
    "Grade",
    "Listener",
    "MetricsRow",
    "ResourceRow",
    "RolloutSummary",
    "RunRow",
    "Store",
    "StoreWriter",
    "Totals",
    "TrainingRow",
    "dump_json",
    "export_rows",
    "open_store",
    "rollout_record",
]
