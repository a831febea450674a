"""The sandbox server: a small Python process that forks itself once per sandbox.

Forking an interpreter with a preloaded library takes milliseconds, starting one takes tens. The
server never runs a model's code and receives only limits, so a sandbox inherits nothing from
another; its environment is empty, so it contains no secrets. It runs without the package (see
`spawn.py`).

For each sandbox it forks a *watcher*, which stays outside, ends the sandbox when the client closes
its lifeline or dies, and removes the folder. In the tier `namespaces` the watcher starts a chain: a
process that enters new namespaces, their first process (whose end kills all others), and the
worker. In the other tiers the worker is a direct child of the watcher. In the tier `rlimit` no
kernel limit covers the total size of files, unlinked files, or the threads of root: the watcher
checks them ten times a second and ends a sandbox that exceeds a limit or cannot be checked.
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
from tutelage.tools.sandbox.channel import encode, receive
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
"""Range of user ids that systemd reserves for services, never used for login accounts."""
_BLOCK = 4096
"""Minimum bytes counted per file or folder, so that the number of empty ones is limited."""
_SLACK = 64 << 10
"""Bytes added to the disk limit for folders and partly filled blocks."""
_DEEPEST = 64
"""Maximum depth of nested folders; longer paths might be too long to check."""


class _StartRequest(NamedTuple):
    """Parameters for starting a sandbox."""

    tier: Tier
    limits: SandboxLimits
    channel: int
    lifeline: int
    view: FileSystemView
    place: str
    """Mount point of the new root, or the home folder of the sandbox."""
    number: int


def main(control: int, base: str, search_path: Sequence[str]) -> NoReturn:
    """Run the sandbox server until the client closes its end of `control`. `base` is a working
    folder, `search_path` are the folders of installed packages."""
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
        view = filesystem_view(tuple(limits.packages), tuple(search_path))
        if os.fork() == 0:
            line.close()
            watch = functools.partial(_watch, request, fds, base, root, view, count)
            _run_and_exit(watch, fds[0])
        for fd in fds:
            os.close(fd)
    shutil.rmtree(base, ignore_errors=True)
    os._exit(0)


def _load_library() -> None:
    """Preload commonly used modules for new sandboxes.

    `exit` and `help` are added here, since `site` does not run: it would add folders to the path.
    """
    for name in _PRELOADED:
        importlib.import_module(name)
    sys.executable = os.path.realpath(sys.executable)  # sandboxes cannot see a virtual environment
    site.setquit()
    site.sethelper()


def _run_and_exit(function: Callable[[], None], channel: int) -> NoReturn:
    """Run `function` in a forked child, report any error over the channel, and exit."""
    try:
        function()
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(channel, encode({"failed": f"{type(error).__name__}: {error}"}))
    os._exit(0)


def _watch(
    request: dict[str, Any], fds: list[int], base: str, root: str, view: FileSystemView, count: int
) -> None:
    """Run the watcher: start the sandbox, wait until it or the client ends, and clean up."""
    channel, lifeline = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    tier: Tier = request["tier"]
    limits = SandboxLimits(**request["limits"])
    confine.adopt_orphans()
    home = "" if tier == "namespaces" else os.path.join(base, f"{os.getpid()}")
    if home:
        os.mkdir(home, 0o700)
    start = _start_in_namespaces if tier == "namespaces" else _start_child
    child = start(_StartRequest(tier, limits, channel, lifeline, view, home or root, count))
    os.close(channel)
    try:
        _wait_for_end(child, lifeline, home, limits)
    finally:
        _kill_all(child)
        if home:
            _remove_folder(home)


def _wait_for_end(child: int, lifeline: int, home: str, limits: SandboxLimits) -> None:
    """Wait until the child ends, the client closes the lifeline, or a limit is exceeded."""
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(lifeline, select.POLLIN | select.POLLHUP | select.POLLRDHUP)
    poll.register(ended, select.POLLIN)
    while not poll.poll(_WATCH_SECONDS * 1000 if home else None):
        if _exceeds_limits(child, home, limits.disk, confine.TASKS):
            return


def _kill_all(child: int) -> None:
    """Kill the sandbox process, and wait until it and its orphaned children have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _start_child(request: _StartRequest) -> int:
    child = os.fork()
    if child == 0:
        os.close(request.lifeline)

        def work() -> None:
            confine.die_with_parent()
            os.chdir(request.place)
            _run_worker(request, request.place)

        _run_and_exit(work, request.channel)
    return child


def _start_in_namespaces(request: _StartRequest) -> int:
    left, right = socket.socketpair()
    child = os.fork()
    if child == 0:
        os.close(request.lifeline)
        left.close()
        _run_and_exit(lambda: _enter_namespaces(right, request), request.channel)
    right.close()
    if left.recv(1):  # the child has a user namespace now: map its users
        _map_users(child, request.number)
        left.sendall(b"m")
    left.close()
    return child


def _map_users(child: int, count: int) -> None:
    """Map the sandbox user to the current user, or to an unused user id if running as root."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        low, high = _DYNAMIC_USERS
        other = low + count % (high - low)
        users = groups = f"0 0 1\n{confine.INSIDE_UID} {other} 1\n"
    else:
        # Without privileges only the current user can be mapped, and groups cannot be changed.
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


def _enter_namespaces(control: socket.socket, request: _StartRequest) -> None:
    """Enter new namespaces, fork their first process and wait for its end."""
    confine.die_with_parent()
    confine.unshare_namespaces()
    control.sendall(b"u")
    if not control.recv(1):
        raise OSError("cannot map the users of the namespace")
    control.close()
    first = os.fork()
    if first == 0:
        _run_and_exit(lambda: _run_init(request), request.channel)
    os.close(request.channel)
    os.waitpid(first, 0)


def _run_init(request: _StartRequest) -> None:
    """Run the first process of the namespace: build the root, start the worker, wait for it."""
    confine.die_with_parent()
    confine.enter_root(request.place, request.view, request.limits)
    worker = os.fork()
    if worker == 0:
        _run_and_exit(lambda: _run_worker(request, confine.HOME), request.channel)
    confine.hide_from_debuggers()
    os.close(request.channel)
    while os.wait()[0] != worker:
        pass


def _run_worker(request: _StartRequest, home: str) -> None:
    """Run the worker: confine the process, then answer requests until the channel is closed."""
    channel, limits = request.channel, request.limits
    os.environ.update({"HOME": home, "TMPDIR": home, "PWD": home})
    # In memory, so that output works on a full disk; limited in size like any file.
    output = os.memfd_create("output")
    fcntl.fcntl(output, fcntl.F_SETFL, os.O_APPEND)
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # Close all other descriptors, which belong to the server or the watcher.
    keep = sorted({channel, output})
    os.closerange(3, keep[0])
    os.closerange(keep[0] + 1, keep[1])
    os.closerange(keep[1] + 1, 1 << 16)
    confine.restrict(request.tier, limits, request.view, home)
    for name in [n for n in sys.modules if n.partition(".")[0] == "tutelage"]:
        del sys.modules[name]
    sys.meta_path.append(request.view.finder())
    _seed_random()
    line = socket.socket(fileno=channel)
    line.sendall(encode({"ready": request.tier}))
    interpreter = Interpreter(output, limits.output)
    while (message := receive(line)) is not None:
        line.sendall(encode(interpreter.answer(message)))


def _seed_random() -> None:
    """Seed `random`, so that programs produce the same numbers in every sandbox."""
    import random

    random.seed(0)


# ---------------------------------------------------------------- resource checks


def _exceeds_limits(child: int, home: str, disk: int, threads: int) -> bool:
    """Return True if a process exceeds its limit of file bytes or threads.

    Also True if its files cannot be counted. False if the process has ended.
    """
    try:
        if len(os.listdir(f"/proc/{child}/task")) > threads:
            return True
        return _folder_size(home) + _deleted_file_size(child) > disk + _SLACK
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True


def _folder_size(home: str) -> int:
    """Return the total size of the files in a folder. Raises `OSError` for an unreadable folder."""
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


def _deleted_file_size(child: int) -> int:
    """Return the total size of deleted files that a process still has open or mapped."""
    sizes: dict[int, int] = {}
    place = f"/proc/{child}/fd"
    for name in os.listdir(place):
        # The descriptor may be closed between the two calls.
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(f"{place}/{name}")
            output = os.readlink(f"{place}/{name}").startswith("/memfd:")
            if stat.S_ISREG(status.st_mode) and not status.st_nlink and not output:
                sizes[status.st_ino] = status.st_blocks * 512
    for line in Path(f"/proc/{child}/maps").read_text(errors="replace").split("\n"):
        if line.endswith(" (deleted)") and "/memfd:" not in line and "/dev/zero" not in line:
            span, _, _, _, inode, *_ = line.split()
            first, _, last = span.partition("-")
            sizes.setdefault(int(inode), 0)
            sizes[int(inode)] = max(sizes[int(inode)], int(last, 16) - int(first, 16))
    return sum(sizes.values())


def _remove_folder(home: str) -> None:
    """Remove a folder and everything below it.

    No process may still write to it. Inner folders are made writable and moved to the top before
    they are emptied, so that neither depth nor permissions can prevent the removal.
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
