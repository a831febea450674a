"""A rollout as rows of the tables, and rows as a rollout again, with nothing lost in between.

The two halves mirror each other, field by field; `tests/store` proves that they are inverse. Each
attempt also gets a digest of its content, by which `ingest.py` knows a repeat from a change.
`schema.py` has the columns, `values.py` how one value is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tutelage.errors import StoreError
from tutelage.store.status import Stamp
from tutelage.store.values import (
    dump_json,
    finite,
    load_json,
    pack_floats,
    pack_ints,
    unpack_floats,
    unpack_ints,
)
from tutelage.types import (
    Attempt,
    Call,
    Constraint,
    Failure,
    FailureCause,
    Message,
    Mode,
    Reward,
    Rollout,
    RolloutStatus,
    Sampled,
    Sampling,
    StopReason,
    Task,
    ToolResult,
    ToolSpec,
)

Row = dict[str, Any]
RowLike = Mapping[Any, Any]
PARTS = ("calls", "tool_results", "rewards")
"""The tables below an attempt, each a list in order."""
_SAMPLING = tuple(f.name for f in fields(Sampling))
_CONSTRAINT = tuple(f.name for f in fields(Constraint))
_LATER: Row = {"toolset": None, "limits": None, "policy": "main", "allowed": None}
"""Columns of calls that came after the first format, with what a call has that uses none of them:
such a value is left out of the digest, so that a record keeps the digest that it had."""
_CLOCK = ("started", "seconds")
"""Columns of calls that are no part of a call's identity."""


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
    """One rollout: its head (without status), its task and its attempts."""

    head: Row
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
            data = [[t.name, t.description, t.parameters] for t in tools]
            text = dump_json(data, f"tools of {where}")
            self._known[key] = (_digest([{"tools": text}]), tools)
            self._texts[self._known[key][0]] = text
        return self._known[key][0]

    def text(self, digest: str) -> str:
        """The JSON text of some tools."""
        return self._texts[digest]


def encode_rollouts(rollouts: Sequence[Rollout]) -> list[RolloutRows]:
    """`encode_rollout` of each; what they have in common is made once."""
    toolsets = Toolsets()
    return [encode_rollout(rollout, toolsets) for rollout in rollouts]


def encode_rollout(rollout: Rollout, toolsets: Toolsets | None = None) -> RolloutRows:
    """All rows of a rollout. Raises `StoreError` for what cannot be stored exactly."""
    toolsets = toolsets or Toolsets()
    if not rollout.attempts:
        raise StoreError(f"rollout {rollout.id!r} has no attempts: put it with a pending one")
    where = f"rollout {rollout.id!r}"
    task = _encode_task(rollout.task, where)
    head: Row = {
        "run_id": rollout.run_id,
        "id": rollout.id,
        "task": task["digest"],
        "mode": Mode(rollout.mode).value,
        "step": rollout.step,
        "label": rollout.label,
        "group_id": rollout.group,
        "group_index": rollout.index,
    }
    keys: Row = {"run_id": rollout.run_id, "rollout_id": rollout.id}
    attempts = tuple(
        _encode_attempt(attempt, keys, position, f"{where}, attempt {position}", toolsets)
        for position, attempt in enumerate(rollout.attempts)
    )
    used = {row["toolset"] for a in attempts for row in a.parts["calls"]} - {None}
    return RolloutRows(head, task, attempts, {digest: toolsets.text(digest) for digest in used})


def _encode_task(task: Task, where: str) -> Row:
    fields = dump_json(task.fields, f"task {task.id!r} of {where}, fields")
    return {"digest": _digest([{"id": task.id, "fields": fields}]), "id": task.id, "fields": fields}


def _encode_attempt(
    attempt: Attempt, keys: Row, position: int, where: str, toolsets: Toolsets
) -> AttemptRows:
    failure, reward = attempt.failure, attempt.reward
    row: Row = {
        "id": attempt.id,
        "attempt_index": attempt.index,
        "status": RolloutStatus(attempt.status).value,
        "answer": attempt.answer,
        "reward": None if reward is None else finite(reward.value, f"reward of {where}"),
        "failure_cause": None if failure is None else FailureCause(failure.cause).value,
        "failure_message": None if failure is None else failure.message,
        "failure_traceback": None if failure is None else failure.traceback,
        "stop": attempt.stop,
        "seconds": finite(attempt.seconds, f"seconds of {where}"),
    }
    named = {} if reward is None else reward.parts
    parts: dict[str, list[Row]] = {
        "calls": [
            _encode_call(c, f"{where}, call {i}", toolsets) for i, c in enumerate(attempt.calls)
        ],
        "tool_results": [_encode_result(r, where) for r in attempt.tool_results],
        "rewards": [
            {"name": name, "value": finite(value, f"reward part {name!r} of {where}")}
            for name, value in named.items()
        ],
    }
    digest = _digest([row, *(_counted(r) for name in PARTS for r in parts[name])])
    placed = {
        name: [
            keys | {"attempt": position, "late": 0, "position": i} | r for i, r in enumerate(rows)
        ]
        for name, rows in parts.items()
    }
    own = keys | {"position": position, "late": 0, "digest": digest} | row
    own["started"] = finite(attempt.started, f"start of {where}")
    return AttemptRows(own, placed, Stamp(RolloutStatus(attempt.status), digest))


def _encode_call(call: Call, where: str, toolsets: Toolsets) -> Row:
    sampled, limits = call.sampled, None
    if call.constraint is not None:
        given = {name: getattr(call.constraint, name) for name in _CONSTRAINT}
        limits = dump_json(given, f"constraint of {where}")
    return {
        "id": call.id,
        "agent": call.agent,
        "call_index": call.index,
        "messages": dump_json([m.to_dict() for m in call.messages], f"messages of {where}"),
        "reply": dump_json(call.reply.to_dict(), f"reply of {where}"),
        "sampling": dump_json(
            {name: getattr(call.sampling, name) for name in _SAMPLING}, f"sampling of {where}"
        ),
        "parse_errors": dump_json(call.parse_errors, f"parse errors of {where}"),
        "prompt_ids": pack_ints(call.prompt_ids, f"prompt ids of {where}"),
        "token_ids": pack_ints(sampled.token_ids, f"token ids of {where}"),
        "logprobs": pack_floats(sampled.logprobs, f"logprobs of {where}"),
        "raw_logprobs": pack_floats(sampled.raw_logprobs, f"raw logprobs of {where}"),
        "stop_reason": StopReason(sampled.stop_reason).value,
        "policy_version": sampled.policy_version,
        "toolset": toolsets.digest(call.tools, where),
        "limits": limits,
        "policy": call.policy,
        "allowed": pack_ints(sampled.allowed, f"allowed of {where}") if sampled.allowed else None,
        "started": finite(call.started, f"start of {where}"),
        "seconds": finite(call.seconds, f"seconds of {where}"),
    }


def _encode_result(result: ToolResult, where: str) -> Row:
    return {
        "call_id": result.call_id,
        "name": result.name,
        "arguments": result.arguments,
        "text": result.text,
        "error": result.error,
        "seconds": finite(result.seconds, f"seconds of tool {result.name!r} of {where}"),
        "started": finite(result.started, f"start of tool {result.name!r} of {where}"),
    }


def _counted(row: Row) -> Row:
    """What of a part's row goes into the attempt's digest."""
    if "token_ids" not in row:
        return {key: value for key, value in row.items() if key != "started"}
    return {
        key: value
        for key, value in row.items()
        if key not in _CLOCK and not (key in _LATER and value == _LATER[key])
    }


def _digest(rows: Sequence[Row]) -> str:
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
    return Rollout(
        id=head["id"],
        run_id=head["run_id"],
        task=Task(task["id"], load_json(task["fields"])),
        mode=Mode(head["mode"]),
        step=head["step"],
        group=head["group_id"],
        index=head["group_index"],
        attempts=tuple(attempts),
        label=head["label"],
    )


def decode_attempt(
    row: RowLike,
    parts: Mapping[str, Sequence[RowLike]],
    toolsets: Mapping[str, tuple[ToolSpec, ...]],
) -> Attempt:
    """The attempt whose row and parts (by table name, each in order) these are.

    `toolsets` has the tools that its calls name, by digest.
    """
    cause, reward = row["failure_cause"], None
    if row["reward"] is not None:
        reward = Reward(row["reward"], {r["name"]: r["value"] for r in parts["rewards"]})
    failure = None
    if cause is not None:
        failure = Failure(FailureCause(cause), row["failure_message"], row["failure_traceback"])
    return Attempt(
        id=row["id"],
        index=row["attempt_index"],
        status=RolloutStatus(row["status"]),
        calls=tuple(_decode_call(r, toolsets) for r in parts["calls"]),
        tool_results=tuple(_decode_result(r) for r in parts["tool_results"]),
        answer=row["answer"],
        reward=reward,
        failure=failure,
        stop=row["stop"],
        seconds=row["seconds"],
        started=row["started"],
    )


def decode_toolset(text: str) -> tuple[ToolSpec, ...]:
    """The tools whose JSON text this is."""
    return tuple(ToolSpec(*parts) for parts in load_json(text))


def _decode_call(row: RowLike, toolsets: Mapping[str, tuple[ToolSpec, ...]]) -> Call:
    sampling, limits = load_json(row["sampling"]), row["limits"]
    return Call(
        id=row["id"],
        agent=row["agent"],
        index=row["call_index"],
        messages=tuple(Message.from_dict(m) for m in load_json(row["messages"])),
        prompt_ids=unpack_ints(row["prompt_ids"]),
        sampled=Sampled(
            token_ids=unpack_ints(row["token_ids"]),
            logprobs=unpack_floats(row["logprobs"]),
            raw_logprobs=unpack_floats(row["raw_logprobs"]),
            stop_reason=StopReason(row["stop_reason"]),
            policy_version=row["policy_version"],
            allowed=() if row["allowed"] is None else unpack_ints(row["allowed"]),
        ),
        reply=Message.from_dict(load_json(row["reply"])),
        sampling=Sampling(**(sampling | {"stop": tuple(sampling["stop"])})),
        parse_errors=tuple(load_json(row["parse_errors"])),
        tools=() if row["toolset"] is None else toolsets[row["toolset"]],
        constraint=None if limits is None else Constraint(**load_json(limits)),
        policy=row["policy"],
        started=row["started"],
        seconds=row["seconds"],
    )


def _decode_result(row: RowLike) -> ToolResult:
    return ToolResult(
        call_id=row["call_id"],
        name=row["name"],
        arguments=row["arguments"],
        text=row["text"],
        error=row["error"],
        seconds=row["seconds"],
        started=row["started"],
    )
