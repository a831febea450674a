"""A private PostgreSQL server for the tests: in a folder of its own, on a socket there, no network.

The programs are Debian's. A server refuses to run as root, so root starts it as another user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_PLACES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
_USERS = ("postgres", "nobody")


def find_programs() -> Path | None:
    """The folder with `initdb` and `postgres`; None when there is no server on this machine."""
    on_path = shutil.which("initdb")
    for folder in (*_PLACES, *([Path(on_path).resolve().parent] if on_path else [])):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    return None


class Server:
    """One server; `start`, `kill` (as the power does) and `stop`."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        # Not pytest's folder: the path of a socket may have 107 characters only.
        self.folder = Path(tempfile.mkdtemp(prefix="tutelage-pg-"))
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._user = None
        if os.geteuid() == 0:
            names = [u.pw_name for u in pwd.getpwall()]
            self._user = next(name for name in _USERS if name in names)
            shutil.chown(self.folder, self._user)
        self.folder.chmod(0o755)
        options = ["--auth=trust", "--username=tutelage", "--encoding=UTF8", "--locale=C.UTF-8"]
        self._run([str(programs / "initdb"), "-D", str(self._data), "--no-sync", *options])

    def start(self) -> None:
        """Start the server and wait until it answers."""
        command = [str(self._programs / "postgres"), "-D", str(self._data), "-k", str(self.folder)]
        command += ["-c", "listen_addresses=", "-c", "max_connections=50", "-c", "autovacuum=off"]
        command += ["-c", "fsync=off"]  # what is killed here is the server and not the machine
        self._process = subprocess.Popen(
            self._as_user(command),
            cwd=self.folder,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        ready = [str(self._programs / "pg_isready"), "-h", str(self.folder), "-t", "1", "-q"]
        for _ in range(300):
            if subprocess.run(ready, check=False).returncode == 0:
                return
            subprocess.run(["sleep", "0.1"], check=True)
        raise RuntimeError("the PostgreSQL server does not answer")

    def create(self, database: str) -> str:
        """Make a database; returns its address."""
        self._run(
            [str(self._programs / "createdb"), "-h", str(self.folder), "-U", "tutelage", database]
        )
        return self.url(database)

    def url(self, database: str) -> str:
        """The address of a database."""
        return f"postgresql://tutelage@/{database}?host={self.folder}"

    def kill(self) -> None:
        """SIGKILL to the server and all its processes."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def stop(self) -> None:
        """End the server and remove its folder."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGQUIT)
            self._process.wait(30)
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, command: Sequence[str]) -> None:
        done = subprocess.run(
            self._as_user(command), cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stderr}")

    def _as_user(self, command: Sequence[str]) -> list[str]:
        if self._user is None:
            return list(command)
        return ["setpriv", f"--reuid={self._user}", "--clear-groups", *command]
