"""The store: everything a run did, in one database file that survives a kill at any moment.

It owns the tables and the road from `types.py` records to rows and back; nothing else in the
package writes SQL. The way in is `open_store`; a training loop puts its rollouts through a
`StoreWriter`. Read `schema.py` for the tables, `store.py` for what can be queried.
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
