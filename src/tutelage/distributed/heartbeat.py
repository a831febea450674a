"""Signs of life of the ranks while they train, so that none waits for ever for one that is gone.

A process that ends closes its connections, which the others notice. A machine that vanishes, or a
process that stands still, closes nothing, and gloo waits for it as long as it is let. So each rank
counts in the launcher's store, and looks at the others' counts while it waits for them; at other
times it needs none. What is counted is not the clock but looks at it: a rank that was stopped
itself does not take the others for silent.
"""

from __future__ import annotations

import atexit
import os
import platform
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

BEAT, QUIET, LOST = 5.0, 60.0, 600.0
"""Seconds between two signs of life, and without one until a rank is spoken of, and until the run
ends for it."""
_LEAVING = 1.0
"""Seconds that the end of the ranks' work waits for each thread here."""


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class Heartbeat:
    """This rank's signs of life, and what it sees of the others'."""

    def __init__(
        self,
        connect: Callable[[], Any],
        rank: int,
        size: int,
        *,
        beat: float = BEAT,
        quiet: float = QUIET,
        lost: float = LOST,
        tell: Callable[[str], None] = _tell,
        end: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        """Show the first sign in the store that `connect` gives, and gives again where a connection
        broke; `start` follows once all ranks have. `end` ends this process, whose threads may all
        be waiting for what does not come."""
        self.store, self._rank, self._size = connect(), rank, size
        self._connect, self._threads = connect, list[threading.Thread]()
        self._beat, self._quiet, self._lost = beat, quiet, lost
        self._tell, self._end = tell, end
        self._here = f"process {os.getpid()} on {platform.node()}"
        self._over = threading.Event()
        self._seen: dict[int, str] = {}
        self._silent = {other: 0.0 for other in range(size) if other != rank}
        """Seconds without a sign while this rank waits."""
        self._waiting = 0
        self._told, self._spoken = set[int](), set[int]()
        """Ranks that are silent as far as was told, and those of which this rank did tell."""
        self._number = 0
        self.show()

    def start(self) -> None:
        """Begin to show signs and to look at those of the others, until this process ends."""
        for work in (self.beat_once, self.look):  # a store may hold up the first for minutes
            thread = threading.Thread(
                target=self._every_beat, args=(work,), name="heartbeat", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        atexit.register(self.leave)

    def leave(self) -> None:
        """Show no more signs and look for none: what the ranks did together is over."""
        self._over.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_LEAVING)

    @contextmanager
    def waiting(self) -> Generator[None]:
        """While this rank needs the others."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._silent = dict.fromkeys(self._silent, 0.0)

    def _key(self, rank: int) -> str:
        return f"alive/{rank}"

    def show(self) -> None:
        """A sign of this rank's life. Raises `RuntimeError` where the store does not answer."""
        self.store.set(self._key(self._rank), f"{self._number} {self._here}")
        self._number += 1

    def read(self) -> None:
        """Read the signs of the others. Raises `RuntimeError` where the store does not answer."""
        others = list(self._silent)
        signs: list[bytes] = self.store.multi_get([self._key(other) for other in others])
        for other, sign in zip(others, signs, strict=True):
            if (now := sign.decode()) != self._seen.get(other):
                self._seen[other] = now
                self._silent[other] = 0.0

    def beat_once(self) -> None:
        """Show a sign and read the others'; a store that does not answer is as silent as they, and
        is connected to again, now and then: torch tells each failure at length."""
        try:
            self.show()
            self.read()
        except RuntimeError:
            if not self._over.wait(self._quiet / 2):
                with suppress(RuntimeError):
                    self.store = self._connect()

    def _every_beat(self, work: Callable[[], None]) -> None:
        while not self._over.wait(self._beat):
            work()

    def look(self) -> None:
        """One look: who is silent is spoken of by the first rank that is not, who also says that
        it is back, and in the end each ends itself."""
        if not self._waiting:
            return
        for other in self._silent:
            self._silent[other] += self._beat
        quiet = [other for other, seconds in self._silent.items() if seconds > self._quiet]
        first = all(other > self._rank for other in self._silent if other not in quiet)
        for other in self._silent:
            if (other in quiet) == (other in self._told):
                continue
            self._told ^= {other}
            if other in self._spoken:
                self._spoken.remove(other)
                self._tell(f"{self._name(other)} is back")
            elif first and other in quiet:
                self._spoken.add(other)
                self._tell(
                    f"{self._name(other)} has sent no heartbeat for {self._quiet:g} seconds; the "
                    f"run ends after {self._lost:g} seconds without one"
                )
        for other in quiet:
            if self._silent[other] > self._lost:
                self._tell(
                    f"{self._name(other)} has sent no heartbeat for {self._lost:g} seconds, so the "
                    "run ends; `tutelage resume` continues from its last checkpoint, on any number "
                    "of ranks"
                )
                self._end()
                return

    def _name(self, other: int) -> str:
        where = self._seen.get(other, "").partition(" ")[2]
        return f"rank {other} of {self._size}{', ' + where if where else ''}"
