"""The process that starts sandboxes, as this side has it: launched when first asked for, once.

A forked child launches its own, and one that was killed is launched again. What the process does is
in `server.py`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

from tutelage.tools.sandbox.filesystem import site_folders

OPEN_SECONDS = 20.0
"""For starting an interpreter, which takes milliseconds unless the machine is choked."""
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
"""All that a sandbox finds in its environment: hashes, and with them the order of sets, repeat."""


_PYTHON = (sys.executable, "-P", "-s", "-S", "-c")
"""Without `site`, so that no folder of packages or of a project comes onto its path."""


class SandboxError(RuntimeError):
    """A sandbox that cannot be started in a tier; the message is the kernel's reason."""


class _Server:
    """The process that forks sandboxes, and the socket to ask it by."""

    def __init__(self) -> None:
        self._base = tempfile.mkdtemp(prefix="tutelage-sandbox-")
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line, self._lock = line, threading.Lock()
        process = subprocess.Popen(
            [*_PYTHON, _bootstrap(), str(theirs.fileno()), self._base, json.dumps(site_folders())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(theirs.fileno(),),
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
        theirs.close()
        self._process = process
        weakref.finalize(self, _end, line, process, self._base)
        line.settimeout(OPEN_SECONDS)
        literal = b""
        with contextlib.suppress(OSError):
            literal = line.recv(16)
        line.settimeout(None)
        if literal != b"ready":
            process.kill()
            told = process.stderr.read().decode(errors="replace") if process.stderr else ""
            raise SandboxError(f"the server of sandboxes did not start: {told.strip()[-500:]}")

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def start(self, request: dict[str, Any], *ends: socket.socket) -> None:
        """Ask for a sandbox that has these ends of its channel and lifeline."""
        with self._lock:
            socket.send_fds(self._line, [json.dumps(request).encode()], [e.fileno() for e in ends])


def _end(line: socket.socket, process: subprocess.Popen[bytes], base: str) -> None:
    line.close()
    if process.stderr is not None:
        process.stderr.close()
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(base, ignore_errors=True)


_starting = threading.Lock()
_servers: dict[int, _Server] = {}
"""By process: a forked child leaves its parent's alone."""


def running_server(pid: int) -> _Server:
    """The server of this process (a forked child has its own), started again if it was killed."""
    with _starting:
        if pid not in _servers or not _servers[pid].alive:
            _servers[pid] = _Server()
        return _servers[pid]


def _bootstrap() -> str:
    """What the server's interpreter runs: this folder's modules, without the package around them.

    The package's own modules would bring pydantic and more into every sandbox.
    """
    here = Path(__file__).resolve().parent
    parts = ("tutelage", "tutelage.tools", "tutelage.tools.sandbox")
    paths = (here.parent.parent, here.parent, here)
    named = {name: str(path) for name, path in zip(parts, paths, strict=True)}
    return (
        "import sys, types\n"
        f"for name, path in {named!r}.items():\n"
        "    module = types.ModuleType(name)\n"
        "    module.__path__ = [path]\n"
        "    sys.modules[name] = module\n"
        "from tutelage.tools.sandbox.server import main\n"
        "import json\n"
        "main(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))\n"
    )
