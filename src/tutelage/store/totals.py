"""Sums and grades of a run, without its conversations: what a comparison of runs needs.

Whole records hold every token; these two questions are answered from the small columns, so that a
run of a hundred thousand rollouts is summed in moments. `store.py` asks, `records.py` has what it
gives back.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, func, select

from tutelage.store import schema
from tutelage.store.records import Grade, Totals
from tutelage.store.values import load_json
from tutelage.types import Mode

_BYTES = 4
"""Of one packed token id; see `values.pack_ints`."""


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
    """The last attempt's reward of each rollout of a mode and some labels, with its part of that
    name, in the order of labels, then of tasks."""
    heads, attempts, rewards = schema.rollouts.c, schema.attempts.c, schema.rewards.c
    owned = and_(attempts.run_id == heads.run_id, attempts.rollout_id == heads.id)
    part = and_(
        rewards.run_id == attempts.run_id,
        rewards.rollout_id == attempts.rollout_id,
        rewards.attempt == attempts.position,
        rewards.late == attempts.late,
        rewards.name == name,
    )
    query = (
        select(
            heads.id,
            heads.label,
            schema.tasks.c.id.label("task"),
            schema.tasks.c.fields,
            attempts.reward,
            attempts.failure_cause,
            rewards.value.label("part"),
        )
        .select_from(
            schema.rollouts.join(schema.tasks, heads.task == schema.tasks.c.digest)
            .join(schema.attempts, owned)
            .outerjoin(schema.rewards, part)
        )
        .where(
            heads.run_id == run_id,
            heads.mode == mode.value,
            heads.label.in_(labels),
            attempts.late == 0,
        )
        .order_by(heads.label, heads.step, heads.group_id, heads.group_index, attempts.position)
    )
    found: dict[str, Grade] = {}
    for row in conn.execute(query).mappings():
        found[row["id"]] = Grade(  # attempts come in order: the last one stays
            label=row["label"],
            task=row["task"],
            fields=load_json(row["fields"]),
            reward=row["reward"],
            part=row["part"],
            failure=row["failure_cause"],
        )
    return list(found.values())
