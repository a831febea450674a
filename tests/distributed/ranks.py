"""Ranks in processes of a test, forked from a server that has torch loaded: seconds, not minutes.

`together(2, work, ...)` calls `work` in each of two processes that stand as torchrun's children do,
with a store of this process in place of the agent's, at a port that nobody else has.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.system.command import PATIENCE, PRELOADED

_OWN = ("tutelage.distributed.process_group", "torch.distributed.fsdp", __name__)


class Ranks:
    """Processes that work together."""

    def __init__(self, processes: list[Any], folder: Path, store: Any) -> None:
        self.processes, self._folder, self._store = processes, folder, store

    def said(self, rank: int) -> str:
        """What a rank wrote to its error stream."""
        return (self._folder / f"{rank}.err").read_text(errors="replace")

    def shown(self, rank: int) -> str:
        """What a rank wrote to its standard output."""
        return (self._folder / f"{rank}.out").read_text(errors="replace")

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait for something that they do."""
        limit = time.monotonic() + PATIENCE
        while not ready():
            assert time.monotonic() < limit, self._all()
            assert all(p.is_alive() for p in self.processes), self._all()
            time.sleep(0.005)

    def kill(self, rank: int) -> None:
        """SIGKILL to one of them, unless it has ended."""
        self.processes[rank].kill()

    def end(self) -> list[int]:
        """Wait for the end of all; their exit codes."""
        for process in self.processes:
            process.join(PATIENCE)
        left = [process for process in self.processes if process.is_alive()]
        for process in left:
            os.kill(process.pid, signal.SIGUSR1)  # which has it write where it stands
            process.join(1.0)
            process.kill()
        assert not left, self._all()
        return [process.exitcode for process in self.processes]

    def check(self) -> None:
        """All end well."""
        codes = self.end()
        assert codes == [0] * len(codes), self._all()

    def _all(self) -> str:
        return "\n".join(f"--- {r}\n{self.said(r)}" for r in range(len(self.processes)))


@contextmanager
def started(
    size: int, folder: Path, work: Callable[..., None], *args: Any, **env: str
) -> Generator[Ranks]:
    """Start `work(*args)` on each of so many ranks, which write to `folder`."""
    import torch.distributed

    c10d: Any = torch.distributed
    folder.mkdir(parents=True, exist_ok=True)
    store = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, *_OWN])
    processes: list[Any] = []
    for rank in range(size):
        values = {
            "WORLD_SIZE": str(size),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
            **env,
        }
        process = context.Process(
            target=_main, args=(rank, folder, values, work, args), daemon=True
        )
        process.start()
        processes.append(process)
    ranks = Ranks(processes, folder, store)
    try:
        yield ranks
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join(PATIENCE)


def together(size: int, folder: Path, work: Callable[..., None], *args: Any, **env: str) -> Ranks:
    """Run `work(*args)` on each of so many ranks to a good end."""
    with started(size, folder, work, *args, **env) as ranks:
        ranks.check()
    return ranks


def _main(
    rank: int, folder: Path, env: dict[str, str], work: Callable[..., None], args: tuple[Any, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(env)
    for number, name in ((1, "out"), (2, "err")):
        opened = os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    faulthandler.register(signal.SIGUSR1)
    import torch

    torch.set_num_threads(1)
    try:
        work(*args)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
