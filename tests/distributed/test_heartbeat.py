"""A rank that neither works nor ends: it is spoken of, and ends the run when it stays silent."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

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
        return Heartbeat(store, rank, size, beat=1.0, quiet=2.0, lost=4.0, tell=tell, end=end)

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
    assert told[1].endswith(" shows no sign of life; the run waits 4 seconds for it")
    assert not ranks.ended
    ranks.look(1, 1, 2)
    assert ranks.ended == [1, 2]
    for _, text in ranks.told[1:]:
        assert "so the run ends here; `tutelage resume` goes on from its last checkpoint" in text
    assert len(ranks.told) == 3


def test_a_rank_that_comes_back_is_told_and_waited_for_anew() -> None:
    ranks = Ranks(2)
    ranks.look(4, 0)
    ranks.look(3, 0, 1)
    assert [text.rpartition(" ")[2] for _, text in ranks.told] == ["it", "back"]
    ranks.look(3, 0)
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


def test_a_store_that_does_not_answer_is_as_silent_as_the_ranks() -> None:
    ranks = Ranks(2)

    class Gone:
        def set(self, *_: object) -> None:
            raise RuntimeError("Connection reset by peer")

    ranks.ranks[1].store = Gone()
    for _ in range(5):
        ranks.ranks[1].beat_once()
        ranks.ranks[1].look()
    assert ranks.ended == [1]


def stand_still_on_the_second(place: Path) -> None:
    process_group.Heartbeat = partial(Heartbeat, beat=0.05, quiet=0.3, lost=1.0)  # pyright: ignore[reportAttributeAccessIssue]
    group = launched()
    if group.rank:
        (place / "still").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    group.agree(lambda: group.map(range(2), lambda i: i))


def test_a_process_that_stands_still_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    with started(2, tmp_path, stand_still_on_the_second, tmp_path) as ranks:
        ranks.processes[0].join(60.0)
        assert ranks.processes[0].exitcode == 1
        ranks.kill(1)
    pid = ranks.processes[1].pid
    assert f"rank 1 of 2, process {pid} on " in ranks.said(0)
    assert "shows no sign of life; the run waits 1 seconds" in ranks.said(0)
    assert "so the run ends here" in ranks.said(0)
