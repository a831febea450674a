"""How rollouts come out of the tables: which ones, in which order, a page at a time.

The identifiers that match are read first (they are small), then whole records page by page, each
page in a snapshot of its own: an iteration left half way holds no lock, and a long one never keeps
the write-ahead log from being folded into the file. `ingest.py` is the way in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypedDict

from pydantic import TypeAdapter
from sqlalchemy import Column, Connection, Select, Table, func, select

from tutelage.errors import StoreError
from tutelage.store import schema
from tutelage.store.columns import RowLike
from tutelage.store.values import load_json
from tutelage.types import Attempt, FailureCause, Mode, Reward, RolloutStatus, ToolSpec

PAGE = 64
"""Rollouts held in memory at once while iterating."""
SHOWN = 5
"""Candidates that an error message lists."""
_TOOLS = TypeAdapter(tuple[ToolSpec, ...])


class RolloutFilter(TypedDict, total=False):
    """Which rollouts of a run; what is left out or None is any."""

    mode: Mode | None
    step: int | None
    after: int | None
    """Only steps later than this."""
    label: str | None
    """'' is training."""
    status: RolloutStatus | None
    cause: FailureCause | None
    min_reward: float | None


def place() -> list[Column[Any]]:
    """The order of rollouts: step, label, mode, group, position in the group."""
    c = schema.rollouts.c
    return [c.step, c.label, c.mode, c.group, c["index"], c.id]


def load_attempts(
    conn: Connection, run_id: str, ids: Sequence[str], *, late: bool
) -> dict[str, list[Attempt]]:
    """Attempts by rollout id, in order: those that count, or those that came late."""
    table = schema.attempts
    attempts: dict[str, list[Attempt]] = defaultdict(list)
    parts: defaultdict[tuple[Any, ...], dict[str, list[RowLike]]] = defaultdict(
        lambda: {"calls": [], "tool_results": [], "rewards": []}
    )
    for part in (schema.calls, schema.tool_results, schema.rewards):
        query = _of(part, run_id, ids, late).order_by(*part.primary_key)
        for row in conn.execute(query).mappings():
            key = (row["rollout_id"], row["attempt"], row["late"])
            parts[key][part.name].append(row)
    c = schema.toolsets.c
    wanted = {r["toolset"] for p in parts.values() for r in p["calls"]} - {None}
    stored = conn.execute(select(c.digest, c.tools).where(c.digest.in_(wanted)))
    toolsets = {digest: _TOOLS.validate_python(load_json(tools)) for digest, tools in stored}
    query = _of(table, run_id, ids, late).order_by(*table.primary_key)
    for row in conn.execute(query).mappings():
        key = (row["rollout_id"], row["position"], row["late"])
        own, reward = parts[key], None
        if row["reward"] is not None:
            reward = Reward(row["reward"], {r["name"]: r["value"] for r in own["rewards"]})
        calls = tuple(
            schema.CALL.decode(r, tools=() if r["toolset"] is None else toolsets[r["toolset"]])
            for r in own["calls"]
        )
        results = tuple(schema.TOOL_RESULT.decode(r) for r in own["tool_results"])
        attempt = schema.ATTEMPT.decode(row, reward=reward, calls=calls, tool_results=results)
        attempts[row["rollout_id"]].append(attempt)
    return attempts


def _of(table: Table, run_id: str, ids: Sequence[str], late: bool) -> Select[Any]:
    c = table.c
    kind = c.late > 0 if late else c.late == 0
    return select(table).where(c.run_id == run_id, c.rollout_id.in_(ids), kind)


def resolve(conn: Connection, prefix: str, run_id: str | None) -> tuple[str, str]:
    """The one `(run id, rollout id)` that begins with `prefix`; an exact match wins.

    Raises `StoreError` that lists the candidates when several do, the nearest when none does.
    """
    exact = _starting(conn, prefix, run_id, exact=True)
    pairs = exact or _starting(conn, prefix, run_id)
    if len(pairs) == 1:
        return pairs[0]
    place = "the store" if run_id is None else f"run {run_id!r}"
    if len(exact) > 1:
        names = ", ".join(repr(run) for run, _ in exact)
        raise StoreError(f"rollout {prefix!r} is in several runs, {names}: also pass the run")
    if pairs:
        more = ", ..." if len(pairs) > SHOWN else ""
        names = ", ".join(repr(rollout) for _, rollout in pairs[:SHOWN])
        raise StoreError(
            f"{prefix!r} matches several rollouts of {place}, {names}{more}: pass more of the id"
        )
    # Those that share the longest beginning.
    begins = (prefix[:length] for length in range(len(prefix) - 1, -1, -1))
    near = next(filter(None, (_starting(conn, begin, run_id) for begin in begins)), [])
    if not near:
        raise StoreError(f"no rollout {prefix!r}: {place} has no rollouts")
    names = ", ".join(repr(rollout) for _, rollout in near[:SHOWN])
    raise StoreError(f"no rollout of {place} starts with {prefix!r}: the closest are {names}")


def _starting(
    conn: Connection, prefix: str, run_id: str | None, *, exact: bool = False
) -> list[tuple[str, str]]:
    c = schema.rollouts.c
    # substr, not LIKE: its case, its wildcards and its speed differ between databases.
    query = select(c.run_id, c.id).where(
        c.id == prefix if exact else func.substr(c.id, 1, len(prefix)) == prefix
    )
    if run_id is not None:
        query = query.where(c.run_id == run_id)
    rows = conn.execute(query.order_by(c.id, c.run_id).limit(SHOWN + 1))
    return [(run, rollout) for run, rollout in rows]
