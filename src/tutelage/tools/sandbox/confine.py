"""How a process is confined, tier by tier, from the outside in.

`namespaces`: the process sees a root file system of its own (what `view.py` lists, read-only, and
an empty folder), no network, no other processes, and is an unprivileged user who owns nothing
outside. `rlimit`: the names of all files are where they are, but only those that `view.py` lists
and its own can be opened (Landlock), and it can start no process and signal no other. Both filter
system calls and limit resources. `server.py` forks and calls this; `client.py` decides which tier
to ask for.
"""

from __future__ import annotations

import os
import resource

from tutelage.tools.sandbox import seccomp, system
from tutelage.tools.sandbox.limits import Limits, Tier
from tutelage.tools.sandbox.view import View

INSIDE_UID = 1000
HOME = "/sandbox"
"""The folder inside a namespace."""
_SYSTEM_LINKS = ("/lib", "/lib64", "/bin", "/sbin")
_SYSTEM_FILES = ("/etc/ld.so.cache",)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_OPEN_FILES = 64
TASKS = 64
"""Threads of one process; in the tier `rlimit` the watcher counts them (`watching.py`)."""


def build_root(at: str, view: View, limits: Limits) -> None:
    """Make the new root file system at the folder `at` and enter it; needs new namespaces."""
    system.mount("none", "/", "none", system.MS_REC | system.MS_PRIVATE)
    safe = system.MS_NOSUID | system.MS_NODEV
    system.mount("tmpfs", at, "tmpfs", safe, "size=1m,nr_inodes=2048,mode=0755")
    for link in _SYSTEM_LINKS:
        if os.path.islink(link):  # into /usr
            os.symlink(os.readlink(link), at + link)
    shown = [folder for folder in view.folders if _show(at, folder)]
    for folder in view.hidden:
        system.mount("tmpfs", at + folder, "tmpfs", safe, "size=64k,nr_inodes=256,mode=0755")
    shown += [path for path in (*view.files, *view.package_paths()) if _show(at, path)]
    for path in shown:
        system.read_only(at + path)
    for file in (*_SYSTEM_FILES, *_DEVICES):
        if not os.path.exists(file):
            continue
        _show(at, file)
        if file in _SYSTEM_FILES:
            system.read_only(at + file)
    os.makedirs(at + HOME)
    if not os.path.lexists(at + "/tmp"):  # it is there when Python is installed below it
        os.symlink(HOME, at + "/tmp")
    owner = f"uid={INSIDE_UID},gid={INSIDE_UID}"
    data = f"size={limits.disk},nr_inodes=4096,mode=0700,{owner}"
    system.mount("tmpfs", at + HOME, "tmpfs", safe, data)
    os.makedirs(at + "/.old")
    system.change_root(at)
    os.rmdir("/.old")
    system.mount("none", "/", "none", system.MS_REMOUNT | system.MS_BIND | safe | system.MS_RDONLY)
    os.chdir(HOME)


def _show(at: str, path: str) -> bool:
    """Mount what is at `path` there in the new root, unless a folder above it brought it."""
    if os.path.lexists(at + path):
        return False
    if os.path.isdir(path):
        os.makedirs(at + path)
    else:
        os.makedirs(at + os.path.dirname(path), exist_ok=True)
        with open(at + path, "w"):
            pass
    system.mount(path, at + path, "none", system.MS_BIND | system.MS_REC)
    return True


def become_nobody() -> None:
    """Be the unprivileged user of the namespace."""
    if os.getuid() != INSIDE_UID:
        os.setgroups([])
        os.setresgid(INSIDE_UID, INSIDE_UID, INSIDE_UID)
        os.setresuid(INSIDE_UID, INSIDE_UID, INSIDE_UID)


def restrict(tier: Tier, limits: Limits, view: View, home: str) -> None:
    """The last steps, in the process that will run the code: limits, files, system calls."""
    one = limits.processes == 1
    if not one and tier != "namespaces":
        raise OSError(f"{limits.processes} processes can only be bounded in the tier 'namespaces'")
    _limit_resources(tier, limits, one)
    if tier == "none":
        return
    system.drop_privileges()
    if tier == "rlimit":
        readable = [*view.parts, *view.files, *view.package_paths()]
        readable += [*_SYSTEM_FILES, *_DEVICES[1:]]
        system.only_these_files(readable, [home, "/dev/null"], listed=view.folders)
    shared = tier != "namespaces"
    system.install_filter(seccomp.program(os.getpid(), one_process=one, shared_files=shared))


def _limit_resources(tier: Tier, limits: Limits, one: bool) -> None:
    # The first process of the namespace counts too.
    tasks = TASKS if one else limits.processes + 1
    wanted = {
        resource.RLIMIT_AS: limits.memory,
        resource.RLIMIT_FSIZE: limits.disk,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 128,
    }
    if tier == "namespaces":
        # Counted in the user namespace. Elsewhere it would count all that the user runs; there the
        # filter of system calls keeps the process alone.
        wanted[resource.RLIMIT_NPROC] = tasks
    for what, value in wanted.items():
        _, hard = resource.getrlimit(what)
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (allowed, allowed))
