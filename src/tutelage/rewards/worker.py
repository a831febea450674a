"""Rewards in processes of their own, so that one that hangs can be ended.

A thread cannot be stopped, and a regular expression that backtracks for hours does not even let go
of the interpreter; a process can be killed. `RewardLocation.of` says whether a reward can go there:
it is a plain function that another process finds again, by its file and name or by its module and
name, and none that is defined inside another function or in the program that was started. A pool
for the whole process keeps workers: each grades one attempt after another, has the surroundings
(folder, environment, search path) of the calling process, ends with this process, and is replaced
when it had to be killed. This module is both ends; `function.py` decides what comes here.
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
from tutelage.rewards.failures import failure_of
from tutelage.rewards.values import to_reward
from tutelage.tools.loading import USER_MODULE, load_file
from tutelage.types import Reward

MOST = 4
"""Workers at once."""
START_SECONDS = 300.0
"""For a worker to start, and to load a reward: neither is part of the reward's own time."""
_ORPHAN_SECONDS = 2.0
"""How often a worker looks whether its parent is alive."""
_BOOT = "from tutelage.rewards.worker import main; main({})"


@dataclass(frozen=True, slots=True)
class RewardLocation:
    """Where another process finds a reward: `file` is empty for what can be imported."""

    module: str
    name: str
    file: str = ""

    @classmethod
    def of(cls, fn: Any) -> RewardLocation | None:
        """Where another process would find this function; None where it would not."""
        module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "")
        if os.name != "posix" or not module or module == "__main__" or "<" in name:
            return None
        try:
            found = reduce(getattr, name.split("."), sys.modules[module])
        except (KeyError, AttributeError):
            return None
        file = getattr(sys.modules[module], "__file__", None) or ""
        here = cls(module, name, file if module.startswith(USER_MODULE) else "")
        return here if getattr(found, "fn", found) is fn else None

    def load(self) -> Any:
        """Import the function; a file that has changed since the run started is refused."""
        module = (
            load_file(self.file, "reward") if self.file else importlib.import_module(self.module)
        )
        if module.__name__ != self.module:
            raise RuntimeError(f"{self.file} has changed since the run started")
        found: Any = reduce(getattr, self.name.split("."), module)
        return getattr(found, "fn", found)


@dataclass(frozen=True, slots=True)
class RewardJob:
    """An attempt to grade: the reward's pickled arguments, and its name and task for messages."""

    place: RewardLocation
    arguments: bytes
    name: str
    task_id: str
    seconds: float | None


class _RemoteTraceback(Exception):
    """Carries a worker's traceback as the cause of an error here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _RewardProcess:
    """A worker process and the pipe to it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT.format(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a reward prints is no output of this program
                start_new_session=True,
                env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def receive(self, seconds: float | None) -> Any:
        """Return the next message. Raises `TimeoutError`, and OSError or EOFError where the worker
        ended."""
        if not self.pipe.poll(seconds):
            raise TimeoutError
        return self.pipe.recv()

    def end(self) -> int:
        """Kill it with everything that it started; returns the exit code."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self.pipe.close()
        return self._process.wait()


class RewardProcesses:
    """Workers of this process, at most `most` at once; a forked child begins with none. They start
    with the variables of `environment` beside those of this process."""

    def __init__(self, most: int = MOST, **environment: str) -> None:
        self._most, self._environment = most, environment
        self._begin()
        atexit.register(self.close)
        if os.name == "posix":
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._free = threading.BoundedSemaphore(self._most)
        self._idle: list[_RewardProcess] = []

    def grade(self, job: RewardJob) -> Reward:
        """Grade in a worker, in another one where the first crashed; for a caller in a thread.

        Raises what the reward raised, `TimeoutError`, `GraderError` when two workers crashed, and
         `ImportError` where a worker cannot load the reward.
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
                    refused = worker.receive(START_SECONDS)
                    graded: Any = worker.receive(job.seconds) if refused is None else None
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
            if refused is not None:
                raise ImportError(refused)
            if isinstance(graded, Reward):
                return graded
            error, trace = graded
            raise error from _RemoteTraceback(trace)
        raise GraderError(
            f"reward {job.name!r} on task {job.task_id!r}: its process crashed twice, last with "
            f"exit code {code}"
        )

    def close(self) -> None:
        """End the workers that are idle; the others end when they see that this process has."""
        while self._idle:
            self._idle.pop().end()


POOL = RewardProcesses()


def main(handle: int) -> None:
    """Run as the worker: jobs in, results out, until the other end is gone."""
    os.set_inheritable(handle, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    pipe = Connection(handle)
    with suppress(EOFError, OSError):
        while True:
            job, folder, environment, path = pipe.recv()
            try:
                os.chdir(folder)
                os.environ.clear()
                os.environ.update(environment)
                sys.path[:] = path
                fn, arguments = job.place.load(), pickle.loads(job.arguments)
            except BaseException as error:
                pipe.send(f"{type(error).__name__}: {error}")
                continue
            pipe.send(None)
            try:
                try:
                    value = fn(**arguments)
                    value = asyncio.run(value) if inspect.iscoroutine(value) else value
                except BaseException as error:
                    raise failure_of(error, job.name, job.task_id) from error
                pipe.send(to_reward(value, job.name, job.task_id))
            except RewardError as error:
                pipe.send((error, traceback.format_exc()))


def end_with(parent: int) -> None:
    """End this process and what it started with the one that started it, whatever it is doing."""
    while os.getppid() == parent:
        time.sleep(_ORPHAN_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(0, signal.SIGKILL)
