"""Launch the sandbox server on first use, once per process.

A forked child launches its own server, and a server that was killed is launched again. `server.py`
is the code of the server.
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
"""Time limit in seconds for starting an interpreter, which usually takes milliseconds."""
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
"""Environment of a sandbox; the fixed hash seed makes the order of sets reproducible."""


_PYTHON = (sys.executable, "-P", "-s", "-S", "-c")
"""Python without `site`, so that no package or project folders are on its path."""


class SandboxError(RuntimeError):
    """Raised if a sandbox cannot be started; the message contains the kernel's reason."""


class _Server:
    """The sandbox server process and its control socket."""

    def __init__(self) -> None:
        self._base = tempfile.mkdtemp(prefix="tutelage-sandbox-")
        line, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line, self._lock = line, threading.Lock()
        process = subprocess.Popen(
            [*_PYTHON, _bootstrap(), str(remote.fileno()), self._base, json.dumps(site_folders())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(remote.fileno(),),
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
        remote.close()
        self._process = process
        weakref.finalize(self, _end_server, line, process, self._base)
        line.settimeout(OPEN_SECONDS)
        greeting = b""
        with contextlib.suppress(OSError):
            greeting = line.recv(16)
        line.settimeout(None)
        if greeting != b"ready":
            process.kill()
            text = process.stderr.read().decode(errors="replace") if process.stderr else ""
            raise SandboxError(f"the sandbox server did not start: {text.strip()[-500:]}")

    @property
    def alive(self) -> bool:
        """Return True if the server process is running."""
        return self._process.poll() is None

    def start(self, request: dict[str, Any], *ends: socket.socket) -> None:
        """Request a sandbox, and send its ends of the message channel and the lifeline socket."""
        with self._lock:
            socket.send_fds(self._line, [json.dumps(request).encode()], [e.fileno() for e in ends])


def _end_server(control: socket.socket, process: subprocess.Popen[bytes], base: str) -> None:
    control.close()
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
"""Servers by process id: a forked child does not use its parent's server."""


def get_server(pid: int) -> _Server:
    """Return the sandbox server of process `pid`, starting one if necessary."""
    with _starting:
        if pid not in _servers or not _servers[pid].alive:
            _servers[pid] = _Server()
        return _servers[pid]


def _bootstrap() -> str:
    """Return the server's startup code, which imports this folder's modules without the package.

    The package's `__init__` modules would load pydantic and more into every sandbox.
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
