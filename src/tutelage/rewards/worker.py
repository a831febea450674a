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
import json
import logging
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
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from tutelage.errors import AnswerError, GraderError, RewardError, RewardTimeoutError
from tutelage.rewards.failures import failure_of
from tutelage.rewards.values import to_reward
from tutelage.tools.execute import call_in_thread
from tutelage.tools.loading import USER_MODULE, load_attribute
from tutelage.types import Reward

MOST = 8
"""Workers at once."""
PATIENCE = 0.25
"""Seconds that an attempt waits for a worker before another one is started. While one loads a
reward none is, and then the wait begins again: one that imports much takes seconds and 200 MB."""
START_SECONDS = 300.0
"""For a worker to start, and to load a reward: neither is part of the reward's own time."""
_ORPHAN_SECONDS = 2.0
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from tutelage.rewards.worker import main; main(int(sys.argv[1]))"
)
_KINDS = {kind.__name__: kind for kind in (RewardError, AnswerError, GraderError)}

logger = logging.getLogger(__name__)


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
            found = _attribute(sys.modules[module], name)
        except (KeyError, AttributeError):
            return None
        if found is not fn and getattr(found, "fn", None) is not fn:
            return None
        file = getattr(sys.modules[module], "__file__", None) or ""
        return cls(module, name, file if module.startswith(USER_MODULE) else "")


@dataclass(frozen=True, slots=True)
class _Graded:
    """What a reward said of one attempt: a number with its parts, or why there is none."""

    value: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    error: tuple[str, str, str] | None = None
    """Kind, message and traceback."""


class _RemoteTraceback(Exception):
    """Carries a worker's traceback as the cause of an error here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _attribute(found: Any, name: str) -> Any:
    for part in name.split("."):
        found = getattr(found, part)
    return found


# ---------------------------------------------------------------- this side


class _Job:
    """An attempt to grade, and the worker that does it."""

    def __init__(self, place: RewardLocation, arguments: bytes, name: str, task_id: str) -> None:
        self.said = (place, arguments, name, task_id)
        self.name, self.task_id = name, task_id
        self._lock = threading.Lock()
        self._worker: _RewardProcess | None = None
        self._abandoned = False

    def begin(self, worker: _RewardProcess) -> None:
        with self._lock:
            self._worker = worker
            if self._abandoned:
                worker.kill()

    def end(self) -> None:
        with self._lock:
            self._worker = None

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            if self._worker is not None:
                self._worker.kill()


class _RewardProcess:
    """One process and the pipe to it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._pipe, theirs = Pipe()
        words = [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path)]
        try:
            self._process = subprocess.Popen(
                words,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a reward prints is no output of this program
                start_new_session=True,
                env={**os.environ, **environment},
            )
        finally:
            theirs.close()
        self._told: tuple[Any, ...] = ()
        self.loaded: set[RewardLocation] = set()
        """Rewards that it has loaded before."""

    def load(self, job: _Job) -> None:
        """Send what to grade, and wait until the reward is loaded. Raises `ImportError`,
        and OSError or EOFError where the worker ended."""
        now = (os.getcwd(), dict(os.environ), list(sys.path))
        self._pipe.send((job.said, None if now == self._told else now))
        self._told = now
        refused = self.receive(START_SECONDS)
        if refused is not None:
            raise ImportError(refused)
        self.loaded.add(job.said[0])

    def receive(self, seconds: float | None) -> Any:
        """What it says next: whether it could load the reward, then what the reward said. Raises
        `TimeoutError`, and OSError or EOFError where the worker ended."""
        if not self._pipe.poll(seconds):
            raise TimeoutError
        return self._pipe.recv()

    def kill(self) -> None:
        """End it with everything that it started; the pipe then ends too."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def bury(self) -> int:
        """The exit code of a worker that is ending."""
        self.kill()
        code = self._process.wait()
        self._pipe.close()
        return code


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
        self._changed = threading.Condition()
        self._idle: list[_RewardProcess] = []
        self._count = 0
        self._loading = 0
        self._loaded_at = float("-inf")

    async def grade_apart(
        self,
        place: RewardLocation,
        arguments: bytes,
        name: str,
        task_id: str,
        timeout: float | None,
    ) -> Reward:
        """Grade in a worker. Raises what the reward raised, and as `grade`. Cancelling kills the
        worker."""
        job = _Job(place, arguments, name, task_id)
        try:
            graded = await call_in_thread(lambda: self._run(job, timeout))
        except asyncio.CancelledError:
            job.abandon()
            raise
        if graded.error is not None:
            kind, message, trace = graded.error
            raise _KINDS[kind](message) from _RemoteTraceback(trace)
        return Reward(graded.value, graded.parts)

    def grade(
        self,
        place: RewardLocation,
        arguments: bytes,
        name: str,
        task_id: str,
        timeout: float | None,
    ) -> _Graded:
        """The same for a caller in a thread. Raises `RewardTimeoutError`, `GraderError` when the
        worker died twice, and `ImportError` where it
        cannot load the reward."""
        return self._run(_Job(place, arguments, name, task_id), timeout)

    def _run(self, job: _Job, timeout: float | None) -> _Graded:
        """Grade, with another worker where one died of something else."""
        code = 0
        for _ in range(2):
            worker = self._take()
            job.begin(worker)
            keep = False
            try:
                first = job.said[0] not in worker.loaded
                try:
                    worker.load(job)
                finally:
                    self._loaded(first)
                graded: _Graded = worker.receive(timeout)
                keep = True
                return graded
            except ImportError:
                keep = True
                raise
            except TimeoutError:
                raise RewardTimeoutError(timeout_message(job.name, job.task_id, timeout)) from None
            except (EOFError, OSError):
                code = worker.bury()
            finally:
                job.end()
                self._give(worker, keep)
        raise GraderError(
            f"reward {job.name!r} on task {job.task_id!r}: its process crashed twice, last with "
            f"exit code {code}"
        )

    def _take(self) -> _RewardProcess:
        with self._changed:
            began = time.monotonic()
            while not self._idle:
                waited = time.monotonic() - max(began, self._loaded_at)
                more = waited >= PATIENCE and not self._loading and self._count < self._most
                if self._count == 0 or more:
                    self._count += 1
                    break
                self._changed.wait(PATIENCE)
            self._loading += 1
            if self._idle:
                return self._idle.pop()
        try:
            return _RewardProcess(self._environment)
        except BaseException:
            self._loaded(first=False)
            self._give(None, False)
            raise

    def _loaded(self, first: bool) -> None:
        with self._changed:
            self._loading -= 1
            if first:
                self._loaded_at = time.monotonic()

    def _give(self, worker: _RewardProcess | None, keep: bool) -> None:
        if worker is not None and not keep:
            worker.bury()
        with self._changed:
            if worker is not None and keep:
                self._idle.append(worker)
            else:
                self._count -= 1
            self._changed.notify()

    def close(self) -> None:
        """End the workers that are idle; the others end when they see that this process has."""
        with self._changed:
            while self._idle:
                self._idle.pop().bury()
                self._count -= 1


def timeout_message(name: str, task_id: str, timeout: float | None) -> str:
    """What to say of a reward that took too long."""
    return (
        f"reward {name!r} on task {task_id!r} timed out after {timeout:g} seconds; raise "
        "agent.reward_timeout"
    )


POOL = RewardProcesses()


# ---------------------------------------------------------------- the worker's side


def main(handle: int) -> None:
    """The worker: jobs in, results out, until the other end is gone."""
    os.set_inheritable(handle, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    pipe = Connection(handle)
    while True:
        try:
            (place, arguments, name, task_id), surroundings = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            if surroundings is not None:
                folder, environment, path = surroundings
                os.chdir(folder)
                os.environ.clear()
                os.environ.update(environment)
                sys.path[:] = path
            fn, given = _load(place), pickle.loads(arguments)
        except BaseException as error:
            pipe.send(f"{type(error).__name__}: {error}")
            continue
        pipe.send(None)
        pipe.send(_grade(fn, given, name, task_id))


def _load(place: RewardLocation) -> Any:
    if not place.file:
        found = _attribute(importlib.import_module(place.module), place.name)
    else:
        head, _, rest = place.name.partition(".")
        found = load_attribute(f"{place.file}:{head}", "reward")
        if place.module not in sys.modules:
            raise RuntimeError(f"{place.file} has changed since the run started")
        found = _attribute(found, rest) if rest else found
    return getattr(found, "fn", found)


def _grade(fn: Any, arguments: Mapping[str, Any], name: str, task_id: str) -> _Graded:
    try:
        try:
            value = fn(**arguments)
            if inspect.isawaitable(value):
                value = asyncio.run(_awaited(value))
        except BaseException as error:
            raise failure_of(error, name, task_id) from error
        reward = to_reward(value, name, task_id)
        return _Graded(reward.value, dict(reward.parts))
    except RewardError as error:
        kind = next(k for k in type(error).__mro__ if k.__name__ in _KINDS).__name__
        return _Graded(error=(kind, str(error), traceback.format_exc()))


async def _awaited(value: Any) -> Any:
    return await value


def _end_with(parent: int) -> None:
    """End with the process that started this one, also in the middle of a reward."""
    while os.getppid() == parent:
        time.sleep(_ORPHAN_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(0, signal.SIGKILL)
