"""Assign KV cache rows to slots: shared while their tokens are equal, copied when they differ.

Pure bookkeeping over small integers; `native.py` moves the keys and values accordingly. A row is in
use while some slot reads it. Slots that share a row agree on the tokens that each has cached; a
slot may append to its row in place only if no other slot is affected, otherwise it gets a copy in a
free row. There is always a free one, because a shared row serves several slots.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence


class CacheRows:
    """Assignment of engine slots to KV cache rows 0..count-1, which several slots can share."""

    def __init__(self, count: int) -> None:
        self.row: list[int] = [-1] * count
        """Row that each slot reads; -1 if it has nothing cached."""
        self.readers: list[list[int]] = [[] for _ in range(count)]
        """Slots that read each row, in the order in which they began."""
        self._free = list(range(count))

    def open(self, slots: Iterable[int]) -> int:
        """Assign the first free cache row to `slots` and return its number."""
        row = heapq.heappop(self._free)
        for slot in slots:
            self.close(slot)
            self.row[slot] = row
            self.readers[row].append(slot)
        return row

    def close(self, slot: int) -> None:
        """Detach a slot from its cache row. The row is free again after its last reader."""
        row = self.row[slot]
        if row < 0:
            return
        self.row[slot] = -1
        self.readers[row].remove(slot)
        if not self.readers[row]:
            heapq.heappush(self._free, row)

    def separate(self, slots: Sequence[int], tokens: Sequence[int]) -> list[tuple[int, int]]:
        """Move slots that share a cache row but drew different tokens to separate rows.

        Returns the rows to copy as pairs (source, target).
        """
        by_token: dict[int, dict[int, list[int]]] = {}
        for slot, token in zip(slots, tokens, strict=True):
            row = self.row[slot]
            if len(self.readers[row]) > 1:
                by_token.setdefault(row, {}).setdefault(token, []).append(slot)
        groups = [(row, group) for row, p in by_token.items() for group in list(p.values())[1:]]
        return [(row, self.open(group)) for row, group in groups]

    def gather(self, rows: Collection[int], count: int) -> list[tuple[int, int]]:
        """Swap cache rows so that `rows` all lie below `count`; return the swapped pairs.

        `count` is at least the number of `rows`. The contents and readers of a pair are exchanged;
        free rows may be overwritten.
        """
        movers = [row for row in rows if row >= count]
        if not movers:
            return []
        used = set(rows)
        holes = [row for row in range(count) if row not in used][: len(movers)]
        pairs = list(zip(holes, sorted(movers), strict=True))
        readers = self.readers
        for hole, mover in pairs:
            readers[hole], readers[mover] = readers[mover], readers[hole]
            for row in (hole, mover):
                for slot in readers[row]:
                    self.row[slot] = row
        self._free = [row for row, slots in enumerate(readers) if not slots]
        return pairs
