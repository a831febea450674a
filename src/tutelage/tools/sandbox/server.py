"""The process that starts sandboxes: a small Python that forks itself, once for each.

Forking an interpreter that has already loaded its library takes milliseconds where starting one
takes tens. The server never runs a model's code and is told nothing but limits, so a new sandbox
inherits nothing of another; it was started with an empty environment, so there is no secret to
find. It runs without the package (see `spawn.py`).

For each sandbox it forks a *watcher*, which stays outside, ends the sandbox when the client closes
its line or dies, and removes the folder. In the tier `namespaces` there is a chain below it: a
process that leaves the namespaces, the first process of the new one (whose end ends all others),
and the worker. In the others the worker is the watcher's own child. In the tier `rlimit` no limit
of the kernel covers all files together, files without a name, or the threads of root: there the
watcher counts them ten times a second, and ends a sandbox that has too many or that hides them,
since what cannot be counted is too much.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib
import json
import os
import select
import shutil
import signal
import site
import socket
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tutelage.tools.sandbox import confine
from tutelage.tools.sandbox.channel import packed, receive
from tutelage.tools.sandbox.filesystem import FileSystemView, filesystem_view
from tutelage.tools.sandbox.limits import SandboxLimits, Tier
from tutelage.tools.sandbox.worker import Interpreter

_PRELOADED = (
    "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools",
    "heapq", "itertools", "math", "operator", "random", "re", "statistics", "string", "textwrap",
    "typing",
)  # fmt: skip
_WATCH_SECONDS = 0.1
_LONGEST_REQUEST = 1 << 16
_DYNAMIC_USERS = (61184, 65520)
"""User ids that systemd sets aside for services: never those of a person."""
_BLOCK = 4096
"""Bytes that a file or folder takes at least, so that empty ones are bounded too."""
_SLACK = 64 << 10
"""For folders and for blocks that a file does not fill."""
_DEEPEST = 64
"""Folders within folders; a path of more could grow too long to be checked."""


class _Asked(NamedTuple):
    """A sandbox to start."""

    tier: Tier
    limits: SandboxLimits
    channel: int
    lifeline: int
    view: FileSystemView
    place: str
    """Where the new root is made, or the folder that the sandbox has."""
    number: int


def main(control: int, base: str, places: Sequence[str]) -> NoReturn:
    """Serve until the client's end of `control` is closed. `base` is a folder to work in, `places`
    are where packages are installed."""
    _load_library()
    line = socket.socket(fileno=control)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers are not waited for
    root = os.path.join(base, "root")
    os.makedirs(root, exist_ok=True)
    count = 0
    line.sendall(b"ready")
    while True:
        try:
            body, fds, _, _ = socket.recv_fds(line, _LONGEST_REQUEST, 2)
        except InterruptedError:
            continue
        if not body:
            break
        count += 1
        request = json.loads(body)
        limits = SandboxLimits(**request["limits"])
        view = _view(tuple(limits.packages), tuple(places), limits.processes > 1)
        if os.fork() == 0:
            line.close()
            watch = functools.partial(_watch, request, fds, base, root, view, count)
            _die_on_error(watch, fds[0])
        for fd in fds:
            os.close(fd)
    shutil.rmtree(base, ignore_errors=True)
    os._exit(0)


def _load_library() -> None:
    """Load what code most often imports, so that a sandbox does not pay for it.

    `exit` and `help` come with `site`, which is not run: it would add folders to the path.
    """
    for name in _PRELOADED:
        importlib.import_module(name)
    sys.executable = os.path.realpath(sys.executable)  # a virtual environment is not there
    site.setquit()
    site.sethelper()


@functools.cache
def _view(packages: tuple[str, ...], places: tuple[str, ...], programs: bool) -> FileSystemView:
    return filesystem_view(packages, places, programs=programs)


def _die_on_error(work: Callable[[], None], channel: int) -> NoReturn:
    """Run a forked child's part and end it; what goes wrong is told over the channel."""
    try:
        work()
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(channel, packed({"failed": f"{type(error).__name__}: {error}"}))
    os._exit(0)


def _watch(
    request: dict[str, Any], fds: list[int], base: str, root: str, view: FileSystemView, count: int
) -> None:
    """The watcher: start the sandbox, wait for the client's line or the sandbox's end, clean up."""
    channel, lifeline = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    tier: Tier = request["tier"]
    limits = SandboxLimits(**request["limits"])
    confine.adopt_orphans()
    home = "" if tier == "namespaces" else os.path.join(base, f"{os.getpid()}")
    if home:
        os.mkdir(home, 0o700)
    start = _start_in_namespaces if tier == "namespaces" else _start_here
    child = start(_Asked(tier, limits, channel, lifeline, view, home or root, count))
    os.close(channel)
    try:
        _wait(child, lifeline, home, limits)
    finally:
        _kill_all(child)
        if home:
            _remove(home)


def _wait(child: int, lifeline: int, home: str, limits: SandboxLimits) -> None:
    """Until the child ends, the client lets go, or it uses more than allowed."""
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(lifeline, select.POLLIN | select.POLLHUP | select.POLLRDHUP)
    poll.register(ended, select.POLLIN)
    while not poll.poll(_WATCH_SECONDS * 1000 if home else None):
        if _uses_too_much(child, home, limits.disk, confine.TASKS):
            return


def _kill_all(child: int) -> None:
    """End the child and whatever it left behind; orphans have become the watcher's own."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _start_here(asked: _Asked) -> int:
    child = os.fork()
    if child == 0:
        os.close(asked.lifeline)

        def work() -> None:
            confine.die_with_parent()
            os.chdir(asked.place)
            _serve(asked, asked.place)

        _die_on_error(work, asked.channel)
    return child


def _start_in_namespaces(asked: _Asked) -> int:
    left, right = socket.socketpair()
    child = os.fork()
    if child == 0:
        os.close(asked.lifeline)
        left.close()
        _die_on_error(lambda: _leave(right, asked), asked.channel)
    right.close()
    if left.recv(1):  # it has a user namespace: say who is who in it
        _map_users(child, asked.number)
        left.sendall(b"m")
    left.close()
    return child


def _map_users(child: int, count: int) -> None:
    """The user inside is nobody outside; as root that takes a user id of its own."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        low, high = _DYNAMIC_USERS
        other = low + count % (high - low)
        users = groups = f"0 0 1\n{confine.INSIDE_UID} {other} 1\n"
    else:
        # Without rights in the outer namespace only oneself can be mapped, and groups not changed.
        users = f"{confine.INSIDE_UID} {uid} 1\n"
        groups = f"{confine.INSIDE_UID} {gid} 1\n"
        _write(f"/proc/{child}/setgroups", "deny")
    _write(f"/proc/{child}/uid_map", users)
    _write(f"/proc/{child}/gid_map", groups)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _leave(line: socket.socket, asked: _Asked) -> None:
    """The process that leaves the namespaces; its child is the first of the new ones."""
    confine.die_with_parent()
    confine.leave_namespaces()
    line.sendall(b"u")
    if not line.recv(1):
        raise OSError("cannot map the users of the namespace")
    line.close()
    first = os.fork()
    if first == 0:
        _die_on_error(lambda: _first(asked), asked.channel)
    os.close(asked.channel)
    os.waitpid(first, 0)


def _first(asked: _Asked) -> None:
    """The first process of the namespace: builds the root, starts the worker, ends with it."""
    confine.die_with_parent()
    confine.enter_root(asked.place, asked.view, asked.limits)
    worker = os.fork()
    if worker == 0:
        _die_on_error(lambda: _serve(asked, confine.HOME), asked.channel)
    confine.hide_from_debuggers()
    os.close(asked.channel)
    while os.wait()[0] != worker:
        pass


def _serve(asked: _Asked, home: str) -> None:
    """The worker: confine itself for good, then answer requests until the channel is closed."""
    channel, limits = asked.channel, asked.limits
    os.environ.update({"HOME": home, "TMPDIR": home, "PWD": home})
    # In memory, so that a full disk does not silence the code; bounded like any file.
    output = os.memfd_create("output")
    fcntl.fcntl(output, fcntl.F_SETFL, os.O_APPEND)
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # Everything else that was open belongs to the server or to the watcher.
    keep = sorted({channel, output})
    os.closerange(3, keep[0])
    os.closerange(keep[0] + 1, keep[1])
    os.closerange(keep[1] + 1, 1 << 16)
    confine.restrict(asked.tier, limits, asked.view, home)
    for name in [n for n in sys.modules if n.partition(".")[0] == "tutelage"]:
        del sys.modules[name]
    sys.meta_path.append(asked.view.finder())
    _seed_random()
    line = socket.socket(fileno=channel)
    line.sendall(packed({"ready": asked.tier}))
    interpreter = Interpreter(output, limits.output)
    while (message := receive(line)) is not None:
        line.sendall(packed(interpreter.answer(message)))


def _seed_random() -> None:
    """The same program gives the same numbers in every sandbox; a run must repeat."""
    import random

    random.seed(0)


# ---------------------------------------------------------------- what a watcher sees


def _uses_too_much(child: int, home: str, disk: int, threads: int) -> bool:
    """Whether the process has more than `disk` bytes of files or more than `threads` threads.

    So has one that keeps its files from being counted. A process that is gone has none.
    """
    try:
        if len(os.listdir(f"/proc/{child}/task")) > threads:
            return True
        return _in_folder(home) + _without_name(child) > disk + _SLACK
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True


def _in_folder(home: str) -> int:
    """Bytes of all files below `home`. Raises `OSError` where a folder cannot be read."""
    total, pending = 0, [(home, 0)]
    while pending:
        folder, depth = pending.pop()
        if depth > _DEEPEST:
            raise OSError(f"folders nested more than {_DEEPEST} levels deep")
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                total += _BLOCK
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((entry.path, depth + 1))
                    else:
                        blocks = entry.stat(follow_symlinks=False).st_blocks
                        total += max(0, blocks * 512 - _BLOCK)
    return total


def _without_name(child: int) -> int:
    """Bytes of files that the process removed and still holds open or in its memory."""
    held: dict[int, int] = {}
    place = f"/proc/{child}/fd"
    for name in os.listdir(place):
        # A file descriptor may be closed between the two looks.
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(f"{place}/{name}")
            ours = os.readlink(f"{place}/{name}").startswith("/memfd:")
            if stat.S_ISREG(found.st_mode) and not found.st_nlink and not ours:
                held[found.st_ino] = found.st_blocks * 512
    for line in Path(f"/proc/{child}/maps").read_text(errors="replace").split("\n"):
        if line.endswith(" (deleted)") and "/memfd:" not in line and "/dev/zero" not in line:
            span, _, _, _, inode, *_ = line.split()
            first, _, last = span.partition("-")
            held.setdefault(int(inode), 0)
            held[int(inode)] = max(held[int(inode)], int(last, 16) - int(first, 16))
    return sum(held.values())


def _remove(home: str) -> None:
    """Remove a folder and all below it, once nothing writes there.

    Inner folders are moved to the top before they are emptied: neither their depth nor their modes
    can keep one alive.
    """
    moved = 0
    with contextlib.suppress(OSError):
        os.chmod(home, 0o700)
        while entries := list(os.scandir(home)):
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                os.chmod(entry.path, 0o700)
                for inner in list(os.scandir(entry.path)):
                    if inner.is_dir(follow_symlinks=False):
                        os.chmod(inner.path, 0o700)
                        moved += 1
                        os.rename(inner.path, os.path.join(home, f"{os.getpid()}.{moved}"))
                    else:
                        os.unlink(inner.path)
                os.rmdir(entry.path)
        os.rmdir(home)
