"""A rank that neither works nor ends: it is spoken of, and ends the run when it stays silent."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from tutelage.distributed import process_group
from tutelage.distributed.heartbeat import Heartbeat
from tutelage.weights.process_group import launched

from .ranks import started

STORE: Any = torch.distributed


class Ranks:
    """Heartbeats over one store, of which a test takes each look."""

    def __init__(self, size: int) -> None:
        store = STORE.HashStore()
        self.told: list[tuple[int, str]] = []
        self.ended: list[int] = []
        self.ranks = [self._rank(store, rank, size) for rank in range(size)]
        for rank in self.ranks:
            rank.read()
        self.waits = [rank.waiting() for rank in self.ranks]
        for wait in self.waits:
            wait.__enter__()

    def _rank(self, store: Any, rank: int, size: int) -> Heartbeat:
        def tell(text: str) -> None:
            self.told.append((rank, text))

        end = partial(self.ended.append, rank)
        return Heartbeat(
            lambda: store, rank, size, beat=1.0, quiet=2.0, lost=4.0, tell=tell, end=end
        )

    def look(self, times: int, *alive: int) -> None:
        """So many looks of the ranks that live, each after signs of theirs."""
        for _ in range(times):
            for rank in alive:
                self.ranks[rank].show()
            for rank in alive:
                self.ranks[rank].read()
                self.ranks[rank].look()


def test_the_first_that_lives_speaks_of_a_silent_rank_and_all_end() -> None:
    ranks = Ranks(3)
    ranks.look(5, 0, 1, 2)
    assert not ranks.told
    ranks.look(3, 1, 2)
    (told,) = ranks.told
    assert told[0] == 1
    assert f"rank 0 of 3, process {os.getpid()} on " in told[1]
    assert told[1].endswith(
        " has sent no heartbeat for 2 seconds; the run ends after 4 seconds without one"
    )
    assert not ranks.ended
    ranks.look(1, 1, 2)
    assert ranks.ended == [1, 2]
    for _, text in ranks.told[1:]:
        assert "so the run ends; `tutelage resume` continues from its last checkpoint" in text
    assert len(ranks.told) == 3


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_that_comes_back_is_told_and_waited_for_anew(size: int) -> None:
    """By the one that spoke of it, the first rank among them."""
    for silent in range(size):
        ranks = Ranks(size)
        others = [rank for rank in range(size) if rank != silent]
        ranks.look(4, *others)
        ranks.look(3, *range(size))
        assert [rank for rank, _ in ranks.told] == [others[0]] * 2
        (_, silence), (_, returned) = ranks.told
        assert "ends after 4 seconds" in silence
        assert returned.endswith("is back")
        ranks.look(3, *others)
        assert not ranks.ended


def test_who_does_not_wait_for_the_others_needs_no_signs_of_theirs() -> None:
    ranks = Ranks(2)
    ranks.look(3, 0)
    ranks.waits[0].__exit__(None, None, None)
    ranks.look(20, 0)
    assert (len(ranks.told), ranks.ended) == (1, [])
    with ranks.ranks[0].waiting():
        ranks.look(4, 0)
        assert not ranks.ended
        ranks.look(1, 0)
        assert ranks.ended == [0]


def test_a_connection_that_breaks_is_made_again() -> None:
    """Until then the store is as silent as the ranks are."""

    class Broken:
        def set(self, *_: object) -> None:
            raise RuntimeError("Connection reset by peer")

    good, told = STORE.HashStore(), list[str]()
    beat = Heartbeat(
        lambda: good,
        1,
        2,
        beat=1.0,
        quiet=0.0,
        lost=4.0,
        tell=told.append,
        end=lambda: told.append("ended"),
    )
    good.set("alive/0", "0 process 7 on there")
    beat.store = Broken()
    with beat.waiting():
        beat.look()
        assert "rank 0 of 2 has sent no heartbeat" in told[0]
        beat.beat_once()
        assert beat.store is good
        beat.beat_once()
        beat.look()
        assert "ended" not in told


def test_who_leaves_waits_for_its_threads() -> None:
    beat = Heartbeat(STORE.HashStore, 0, 1, beat=0.001)
    beat.start()
    beat.leave()
    assert not [t for t in threading.enumerate() if t.name == "heartbeat"]


def stand_still_on_the_second(place: Path) -> None:
    process_group.Heartbeat = partial(Heartbeat, beat=0.05, quiet=0.3, lost=1.0)  # pyright: ignore[reportAttributeAccessIssue]
    group = launched()
    if group.rank:
        (place / "still").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    group.agree(lambda: group.map(range(2), lambda i: i))


@pytest.mark.full
def test_a_process_that_stands_still_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    with started(2, tmp_path, stand_still_on_the_second, tmp_path) as ranks:
        ranks.processes[0].join(60.0)
        assert ranks.processes[0].exitcode == 1
        ranks.kill(1)
    pid = ranks.processes[1].pid
    assert f"rank 1 of 2, process {pid} on " in ranks.said(0)
    assert "has sent no heartbeat for 0.3 seconds; the run ends after" in ranks.said(0)
    assert "so the run ends" in ranks.said(0)
