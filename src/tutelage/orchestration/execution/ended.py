"""The nodes of a running plan that have ended, and how that was at any moment.

A router sees at each choice what had ended by then. A copy for each would be quadratic in the nodes
of a plan, so what it sees is the first entries of mappings that only grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

V = TypeVar("V")


class _Until(Mapping[int, V]):
    """The entries of a growing mapping as they are now; `places` says which came when."""

    def __init__(self, whole: Mapping[int, V], places: Mapping[int, int]) -> None:
        self._whole, self._places, self._count = whole, places, len(places)

    def __getitem__(self, node: int) -> V:
        if self._places[node] >= self._count:
            raise KeyError(node)
        return self._whole[node]

    def __iter__(self) -> Iterator[int]:
        # Entries that come while somebody goes through these must not disturb it.
        return iter(tuple(islice(self._whole, self._count)))

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return repr(dict(self))


class EndedNodes:
    """Which nodes ended, in their order, with an output or without, and when."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._kept: dict[int, bool] = {}
        self._ends: dict[int, float] = {}

    def add(self, node: int, kept: bool, seconds: float, parents: Iterable[int] = ()) -> None:
        """A node ended, which took so long after its parents. One whose arguments are wrong ends
        before those that it takes from."""
        self._places[node] = len(self._places)
        before = max((self._ends.get(parent, 0.0) for parent in parents), default=0.0)
        self._kept[node], self._ends[node] = kept, before + seconds

    def done(self) -> Mapping[int, bool]:
        """The nodes that have ended by now, and whether each has an output."""
        return _Until(self._kept, self._places)

    def ends(self) -> Mapping[int, float]:
        """Where each of them lies along its longest chain."""
        return _Until(self._ends, self._places)
