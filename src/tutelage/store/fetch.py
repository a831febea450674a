"""Read rollouts from the tables: filters, order and pages.

The matching ids are read first, because they are small, then whole records page by page. Each page
uses its own snapshot, so an unfinished iteration holds no lock and a long one does not prevent
checkpoints of the write-ahead log. `ingest.py` writes rollouts.
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

PAGE_SIZE = 64
"""Number of rollouts that are read at a time while iterating."""
MAX_LISTED = 5
"""Number of candidates that an error message lists."""
_TOOLS = TypeAdapter(tuple[ToolSpec, ...])


class RolloutFilter(TypedDict, total=False):
    """Filter of a run's rollouts. A missing key or None matches all values."""

    mode: Mode | None
    step: int | None
    after: int | None
    """Match only rollouts of steps later than this."""
    label: str | None
    """The label of an evaluation, or '' for training rollouts."""
    status: RolloutStatus | None
    cause: FailureCause | None
    min_reward: float | None


def rollout_order() -> list[Column[Any]]:
    """Return the sort order of rollouts: step, label, mode, group, position in the group."""
    c = schema.rollouts.c
    return [c.step, c.label, c.mode, c.group, c["index"], c.id]


def load_attempts(
    conn: Connection, run_id: str, ids: Sequence[str], *, late: bool
) -> dict[str, list[Attempt]]:
    """Load the attempts of rollouts, by rollout id. `late` selects the late results instead."""
    table = schema.attempts
    attempts: dict[str, list[Attempt]] = defaultdict(list)
    parts: defaultdict[tuple[Any, ...], dict[str, list[RowLike]]] = defaultdict(
        lambda: {"calls": [], "tool_results": [], "rewards": []}
    )
    for part in (schema.calls, schema.tool_results, schema.rewards):
        query = _select_rows(part, run_id, ids, late).order_by(*part.primary_key)
        for row in conn.execute(query).mappings():
            key = (row["rollout_id"], row["attempt"], row["late"])
            parts[key][part.name].append(row)
    c = schema.toolsets.c
    digests = {r["toolset"] for p in parts.values() for r in p["calls"]} - {None}
    stored = conn.execute(select(c.digest, c.tools).where(c.digest.in_(digests)))
    toolsets = {digest: _TOOLS.validate_python(load_json(tools)) for digest, tools in stored}
    query = _select_rows(table, run_id, ids, late).order_by(*table.primary_key)
    for row in conn.execute(query).mappings():
        key = (row["rollout_id"], row["position"], row["late"])
        own_parts, reward = parts[key], None
        if row["reward"] is not None:
            reward = Reward(row["reward"], {r["name"]: r["value"] for r in own_parts["rewards"]})
        calls = tuple(
            schema.CALL.decode(r, tools=() if r["toolset"] is None else toolsets[r["toolset"]])
            for r in own_parts["calls"]
        )
        results = tuple(schema.TOOL_RESULT.decode(r) for r in own_parts["tool_results"])
        attempt = schema.ATTEMPT.decode(row, reward=reward, calls=calls, tool_results=results)
        attempts[row["rollout_id"]].append(attempt)
    return attempts


def _select_rows(table: Table, run_id: str, ids: Sequence[str], late: bool) -> Select[Any]:
    c = table.c
    kind = c.late > 0 if late else c.late == 0
    return select(table).where(c.run_id == run_id, c.rollout_id.in_(ids), kind)


def resolve_id(conn: Connection, prefix: str, run_id: str | None) -> tuple[str, str]:
    """Find a rollout by its id or by a unique prefix of it.

    Returns its run id and its id. Raises `StoreError` with the candidates if several match, or the
    closest ids if none does.
    """
    exact = _find_ids(conn, prefix, run_id, exact=True)
    pairs = exact or _find_ids(conn, prefix, run_id)
    if len(pairs) == 1:
        return pairs[0]
    source = "the store" if run_id is None else f"run {run_id!r}"
    if len(exact) > 1:
        names = ", ".join(repr(run) for run, _ in exact)
        raise StoreError(f"rollout {prefix!r} is in several runs, {names}: also pass the run id")
    if pairs:
        rest = ", ..." if len(pairs) > MAX_LISTED else ""
        names = ", ".join(repr(rollout) for _, rollout in pairs[:MAX_LISTED])
        raise StoreError(
            f"{prefix!r} matches several rollouts of {source}, {names}{rest}: pass a longer prefix"
        )
    # Candidates with the longest common prefix.
    prefixes = (prefix[:length] for length in range(len(prefix) - 1, -1, -1))
    closest = next(filter(None, (_find_ids(conn, shorter, run_id) for shorter in prefixes)), [])
    if not closest:
        raise StoreError(f"no rollout {prefix!r}: {source} has no rollouts")
    names = ", ".join(repr(rollout) for _, rollout in closest[:MAX_LISTED])
    raise StoreError(f"no rollout of {source} starts with {prefix!r}: the closest are {names}")


def _find_ids(
    conn: Connection, prefix: str, run_id: str | None, *, exact: bool = False
) -> list[tuple[str, str]]:
    c = schema.rollouts.c
    # Case, wildcards and speed of LIKE differ between databases, so use substr.
    query = select(c.run_id, c.id).where(
        c.id == prefix if exact else func.substr(c.id, 1, len(prefix)) == prefix
    )
    if run_id is not None:
        query = query.where(c.run_id == run_id)
    rows = conn.execute(query.order_by(c.id, c.run_id).limit(MAX_LISTED + 1))
    return [(run, rollout) for run, rollout in rows]
