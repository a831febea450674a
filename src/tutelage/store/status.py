"""Which status may follow which, and what becomes of a record that arrives after the end.

Pure functions, so that the law "a terminal status is final, a late result is kept and ignored" is
one loop. A run differs from a rollout in one way: one that ended may be taken up
again. `ingest.py` applies `merge` to each rollout that the store already has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tutelage.errors import StoreError
from tutelage.types import RolloutStatus

_PENDING, _RUNNING, _SUCCEEDED, _FAILED, _CANCELLED = RolloutStatus
_ENDS = frozenset({_SUCCEEDED, _FAILED, _CANCELLED})

RUN_TRANSITIONS: Mapping[RolloutStatus, frozenset[RolloutStatus]] = {
    _PENDING: frozenset({_RUNNING, _FAILED, _CANCELLED}),
    _RUNNING: _ENDS,
    **dict.fromkeys(_ENDS, frozenset({_RUNNING})),
}
"""What may follow each status of a run; the same status again is always allowed."""


def check_run_transition(run_id: str, old: RolloutStatus, new: RolloutStatus) -> None:
    """Raises `StoreError` when a run in `old` cannot become `new`."""
    if new != old and new not in RUN_TRANSITIONS[old]:
        allowed = ", ".join(sorted(RUN_TRANSITIONS[old]))
        raise StoreError(
            f"run {run_id!r} is {old.value!r} and cannot become {new.value!r}: "
            f"allowed next: {allowed}"
        )


Stamp = tuple[RolloutStatus, str]
"""What decides about an attempt: its status and a digest of its content."""


def merge(
    where: str, stored: Sequence[Stamp], incoming: Sequence[Stamp]
) -> tuple[list[int], list[int], list[int]]:
    """Compare a rollout's incoming attempts with the stored ones: which of them, by position, are
    to be added, to replace a stored one, and to be filed as late.

    The same content again changes nothing. An attempt that has ended keeps its record, and so do
    all of a rollout whose last attempt has ended: what differs is late. Raises `StoreError` when a
    status goes back, such as from running to pending.
    """
    final = bool(stored) and stored[-1][0].terminal
    add: list[int] = []
    replace: list[int] = []
    late: list[int] = []
    for i, (status, digest) in enumerate(incoming):
        before, known = stored[i] if i < len(stored) else (None, None)
        if digest == known:
            continue
        if before is None:
            (late if final else add).append(i)
        elif final or before.terminal:
            late.append(i)
        elif (before, status) != (_RUNNING, _PENDING):  # a snapshot may skip running
            replace.append(i)
        else:
            raise StoreError(
                f"attempt {i} of {where} is {before.value!r} and cannot become {status.value!r}: "
                "records must be put in the order in which they happened"
            )
    return add, replace, late
