"""The agent's database: Agno's JsonDb, whose files a thousand rollouts would make slow.

JsonDb reads and writes a whole file for each run of an agent. `TrainingDb` keeps its tables in
memory and writes them when it is told to, so that eight rollouts at once neither wait nor overwrite
each other; the files are the same:

    agno_sessions.json   a session for each rollout
    agno_runs.json       what the agent said, called and was answered
    agno_traces.json     one line for each rollout's trace
    agno_spans.json      the spans of the traces
    agno_eval_runs.json  the reward of each rollout, with its parts

Sessions and runs are written by Agno. Its own tracing needs a further package
(openinference-instrumentation-agno), so traces and spans are those that Tutelage records.
"""

from __future__ import annotations

import threading
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agno.db.json import JsonDb
from agno.db.schemas.evals import EvalRunRecord, EvalType
from agno.tracing.schemas import Span, Trace

from tutelage import Callback
from tutelage.tracing import SpanRecord
from tutelage.tracing.rollout import rollout_spans
from tutelage.types import Rollout

TABLES = ("agno_sessions", "agno_runs", "agno_traces", "agno_spans", "agno_eval_runs")


class TrainingDb(JsonDb):
    """A JsonDb that writes its files in `save`."""

    def __init__(self, place: Path) -> None:
        super().__init__(db_path=str(place))
        self.place = place
        self._tables: dict[str, list[dict[str, Any]]] = {}
        self._lock = threading.RLock()

    def _read_json_file(
        self, filename: str, create_table_if_not_found: bool | None = True
    ) -> list[dict[str, Any]]:
        with self._lock:
            if filename not in self._tables:
                self._tables[filename] = super()._read_json_file(
                    filename, create_table_if_not_found
                )
            return self._tables[filename]

    def _write_json_file(self, filename: str, data: list[dict[str, Any]]) -> None:
        with self._lock:
            self._tables[filename] = data

    def save(self) -> None:
        """Write all files; each is written aside and renamed."""
        with self._lock:
            for name in TABLES:
                self._read_json_file(name)
            for name, rows in self._tables.items():
                super()._write_json_file(name, rows)


class KeepRollouts(Callback):
    """Puts the reward of each rollout into the database, and the traces of the first ones."""

    def __init__(self, database: TrainingDb, most: int) -> None:
        self.database, self.left = database, most

    def on_rollout_end(self, rollout: Rollout) -> None:
        """One reward a rollout, one trace an attempt."""
        self.database.create_eval_run(_reward(rollout))
        if self.left <= 0:
            return
        self.left -= 1
        by_trace: dict[str, list[SpanRecord]] = {}
        for record in rollout_spans(rollout, content=True):
            by_trace.setdefault(record.trace_id, []).append(record)
        for records in by_trace.values():
            self.database.upsert_trace(_trace(rollout, records))
            self.database.create_spans([_span(record) for record in records])


def _reward(rollout: Rollout) -> EvalRunRecord:
    """The reward as Agno keeps evaluations; None where infrastructure lost the rollout."""
    last, reward = rollout.last, rollout.reward
    said: dict[str, Any] = {
        "reward": None if reward is None else reward.value,
        "parts": {} if reward is None else dict(reward.parts),
        "expected": rollout.task.fields.get("expected_answer"),
        "answer": last.answer,
        "failure": None if last.failure is None else last.failure.cause.value,
        "mode": rollout.mode.value,
        "label": rollout.label,
        "step": rollout.step,
        "session_id": last.id,
    }
    return EvalRunRecord(
        run_id=rollout.id,
        eval_type=EvalType.ACCURACY,
        name="reward",
        evaluated_component_name="solve",
        eval_input={"question": rollout.task.fields.get("question")},
        eval_data=said,
    )


def _trace(rollout: Rollout, records: list[SpanRecord]) -> Trace:
    root = records[0]
    return Trace(
        trace_id=root.trace_id,
        name=root.name,
        status=root.status.upper(),
        start_time=_time(root.start_ns),
        end_time=_time(root.end_ns),
        duration_ms=(root.end_ns - root.start_ns) // 1_000_000,
        total_spans=len(records),
        error_count=sum(record.status == "error" for record in records),
        run_id=rollout.id,
        session_id=rollout.last.id,
        user_id=None,
        agent_id=None,
        team_id=None,
        workflow_id=None,
        created_at=_time(root.start_ns),
    )


def _span(record: SpanRecord) -> Span:
    return Span(
        span_id=record.span_id,
        trace_id=record.trace_id,
        parent_span_id=record.parent_id,
        name=record.name,
        span_kind=record.kind.upper(),
        status_code=record.status.upper(),
        status_message=record.status_message or None,
        start_time=_time(record.start_ns),
        end_time=_time(record.end_ns),
        duration_ms=(record.end_ns - record.start_ns) // 1_000_000,
        # Agno's spans have no events; the reward is one of the root's.
        attributes={**record.attributes, "events": [asdict(event) for event in record.events]},
        created_at=_time(record.start_ns),
    )


def _time(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(nanoseconds / 1e9, tz=UTC)
