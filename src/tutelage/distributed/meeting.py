"""How the ranks of one start find each other, and notice one that ends meanwhile.

A launcher's store is where they meet. torch waits there for a rank until its patience is over,
also for a dead one. So from when a rank has come until all are connected it shows signs of life
(`_Pulse`), and says what ends it; one without any for `QUIET` seconds counts as ended. Of a rank
that ends before it has come, its launcher says so under the key `LOST`: `ray_ranks.py` does, and
torchrun ends the others itself. `process_group.py` calls `meet` and works from there on.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self

BEAT, QUIET = 0.2, 10.0
"""Seconds between two signs of life, and without one until a rank counts as ended."""
LOST = "lost"
"""The key under which a launcher says which rank has ended, and why."""


class RankEndedError(RuntimeError):
    """A rank has ended before all were connected."""


class FirstRank:
    """Rank 0 as the others know it once all are connected: who it is, and whether it was killed.

    Whatever else ends it is told by itself (`tell_end`), so that one other rank can say what is
    otherwise said by nobody. A process on another machine is not asked about.
    """

    def __init__(self, store: Any, rank: int, connect: Callable[[], object]) -> None:
        """`connect` connects all ranks; by then rank 0 has told who it is."""
        self._store = store
        if rank == 0:
            store.set("first", f"{os.getpid()} {platform.node()}")
            atexit.register(self.tell_end)
        connect()
        pid, _, self._host = store.get("first").decode().partition(" ")
        self._pid = int(pid)

    def __str__(self) -> str:
        return f"process {self._pid} on {self._host}"

    def tell_end(self) -> None:
        """On rank 0: it ends by itself, and gives the reason."""
        with suppress(RuntimeError):  # who holds the store may have ended
            self._store.set("over", "")

    def was_killed(self) -> bool:
        """Whether it is gone without a word, which may take a moment to be seen."""
        until = time.monotonic() + QUIET
        while self._host == platform.node() and time.monotonic() < until:
            with suppress(RuntimeError):
                if self._store.check(["over"]):
                    return False
            try:
                os.kill(self._pid, 0)
            except ProcessLookupError:
                return True
            except PermissionError:
                return False
            time.sleep(BEAT)
        return False


def meet(store: Any, rank: int, size: int, join: Callable[[str], object], patience: float) -> None:
    """Call `join` on every rank, with a name that the ranks of this start agree on.

    Raises `RankEndedError` where one ends before `join` has returned on this one, `RuntimeError`
    where some do not come within `patience` seconds, and what `join` raises.
    """
    word = secrets.token_hex(8)
    with _Pulse(store.clone(), word):
        watch = _Watch(store.clone(), size)
        until = time.monotonic() + patience
        agreed = _answer if rank == 0 else _ask
        _watched(join, agreed(store, rank, size, word, watch, until), watch)


def _answer(store: Any, rank: int, size: int, word: str, watch: _Watch, until: float) -> str:
    """The name, on rank 0, once all ranks have it. A launcher's store keeps the values of ranks
    before a restart, so each asks with a word that nobody has used, and is answered under that."""
    words: dict[int, str] = {}
    while True:
        for other in range(1, size):
            if store.check([f"asks/{other}"]):
                words[other] = store.get(f"asks/{other}").decode()
                store.set(f"answer/{words[other]}", word)
        left = [r for r in range(1, size) if not store.check([f"known/{word}/{r}"])]
        if not left:
            watch.all_have_come(words)
            store.set(f"all/{word}", json.dumps(words))
            return word
        watch.check(words)
        if time.monotonic() > until:
            raise RuntimeError(f"rank {left[0]} did not connect")
        time.sleep(0.01)


def _ask(store: Any, rank: int, size: int, word: str, watch: _Watch, until: float) -> str:
    """The name, on another rank, as rank 0 answers, once all have come."""
    store.set(f"asks/{rank}", word)
    while not store.check([f"answer/{word}"]):
        if time.monotonic() > until:
            raise RuntimeError("rank 0 did not connect")
        time.sleep(0.01)
    name: str = store.get(f"answer/{word}").decode()
    store.set(f"known/{name}/{rank}", "")
    while not store.check([f"all/{name}"]):
        watch.check({0: name})
        if time.monotonic() > until:
            raise RuntimeError("another rank did not connect")
        time.sleep(0.01)
    words: dict[str, str] = json.loads(store.get(f"all/{name}"))
    others = {int(other): theirs for other, theirs in words.items() if int(other) != rank}
    watch.all_have_come({0: name, **others})
    return name


def _watched(join: Callable[[str], object], name: str, watch: _Watch) -> None:
    """Do what may wait for ranks that have ended, in a thread that is then left behind."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            join(name)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, name="join-ranks", daemon=True)
    thread.start()
    while thread.is_alive():
        watch.check({})
        thread.join(BEAT)
    if raised:
        raise raised[0]


class _Pulse:
    """Signs of this rank's life in a store, until the end of a block."""

    def __init__(self, store: Any, word: str) -> None:
        self._store, self._word = store, word
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> Self:
        self._store.set(f"pulse/{self._word}", f"0 {_here()}")
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._over.set()
        self._thread.join()
        with suppress(RuntimeError):  # who holds the store may have ended
            reason = "" if error is None else f"{_here()}: {error}".partition("\n")[0]
            self._store.set(f"ended/{self._word}", reason)

    def _beat(self) -> None:
        number = 1
        with suppress(RuntimeError):
            while not self._over.is_set():
                self._store.set(f"pulse/{self._word}", f"{number} {_here()}")
                number += 1
                self._over.wait(BEAT)


class _Watch:
    """What is known of other ranks' lives."""

    def __init__(self, store: Any, size: int) -> None:
        self._store, self._size = store, size
        self._words: dict[int, str] = {}
        self._seen: dict[str, tuple[str, float, bool]] = {}
        """By word: its last sign of life, when that was seen first, and whether it was another
        before. One that never moved may be of before a restart, until all have come."""
        self._next, self._all = 0.0, False

    def all_have_come(self, words: Mapping[int, str]) -> None:
        """All ranks of this start are there, and these are their words: each that connects needs
        every other one."""
        self._words, self._all = {**words}, True

    def check(self, words: Mapping[int, str]) -> None:
        """Raise `RankEndedError` where one of these ranks, or of those given before, has ended."""
        self._words |= words
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + BEAT * max(1.0, self._size / 8)  # for a store that serves many ranks
        if self._store.check([LOST]):
            raise RankEndedError(self._store.get(LOST).decode())
        for rank, word in self._words.items():
            self._check(rank, word, now)

    def _check(self, rank: int, word: str, now: float) -> None:
        name = f"rank {rank} of {self._size}"
        if self._store.check([f"ended/{word}"]):
            if reason := self._store.get(f"ended/{word}").decode():
                raise RankEndedError(f"{name}, {reason}")
            return
        if not self._store.check([f"pulse/{word}"]):
            return
        beat: str = self._store.get(f"pulse/{word}").decode()
        last, since, moved = self._seen.get(word, (beat, now, False))
        if beat != last:
            since, moved = now, True
        self._seen[word] = beat, since, moved
        if (moved or self._all) and now - since > QUIET:
            where = beat.partition(" ")[2]
            raise RankEndedError(f"{name}, {where}: no heartbeat for {QUIET:g} seconds")


def _here() -> str:
    return f"process {os.getpid()} on {platform.node()}"
