"""A rollout as rows of the tables, and rows as a rollout again, with nothing lost in between.

What one record holds is written by its columns (`schema.py`); here is which rows a rollout makes of
them: a head with its summary, a task and toolsets that are stored once per content, and attempts
with what belongs to them in order. Each attempt also gets a digest of its content, by which
`ingest.py` knows a repeat from a change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tutelage.errors import StoreError
from tutelage.store.columns import Row, RowLike, reader
from tutelage.store.records import Summary
from tutelage.store.schema import ATTEMPT, CALL, ROLLOUT, SUMMARY, TASK, TOOL_RESULT
from tutelage.store.status import Stamp
from tutelage.store.values import dump_json, finite, load_json
from tutelage.types import Attempt, Call, Reward, Rollout, RolloutStatus, ToolSpec

PARTS = ("calls", "tool_results", "rewards")
"""The tables below an attempt, each a list in order."""
_read_tools = reader(tuple[ToolSpec, ...])


@dataclass(frozen=True, slots=True)
class AttemptRows:
    """One attempt: its own row, the rows of each table below it, and its stamp."""

    row: Row
    parts: dict[str, list[Row]]
    stamp: Stamp

    def as_late(self, number: int) -> AttemptRows:
        """The same rows, filed as the `number`-th late result (from 1)."""
        parts = {name: [r | {"late": number} for r in rows] for name, rows in self.parts.items()}
        return AttemptRows(self.row | {"late": number}, parts, self.stamp)


@dataclass(frozen=True, slots=True)
class RolloutRows:
    """One rollout: its head, what it came to so far, its task and its attempts."""

    head: Row
    summary: Row
    task: Row
    attempts: tuple[AttemptRows, ...]
    toolsets: Mapping[str, str]
    """JSON text by digest."""

    @property
    def key(self) -> tuple[str, str]:
        """`(run id, rollout id)`."""
        return (self.head["run_id"], self.head["id"])


class Toolsets:
    """The distinct tools of a batch's calls, each written and hashed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[str, tuple[ToolSpec, ...]]] = {}
        self._texts: dict[str, str] = {}

    def digest(self, tools: tuple[ToolSpec, ...], where: str) -> str | None:
        """Under which key the tools are stored; None for no tools."""
        if not tools:
            return None
        # By identity of the schemas, which thousands of calls share; the tools are kept, so that
        # no identity is used again while this lives.
        key = tuple((t.name, t.description, id(t.parameters)) for t in tools)
        if key not in self._known:
            text = dump_json(tools, f"tools of {where}")
            self._known[key] = (_digest([{"tools": text}]), tools)
            self._texts[self._known[key][0]] = text
        return self._known[key][0]

    def text(self, digest: str) -> str:
        """The JSON text of some tools."""
        return self._texts[digest]


def encode_rollouts(rollouts: Sequence[Rollout]) -> list[RolloutRows]:
    """All rows of some rollouts; what they have in common is made once. Raises `StoreError` for
    what cannot be stored exactly."""
    toolsets = Toolsets()
    return [_encode_rollout(rollout, toolsets) for rollout in rollouts]


def _encode_rollout(rollout: Rollout, toolsets: Toolsets) -> RolloutRows:
    if not rollout.attempts:
        raise StoreError(f"rollout {rollout.id!r} has no attempts: put it with a pending one")
    where = f"rollout {rollout.id!r}"
    task = TASK.encode(rollout.task, f"task {rollout.task.id!r} of {where}")
    digest = _digest([task])
    keys: Row = {"run_id": rollout.run_id, "rollout_id": rollout.id}
    attempts = tuple(
        _encode_attempt(attempt, keys, position, f"{where}, attempt {position}", toolsets)
        for position, attempt in enumerate(rollout.attempts)
    )
    used = {row["toolset"] for a in attempts for row in a.parts["calls"]} - {None}
    return RolloutRows(
        head=ROLLOUT.encode(rollout, where) | {"task": digest},
        summary=SUMMARY.encode(Summary.of(rollout), where),
        task={"digest": digest} | task,
        attempts=attempts,
        toolsets={name: toolsets.text(name) for name in used},
    )


def _encode_attempt(
    attempt: Attempt, keys: Row, position: int, where: str, toolsets: Toolsets
) -> AttemptRows:
    reward = attempt.reward
    row = ATTEMPT.encode(attempt, where)
    row["reward"] = None if reward is None else finite(reward.value, f"reward of {where}")
    parts: dict[str, list[Row]] = {
        "calls": [
            _encode_call(c, f"{where}, call {i}", toolsets) for i, c in enumerate(attempt.calls)
        ],
        "tool_results": [
            TOOL_RESULT.encode(r, f"tool {r.name!r} of {where}") for r in attempt.tool_results
        ],
        "rewards": [
            {"name": name, "value": finite(value, f"reward part {name!r} of {where}")}
            for name, value in ({} if reward is None else reward.parts).items()
        ],
    }
    digest = _digest(_counted(row, parts))
    placed = {
        name: [
            keys | {"attempt": position, "late": 0, "position": i} | r for i, r in enumerate(rows)
        ]
        for name, rows in parts.items()
    }
    own = keys | {"position": position, "late": 0, "digest": digest} | row
    return AttemptRows(own, placed, Stamp(RolloutStatus(attempt.status), digest))


def _encode_call(call: Call, where: str, toolsets: Toolsets) -> Row:
    return CALL.encode(call, where) | {"toolset": toolsets.digest(call.tools, where)}


def _counted(row: Row, parts: Mapping[str, list[Row]]) -> Iterator[Row]:
    """What decides whether two attempts are equal."""
    yield ATTEMPT.counted(row) | {"reward": row["reward"]}
    for call in parts["calls"]:
        yield CALL.counted(call) | {"toolset": call["toolset"]}
    for result in parts["tool_results"]:
        yield TOOL_RESULT.counted(result)
    yield from parts["rewards"]


def _digest(rows: Iterator[Row] | Sequence[Row]) -> str:
    """A hash of the rows' values; lengths go in, so that no two contents share one byte string."""
    state = hashlib.blake2b(digest_size=16)
    for row in rows:
        state.update(f"row {len(row)};".encode())
        for value in row.values():
            kind = type(value).__name__
            data = (
                value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
            )
            state.update(f"{kind} {len(data)};".encode())
            state.update(data)
    return state.hexdigest()


def decode_rollout(head: RowLike, task: RowLike, attempts: Sequence[Attempt]) -> Rollout:
    """The rollout whose head and task rows these are."""
    return ROLLOUT.decode(head, task=TASK.decode(task), attempts=tuple(attempts))


def decode_attempt(
    row: RowLike,
    parts: Mapping[str, Sequence[RowLike]],
    toolsets: Mapping[str, tuple[ToolSpec, ...]],
) -> Attempt:
    """The attempt whose row and parts (by table name, each in order) these are.

    `toolsets` has the tools that its calls name, by digest.
    """
    reward = None
    if row["reward"] is not None:
        reward = Reward(row["reward"], {r["name"]: r["value"] for r in parts["rewards"]})
    return ATTEMPT.decode(
        row,
        reward=reward,
        calls=tuple(
            CALL.decode(r, tools=() if r["toolset"] is None else toolsets[r["toolset"]])
            for r in parts["calls"]
        ),
        tool_results=tuple(TOOL_RESULT.decode(r) for r in parts["tool_results"]),
    )


def decode_toolset(text: str) -> tuple[ToolSpec, ...]:
    """The tools whose JSON text this is."""
    return _read_tools(load_json(text))
