"""Spread test files over forked processes: `pytest --processes 3`.

Everything is imported and collected once, and each file runs in a fork of that process, which ends
with the file: what three workers of pytest-xdist hold three times (0.5 GB each, and what a hundred
files leave behind) is there once. The commands that tests start are forked from one server.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from tests.system.command import PRELOADED

TOGETHER = ("tests/system/", "tests/distributed/")
"""Folders whose tests start many processes, and share what they make."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    help_text = "run the files of tests in so many processes at a time"
    parser.addoption("--processes", type=int, default=0, metavar="N", help=help_text)


class _Sender:
    """Sends what happens in a fork to the process that reports it."""

    def __init__(self, pipe: Connection, config: pytest.Config) -> None:
        self.pipe, self.config = pipe, config

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        """Name the test that begins."""
        self.pipe.send((nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report."""
        hook = self.config.hook.pytest_report_to_serializable
        self.pipe.send(hook(config=self.config, report=report))


def _run_file(
    session: pytest.Session, items: list[pytest.Item], pipe: Connection, slot: int
) -> None:
    """Run a file's tests in a fork, with output, temporary folders and state of its own."""
    config = session.config
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture(in_=True)
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Sender(pipe, config))
    factory: Any = config._tmp_path_factory  # pyright: ignore
    factory._basetemp = Path(tempfile.mkdtemp(dir=factory.getbasetemp(), prefix="file-"))
    state = Path(os.environ["XDG_STATE_HOME"], str(slot))
    state.mkdir(exist_ok=True)
    os.environ["XDG_STATE_HOME"] = os.environ["XDG_CACHE_HOME"] = str(state)
    # This process is no parent of the server, and cannot ask whether it lives.
    forkserver._forkserver.ensure_running = lambda: None  # pyright: ignore
    for item, following in zip(items, [*items[1:], None], strict=True):
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    for process in multiprocessing.active_children():
        process.kill()
    pipe.send(None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the files, in their order, each in a fork; those of a folder of `TOGETHER` in one."""
    config, number = session.config, session.config.getoption("processes")
    if not number or session.testsfailed or config.getoption("collectonly"):
        return None
    if sys.platform == "darwin":
        return None  # a fork of a process that has loaded Apple's libraries may crash
    files: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        folder = next((f for f in TOGETHER if item.nodeid.startswith(f)), None)
        files.setdefault(folder or item.nodeid.partition("::")[0], []).append(item)
    for name in PRELOADED:  # what most files import is imported once
        importlib.import_module(name)
    multiprocessing.set_forkserver_preload([*PRELOADED, "system.command", "system.prepared"])
    forkserver.ensure_running()
    config._tmp_path_factory.getbasetemp()  # pyright: ignore
    waiting, free = list(files.values()), list(range(number))
    running: dict[Connection, tuple[int, int]] = {}
    at: dict[Connection, tuple[str, Any]] = {}
    try:
        while waiting or running:
            while waiting and free:
                items, slot = waiting.pop(0), free.pop()
                pipe, end = multiprocessing.Pipe(duplex=False)
                at[pipe] = (items[0].nodeid, items[0].location)
                gc.freeze()
                if (pid := os.fork()) == 0:
                    try:
                        _run_file(session, items, end, slot)
                    finally:
                        os._exit(0)
                end.close()
                running[pipe] = (pid, slot)
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                try:
                    message = pipe.recv()
                except EOFError:  # it ended before its last test did
                    code = os.waitstatus_to_exitcode(os.waitpid(running[pipe][0], 0)[1])
                    nodeid, location = at[pipe]
                    text = f"the process of this test ended with exit code {code}"
                    message = pytest.TestReport(nodeid, location, {}, "failed", text, "call")
                    config.hook.pytest_runtest_logreport(report=message)
                    message = None
                else:
                    if message is None:
                        os.waitpid(running[pipe][0], 0)
                if message is None:
                    free.append(running.pop(pipe)[1])
                    pipe.close()
                elif isinstance(message, tuple):
                    at[pipe] = message
                    config.hook.pytest_runtest_logstart(nodeid=message[0], location=message[1])
                else:
                    report = config.hook.pytest_report_from_serializable(
                        config=config, data=message
                    )
                    config.hook.pytest_runtest_logreport(report=report)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
    finally:
        for pid, _ in running.values():
            os.kill(pid, signal.SIGKILL)
    return True
