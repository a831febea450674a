"""Valid status transitions, and the treatment of records that arrive after a terminal status.

These are pure functions. A terminal status is final, and late results are kept but ignored; only a
run, unlike a rollout, may be resumed after it has ended. `ingest.py` applies `merge_attempts` to
each rollout that is already in the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tutelage.errors import StoreError
from tutelage.types import RolloutStatus

_PENDING, _RUNNING, _SUCCEEDED, _FAILED, _CANCELLED = RolloutStatus
_TERMINAL = frozenset({_SUCCEEDED, _FAILED, _CANCELLED})

RUN_TRANSITIONS: Mapping[RolloutStatus, frozenset[RolloutStatus]] = {
    _PENDING: frozenset({_RUNNING, _FAILED, _CANCELLED}),
    _RUNNING: _TERMINAL,
    **dict.fromkeys(_TERMINAL, frozenset({_RUNNING})),
}
"""Allowed next statuses of a run by status; repeating a status is always allowed."""


def check_run_transition(run_id: str, old: RolloutStatus, new: RolloutStatus) -> None:
    """Raise `StoreError` if a run's status cannot change from `old` to `new`."""
    if new != old and new not in RUN_TRANSITIONS[old]:
        allowed = ", ".join(sorted(RUN_TRANSITIONS[old]))
        raise StoreError(
            f"run {run_id!r} is {old.value!r} and cannot become {new.value!r}: "
            f"allowed statuses: {allowed}"
        )


Stamp = tuple[RolloutStatus, str]
"""Status of an attempt and digest of its content."""


def merge_attempts(
    label: str, stored: Sequence[Stamp], incoming: Sequence[Stamp]
) -> tuple[list[int], list[int], list[int]]:
    """Return the positions of incoming attempts to add, to replace, and to store as late.

    Attempts are compared with the stored ones, and repeated content changes nothing. Attempts that
    have ended, and all attempts of a rollout whose last attempt has ended, are final: different
    content is late. Raises `StoreError` for a backward transition, such as from running to pending.
    """
    final = bool(stored) and stored[-1][0].terminal
    added: list[int] = []
    replaced: list[int] = []
    late: list[int] = []
    for i, (status, digest) in enumerate(incoming):
        current, old_digest = stored[i] if i < len(stored) else (None, None)
        if digest == old_digest:
            continue
        if current is None:
            (late if final else added).append(i)
        elif final or current.terminal:
            late.append(i)
        elif (current, status) != (_RUNNING, _PENDING):  # a snapshot may skip running
            replaced.append(i)
        else:
            raise StoreError(
                f"attempt {i} of {label} is {current.value!r} and cannot become {status.value!r}: "
                "write records in the order in which they occurred"
            )
    return added, replaced, late
