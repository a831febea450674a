"""Questions about many rollouts that need none of their conversations: sums, grades, failures.

Whole records hold every token; these are answered from the small columns, so that a run of a
hundred thousand rollouts is summed, sorted or counted in moments. `store.py` asks, `records.py` has
what it gives back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import Connection, Select, and_, func, select

from tutelage.store import schema
from tutelage.store.columns import Columns
from tutelage.store.fetch import Chosen, clauses, place
from tutelage.store.records import FailureCount, Grade, RolloutRow, Totals
from tutelage.store.values import load_json
from tutelage.types import FailureCause, Mode, RolloutStatus

SortKey = Literal["reward", "turns", "tokens", "policy_version"]
_ROW = Columns(RolloutRow, flat={"summary": ""})
_BYTES = 4
"""Of one packed token id; see `values.pack_ints`."""


def summaries(
    conn: Connection,
    run_id: str,
    chosen: Chosen,
    *,
    order: SortKey | None,
    descending: bool,
    limit: int | None,
) -> list[RolloutRow]:
    """Rollouts without their conversations, sorted by a column (those without a value last), else
    in their order."""
    heads, tasks = schema.rollouts, schema.tasks
    own = [column for column in heads.c if column.name != "task"]
    query = (
        select(*own, tasks.c.id.label("task"))
        .join(tasks, heads.c.task == tasks.c.digest)
        .where(*clauses(run_id, chosen))
    )
    if order is not None:
        column = heads.c[order]
        query = query.order_by((column.desc() if descending else column).nulls_last())
    rows = conn.execute(query.order_by(*place()).limit(limit)).mappings()
    return [_ROW.decode(row) for row in rows]


def failures(conn: Connection, run_id: str, chosen: Chosen) -> list[FailureCount]:
    """How many of these rollouts failed or were cancelled, by cause, the most frequent first."""
    c = schema.rollouts.c
    ended = c.status.in_([RolloutStatus.FAILED.value, RolloutStatus.CANCELLED.value])
    query = (
        select(c.cause, func.count().label("number"))
        .where(*clauses(run_id, chosen), ended)
        .group_by(c.cause)
    )
    counted: list[tuple[str | None, int]] = [(cause, n) for cause, n in conn.execute(query)]
    counted.sort(key=lambda pair: (-pair[1], pair[0] or ""))
    found: list[FailureCount] = []
    for cause, number in counted:
        first = conn.execute(_first_message(run_id, chosen, cause).where(ended)).scalar()
        known = None if cause is None else FailureCause(cause)
        found.append(FailureCount(known, number, first or ""))
    return found


def _first_message(run_id: str, chosen: Chosen, cause: str | None) -> Select[Any]:
    heads, attempts = schema.rollouts, schema.attempts
    owned = and_(attempts.c.run_id == heads.c.run_id, attempts.c.rollout_id == heads.c.id)
    return (
        select(attempts.c.failure_message)
        .select_from(heads.join(attempts, owned))
        .where(*clauses(run_id, chosen), heads.c.cause.is_not_distinct_from(cause))
        .where(attempts.c.late == 0, attempts.c.failure_cause.is_not_distinct_from(cause))
        .order_by(*place(), attempts.c.position.desc())
        .limit(1)
    )


def totals(conn: Connection, run_id: str) -> Totals:
    """What a run's rollouts came to, over all their attempts."""
    calls, rollouts = schema.calls.c, schema.rollouts.c
    heads = select(rollouts.mode, func.count()).where(rollouts.run_id == run_id)
    by_mode: dict[str, int] = {
        row[0]: row[1] for row in conn.execute(heads.group_by(rollouts.mode))
    }
    sums = select(
        func.count(),
        func.coalesce(func.sum(func.length(calls.prompt_ids)), 0),
        func.coalesce(func.sum(func.length(calls.token_ids)), 0),
    ).where(calls.run_id == run_id, calls.late == 0)
    count, read, written = conn.execute(sums).one()
    return Totals(
        rollouts=sum(by_mode.values()),
        tests=by_mode.get(Mode.TEST.value, 0),
        calls=count,
        prompt_tokens=int(read) // _BYTES,
        sampled_tokens=int(written) // _BYTES,
    )


def grades(
    conn: Connection, run_id: str, mode: Mode, labels: Sequence[str], name: str
) -> list[Grade]:
    """The reward of each rollout of a mode and some labels, with its part of that name, in the
    order of labels, then of tasks."""
    heads, attempts, rewards = schema.rollouts.c, schema.attempts.c, schema.rewards.c
    of_rollout = (attempts.run_id == heads.run_id, attempts.rollout_id == heads.id)
    last = (
        select(func.max(attempts.position))
        .where(*of_rollout, attempts.late == 0)
        .correlate(schema.rollouts)
        .scalar_subquery()
    )
    part = and_(
        rewards.run_id == heads.run_id,
        rewards.rollout_id == heads.id,
        rewards.attempt == last,
        rewards.late == 0,
        rewards.name == name,
    )
    query = (
        select(
            heads.label,
            schema.tasks.c.id.label("task"),
            schema.tasks.c.fields,
            heads.reward,
            heads.cause.label("failure"),
            rewards.value.label("part"),
        )
        .select_from(
            schema.rollouts.join(schema.tasks, heads.task == schema.tasks.c.digest).outerjoin(
                schema.rewards, part
            )
        )
        .where(heads.run_id == run_id, heads.mode == mode.value, heads.label.in_(labels))
        .order_by(heads.label, heads.step, heads.group, heads["index"], heads.id)
    )
    return [
        Grade(**{**row, "fields": load_json(row["fields"])})
        for row in conn.execute(query).mappings()
    ]
