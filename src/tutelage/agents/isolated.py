"""Agents in separate processes, for code that blocks, leaks or crashes.

Workers are spawned (not forked from a process with threads), import the agent once, and play one
rollout after another. Each leads its own process group: a stopped rollout kills its worker and all
processes that the agent started, and the next rollout gets a new worker. A worker ends when this
process ends. Models are reached over HTTP; rewards, marks and the answer are returned after the
rollout. `agent.py` has the interface.
"""

from __future__ import annotations

import asyncio
import contextvars
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tutelage.agents.agent import Agent, AgentFailedError
from tutelage.agents.session import RolloutSession, enter_rollout
from tutelage.errors import ConfigError, EngineError
from tutelage.resources import LLM, NamedResources
from tutelage.rewards.failures import exception_text
from tutelage.rewards.worker import end_with_parent
from tutelage.tools.execute import call_in_thread
from tutelage.tools.loading import USER_MODULE, load_module
from tutelage.types import Task

_RETURNED_FIELDS = ("emitted", "marked", "answer", "stop", "feedback")
"""Fields of a session that a worker returns."""


_WorkerResult = tuple[Any, tuple[str, str] | None, Mapping[str, Any]]
"""The result, the message and traceback of an exception, and the returned fields."""


class IsolatedAgent(Agent):
    """Agent that plays another agent in worker processes, one per concurrent rollout."""

    def __init__(self, agent: Agent) -> None:
        """Raise `ConfigError` if the agent cannot be sent to another process."""
        self.agent = agent
        try:
            self._pickled = pickle.dumps(agent)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"cannot run agent {agent.name!r} in a separate process: {error}. Define it at "
                "the top level of a module, and keep its instance picklable"
            ) from error
        self._files = _find_module_files(self._pickled)
        self._idle: list[_AgentProcess] = []

    @property
    def name(self) -> str:
        """Return the agent's name."""
        return self.agent.name

    def environment_refusal(self) -> str:
        """Return the reason why the agent cannot use an environment of this process."""
        return "its code runs in another process; use isolation='none'"

    async def play(self, task: Task, session: RolloutSession, resources: NamedResources) -> Any:
        """Play the rollout in a worker. Raises `AgentFailedError` if agent or worker fails."""
        worker = self._idle.pop() if self._idle else None
        if worker is None or not worker.process.is_alive():
            worker = _AgentProcess(self._pickled, self._files)
        try:
            value, error, back = await worker.play(session)
        except BaseException:
            worker.kill()
            raise
        self._idle.append(worker)
        for name, each in back.items():
            setattr(session, name, each)
        if error is not None:
            raise AgentFailedError(*error)
        return value

    def close(self) -> None:
        """Stop the idle workers. Busy workers stop after their rollouts."""
        while self._idle:
            self._idle.pop().kill()


class _AgentProcess:
    """Worker process that plays rollouts of an agent."""

    def __init__(self, pickled: bytes, files: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_run_worker,
            args=(theirs, pickled, files),
            name="tutelage-agent",
            daemon=False,
        )
        self.process.start()
        theirs.close()

    async def play(self, session: RolloutSession) -> _WorkerResult:
        # Its clock stays here, where its calls are seen: the worker's own runs on during calls, so
        # what is left there is what is left at least. Models are reached over HTTP there.
        """Play a rollout in the worker. Raises `AgentFailedError` if the worker dies, and
        `EngineError` if it cannot start."""
        left = {"own_time", "client", "posted", "environment"}
        facts = {f.name: getattr(session, f.name) for f in fields(session) if f.name not in left}
        resources = session.resources.items()
        llms = {k: replace(v, client=None) for k, v in resources if isinstance(v, LLM)}
        facts |= {"resources": session.resources.replaced(llms), "limit": session.remaining}

        def exchange() -> Any:
            self._pipe.send(facts)
            return self._pipe.recv()

        try:
            answer = await call_in_thread(exchange)
        except (EOFError, OSError) as error:
            self.process.join(1.0)
            raise AgentFailedError(
                f"the agent's process exited during the rollout (exit code {self.process.exitcode})"
            ) from error
        if isinstance(answer, Exception):
            raise EngineError(f"cannot start the agent's process: {answer}") from answer
        return answer

    def kill(self) -> None:
        """Kill the worker and all processes that it started."""
        pid = self.process.pid
        if pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self.process.kill()  # it may not have made its group yet
        threading.Thread(target=self._join_process, name="tutelage-bury", daemon=True).start()

    def _join_process(self) -> None:
        """Wait for the end of the worker and close its pipe."""
        self.process.join(5.0)
        self._pipe.close()


def _find_module_files(pickled: bytes) -> dict[str, str]:
    """Return the files of user modules that cannot be imported by name, by module name: modules in
    the pickle, or else all loaded ones."""
    known = {n: str(m.__file__) for n, m in sys.modules.items() if n.startswith(USER_MODULE)}
    named = {n: file for n, file in known.items() if n.encode() in pickled}
    return named or {n: file for n, file in known.items() if Path(file).is_file()}


def _unpickle_agent(pickled: bytes, files: Mapping[str, str]) -> Agent:
    """Unpickle an agent, and load its files if it cannot be imported. Raises `ConfigError` if a
    file has changed."""
    with suppress(ModuleNotFoundError):
        return pickle.loads(pickled)
    for name, file in files.items():
        module = load_module(Path(file), "the agent's file")
        if module.__name__ != name and name.encode() in pickled:
            raise ConfigError(
                f"{file} has changed since the run started; restore it, or start a new run"
            )
    return pickle.loads(pickled)


def _run_worker(pipe: Connection, pickled: bytes, files: Mapping[str, str]) -> None:
    """Run the main loop of a worker."""
    os.setsid()
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    try:
        agent = _unpickle_agent(pickled, files)
    except Exception as error:
        with suppress(EOFError, OSError):
            pipe.recv()
            pipe.send(EngineError(f"{type(error).__name__}: {error}"))
        return
    while True:
        try:
            facts: Mapping[str, Any] = pipe.recv()
        except (EOFError, OSError):
            return
        done = contextvars.copy_context().run(_play_rollout, agent, RolloutSession(**facts))
        try:
            pipe.send(done)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            pipe.send((None, (f"the result cannot be sent back: {error}", ""), {}))


def _play_rollout(agent: Agent, session: RolloutSession) -> _WorkerResult:
    """Play a rollout in the worker and return the result."""
    enter_rollout(session)
    value, error = None, None
    try:
        work: Any = agent.play(session.task_record, session, session.resources)
        value = asyncio.run(work)
    except BaseException as raised:
        error = (exception_text(raised), traceback.format_exc())
    return value, error, {name: getattr(session, name) for name in _RETURNED_FIELDS}
