"""Which cache row each slot reads: shared while tokens are equal, copied when they part.

Pure bookkeeping over small integers; `native.py` moves the keys and values as it is told here. A
row is in use while some slot reads it. Slots that share a row agree on the tokens that each of them
has cached; a slot may append to its row in place only when nobody else could notice, and otherwise
gets a copy in a free row. There is always a free one, because a shared row serves several slots.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence


class CacheRows:
    """Rows 0..count-1 of a cache, and the slots that read them."""

    def __init__(self, count: int) -> None:
        self.of: list[int] = [-1] * count
        """The row that each slot reads; -1 where it has nothing cached."""
        self.readers: list[list[int]] = [[] for _ in range(count)]
        """The slots that read a row, in the order in which they began to."""
        self._free = list(range(count))

    def open(self, slots: Iterable[int]) -> int:
        """Let `slots` read a row that nobody uses, the first such one; return it."""
        row = heapq.heappop(self._free)
        for slot in slots:
            self.close(slot)
            self.of[slot] = row
            self.readers[row].append(slot)
        return row

    def close(self, slot: int) -> None:
        """A slot stops reading its row, which is free again when it was the last."""
        row = self.of[slot]
        if row < 0:
            return
        self.of[slot] = -1
        self.readers[row].remove(slot)
        if not self.readers[row]:
            heapq.heappush(self._free, row)

    def part(self, slots: Sequence[int], drawn: Sequence[int]) -> list[tuple[int, int]]:
        """Let slots of one row that drew different tokens read different rows from here on; the
        copies that it takes, as (source, target)."""
        parts: dict[int, dict[int, list[int]]] = {}
        for slot, token in zip(slots, drawn, strict=True):
            row = self.of[slot]
            if len(self.readers[row]) > 1:
                parts.setdefault(row, {}).setdefault(token, []).append(slot)
        others = [(row, alike) for row, p in parts.items() for alike in list(p.values())[1:]]
        return [(row, self.open(alike)) for row, alike in others]

    def gather(self, rows: Collection[int], count: int) -> list[tuple[int, int]]:
        """Exchange rows so that `rows` all lie below `count`, at least as many; return the pairs.

        Each pair exchanges its contents and readers; what was free may be overwritten.
        """
        movers = [row for row in rows if row >= count]
        if not movers:
            return []
        taken = set(rows)
        holes = [row for row in range(count) if row not in taken][: len(movers)]
        pairs = list(zip(holes, sorted(movers), strict=True))
        readers = self.readers
        for hole, mover in pairs:
            readers[hole], readers[mover] = readers[mover], readers[hole]
            for row in (hole, mover):
                for slot in readers[row]:
                    self.of[slot] = row
        self._free = [row for row, slots in enumerate(readers) if not slots]
        return pairs
