"""Run rewards in worker processes, so that one that hangs can be killed.

A thread cannot be stopped, and a regular expression that backtracks for hours does not release the
interpreter. `RewardLocation.locate` decides if a reward can run in a worker: it must be a plain
function that another process can import by file or module and name, so it may not be defined inside
another function or in the main program. One pool for the whole process keeps the workers. Each
grades one attempt after another with the folder, environment and search path of the caller, ends
with this process, and is replaced after it was killed. This module implements both sides;
`function.py` selects the rewards that run here.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import inspect
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from tutelage.errors import GraderError, RewardError
from tutelage.rewards.failures import convert_error
from tutelage.rewards.values import to_reward
from tutelage.tools.loading import USER_MODULE, load_file
from tutelage.types import Reward

MAX_WORKERS = 4
"""Maximum number of workers at a time."""
START_SECONDS = 300.0
"""Timeout for starting a worker and loading a reward, in addition to the reward's own timeout."""
_ORPHAN_SECONDS = 2.0
"""Interval at which a worker checks that its parent is alive."""
_BOOT = "from tutelage.rewards.worker import main; main({})"


@dataclass(frozen=True, slots=True)
class RewardLocation:
    """Import location of a reward function. `file` is empty for importable modules."""

    module: str
    name: str
    file: str = ""

    @classmethod
    def locate(cls, fn: Any) -> RewardLocation | None:
        """Return a function's import location, or None if another process cannot import it."""
        module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "")
        if os.name != "posix" or not module or module == "__main__" or "<" in name:
            return None
        try:
            target = reduce(getattr, name.split("."), sys.modules[module])
        except (KeyError, AttributeError):
            return None
        file = getattr(sys.modules[module], "__file__", None) or ""
        location = cls(module, name, file if module.startswith(USER_MODULE) else "")
        return location if getattr(target, "fn", target) is fn else None

    def load(self) -> Any:
        """Import the reward. Raises `RuntimeError` if its file has changed since the start."""
        module = (
            load_file(self.file, "reward") if self.file else importlib.import_module(self.module)
        )
        if module.__name__ != self.module:
            raise RuntimeError(f"{self.file} has changed since the run started")
        target: Any = reduce(getattr, self.name.split("."), module)
        return getattr(target, "fn", target)


@dataclass(frozen=True, slots=True)
class RewardJob:
    """Job of a worker: a reward, its pickled arguments, and names for messages."""

    location: RewardLocation
    arguments: bytes
    name: str
    task_id: str
    seconds: float | None


class _RewardProcess:
    """Worker process with the pipe to it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.pipe, child_pipe = Pipe()
        with child_pipe:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT.format(child_pipe.fileno())],
                pass_fds=[child_pipe.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # prints of rewards go to stderr
                start_new_session=True,
                env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def receive(self, seconds: float | None) -> Any:
        """Wait for the worker's next message. Raises `TimeoutError`, and `OSError` or `EOFError` if
        the worker has ended."""
        if not self.pipe.poll(seconds):
            raise TimeoutError
        return self.pipe.recv()

    def end(self) -> int:
        """Kill the worker and its child processes, and return the exit code."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self.pipe.close()
        return self._process.wait()


class RewardProcesses:
    """Pool of at most `max_workers` worker processes for rewards.

    A forked child starts with an empty pool. Workers start with the variables of `environment` in
    addition to those of this process.
    """

    def __init__(self, max_workers: int = MAX_WORKERS, **environment: str) -> None:
        self._max_workers, self._environment = max_workers, environment
        self._reset()
        atexit.register(self.close)
        if os.name == "posix":
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._free = threading.BoundedSemaphore(self._max_workers)
        self._idle: list[_RewardProcess] = []

    def grade(self, job: RewardJob) -> Reward:
        """Run a reward in a worker and wait for the result. A crashed worker is retried once.

        Raises the reward's `RewardError`, `TimeoutError`, `GraderError` if two workers crashed, and
        `ImportError` if a worker cannot load the reward.
        """
        code = 0
        for _ in range(2):
            with self._free:
                try:
                    worker = self._idle.pop()
                except IndexError:
                    worker = _RewardProcess(self._environment)
                keep = False
                try:
                    worker.pipe.send((job, os.getcwd(), dict(os.environ), list(sys.path)))
                    load_error = worker.receive(START_SECONDS)
                    result: Any = worker.receive(job.seconds) if load_error is None else None
                    keep = True
                except TimeoutError:
                    raise
                except (EOFError, OSError):
                    continue
                finally:
                    if keep:
                        self._idle.append(worker)
                    else:
                        code = worker.end()
            if load_error is not None:
                raise ImportError(load_error)
            if isinstance(result, Reward):
                return result
            error, trace = result
            raise error from RuntimeError(f"\n{trace}")
        raise GraderError(
            f"reward {job.name!r} on task {job.task_id!r}: its process crashed twice, last with "
            f"exit code {code}"
        )

    def close(self) -> None:
        """Kill the idle workers. Busy workers end after this process has ended."""
        while self._idle:
            self._idle.pop().end()


POOL = RewardProcesses()


def main(handle: int) -> None:
    """Run the worker loop: receive jobs and send results until the pipe is closed."""
    os.set_inheritable(handle, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    pipe = Connection(handle)
    with suppress(EOFError, OSError):
        while True:
            job, folder, environment, path = pipe.recv()
            try:
                os.chdir(folder)
                os.environ.clear()
                os.environ.update(environment)
                sys.path[:] = path
                fn, arguments = job.location.load(), pickle.loads(job.arguments)
            except BaseException as error:
                pipe.send(f"{type(error).__name__}: {error}")
                continue
            pipe.send(None)
            try:
                try:
                    value = fn(**arguments)
                    value = asyncio.run(value) if inspect.iscoroutine(value) else value
                except BaseException as error:
                    raise convert_error(error, job.name, job.task_id) from error
                pipe.send(to_reward(value, job.name, job.task_id))
            except RewardError as error:
                pipe.send((error, traceback.format_exc()))


def end_with_parent(parent: int) -> None:
    """Wait for the end of the parent process, then kill this process group."""
    while os.getppid() == parent:
        time.sleep(_ORPHAN_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(0, signal.SIGKILL)
