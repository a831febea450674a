"""How a process is confined, tier by tier, from the outside in.

`namespaces`: the process sees a root file system of its own (the Python installation and system
libraries, read-only, and an empty folder), no network, no other processes, and is an unprivileged
user who owns nothing outside. `rlimit`: the same view of the machine as everyone, but files can be
opened only in the Python installation and in its folder (Landlock), and it can start no process and
signal no other. Both filter system calls and limit resources. `server.py` forks and calls this;
`client.py` decides which tier to ask for.
"""

from __future__ import annotations

import os
import resource
import sys

from tutelage.tools.sandbox import seccomp, system
from tutelage.tools.sandbox.limits import Limits, Tier

INSIDE_UID = 1000
HOME = "/sandbox"
"""The folder inside a namespace."""
_SYSTEM_FOLDERS = ("/usr", "/lib", "/lib64", "/bin", "/sbin")
_SYSTEM_FILES = ("/etc/ld.so.cache",)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_OPEN_FILES = 64
TASKS = 64
"""Threads of one process; in the tier `rlimit` the watcher counts them (`watching.py`)."""


def python_folders() -> list[str]:
    """Where this interpreter's code and libraries are, outer folders before inner ones."""
    found = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.realpath(sys.base_prefix)}
    found |= {path for path in sys.path if os.path.isdir(path)}
    found |= {path for path in _SYSTEM_FOLDERS if os.path.isdir(path)}
    kept: list[str] = []
    for path in sorted(os.path.abspath(p) for p in found):
        inside = any(path == k or path.startswith(k.rstrip("/") + "/") for k in kept)
        if path != "/" and not inside:
            kept.append(path)
    return kept


def build_root(at: str, folders: list[str], limits: Limits) -> None:
    """Make the new root file system at the folder `at` and enter it; needs new namespaces."""
    system.mount("none", "/", "none", system.MS_REC | system.MS_PRIVATE)
    safe = system.MS_NOSUID | system.MS_NODEV
    system.mount("tmpfs", at, "tmpfs", safe, "size=1m,nr_inodes=512,mode=0755")
    for folder in folders:
        if os.path.islink(folder):  # /lib and /bin where they are links into /usr
            os.symlink(os.readlink(folder), at + folder)
            continue
        os.makedirs(at + folder, exist_ok=True)
        system.mount(folder, at + folder, "none", system.MS_BIND | system.MS_REC)
        system.read_only(at + folder)
    for file in (*_SYSTEM_FILES, *_DEVICES):
        if not os.path.exists(file):
            continue
        os.makedirs(at + os.path.dirname(file), exist_ok=True)
        with open(at + file, "w"):
            pass
        system.mount(file, at + file, "none", system.MS_BIND)
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


def become_nobody() -> None:
    """Be the unprivileged user of the namespace."""
    if os.getuid() != INSIDE_UID:
        os.setgroups([])
        os.setresgid(INSIDE_UID, INSIDE_UID, INSIDE_UID)
        os.setresuid(INSIDE_UID, INSIDE_UID, INSIDE_UID)


def restrict(tier: Tier, limits: Limits, folders: list[str], home: str) -> None:
    """The last steps, in the process that will run the code: limits, files, system calls."""
    one = limits.processes == 1
    if not one and tier != "namespaces":
        raise OSError(f"{limits.processes} processes can only be bounded in the tier 'namespaces'")
    _limit_resources(tier, limits, one)
    if tier == "none":
        return
    system.drop_privileges()
    if tier == "rlimit":
        readable = [*folders, *_SYSTEM_FILES, *_DEVICES[1:]]
        system.only_these_files(readable, [home, "/dev/null"])
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
