"""Confine a process to a sandbox tier.

`namespaces`: the process has a separate root file system (the paths of `filesystem.py`, read-only,
and an empty folder), no network, no view of other processes, and runs as an unprivileged user who
owns nothing outside. `rlimit`: file names stay visible, but only the paths of `filesystem.py` and
its own folder can be opened (Landlock), and it cannot start or signal other processes. Both filter
system calls and limit resources. `server.py` forks and calls this; `client.py` selects the tier.

The second half wraps Linux system calls for which Python has no function. Rights are dropped
permanently: capabilities, new privileges, files outside a list of folders (Landlock). The functions
raise `OSError` if the kernel refuses. The system call filter is in `seccomp.py`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from collections.abc import Iterable

from tutelage.tools.sandbox.filesystem import FileSystemView
from tutelage.tools.sandbox.limits import SandboxLimits, Tier
from tutelage.tools.sandbox.seccomp import build_program

INSIDE_UID = 1000
HOME = "/sandbox"
"""Home folder inside the namespace."""
_SYSTEM_LINKS = ("/lib", "/lib64", "/bin", "/sbin")
_SYSTEM_FILES = ("/etc/ld.so.cache",)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_OPEN_FILES = 64
TASKS = 64
"""Maximum threads of one process; in the tier `rlimit` the watcher counts them."""

_CLONE_NEWNS, _CLONE_NEWCGROUP, _CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
_CLONE_NEWIPC, _CLONE_NEWUSER = 0x08000000, 0x10000000
_CLONE_NEWPID, _CLONE_NEWNET = 0x20000000, 0x40000000
_ALL_NAMESPACES = (
    _CLONE_NEWNS | _CLONE_NEWCGROUP | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWUSER
    | _CLONE_NEWPID | _CLONE_NEWNET
)  # fmt: skip

_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_PR_SET_SECCOMP, _PR_CAPBSET_DROP = 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION = 0x20080522
_SIGKILL = 9

# These numbers are the same on every architecture.
_NR_MOUNT_SETATTR = 442
_NR_LANDLOCK_CREATE, _NR_LANDLOCK_ADD, _NR_LANDLOCK_RESTRICT = 444, 445, 446
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

# Landlock rights by version: 13 in the first, then refer, truncate and ioctl.
_FIRST_RIGHTS = (1 << 13) - 1
_READ_RIGHTS = 1 | 1 << 2 | 1 << 3  # execute, read a file, read a folder
_LIST_RIGHT = 1 << 3


def enter_root(root: str, view: FileSystemView, limits: SandboxLimits) -> None:
    """Build and enter a root file system at the folder `root`, and drop all privileges.

    The process must already be in new namespaces.
    """
    _build_root(root, view, limits)
    _switch_user()
    _drop_privileges()
    die_with_parent()  # a change of user by root clears it


def _build_root(root: str, view: FileSystemView, limits: SandboxLimits) -> None:
    """Build and enter a root file system at the folder `root`."""
    _mount("none", "/", "none", _MS_REC | _MS_PRIVATE)
    safe = _MS_NOSUID | _MS_NODEV
    _mount("tmpfs", root, "tmpfs", safe, "size=1m,nr_inodes=2048,mode=0755")
    for link in _SYSTEM_LINKS:
        if os.path.islink(link):  # into /usr
            os.symlink(os.readlink(link), root + link)
    mounted = [folder for folder in view.folders if _bind_mount(root, folder)]
    for folder in view.hidden:
        _mount("tmpfs", root + folder, "tmpfs", safe, "size=64k,nr_inodes=256,mode=0755")
    mounted += [path for path in (*view.files, *view.package_paths()) if _bind_mount(root, path)]
    for path in mounted:
        _make_read_only(root + path)
    for file in (*_SYSTEM_FILES, *_DEVICES):
        if not os.path.exists(file):
            continue
        _bind_mount(root, file)
        if file in _SYSTEM_FILES:
            _make_read_only(root + file)
    os.makedirs(root + HOME)
    if not os.path.lexists(root + "/tmp"):  # it exists if Python is installed below it
        os.symlink(HOME, root + "/tmp")
    owner = f"uid={INSIDE_UID},gid={INSIDE_UID}"
    data = f"size={limits.disk},nr_inodes=4096,mode=0700,{owner}"
    _mount("tmpfs", root + HOME, "tmpfs", safe, data)
    os.makedirs(root + "/.old")
    _change_root(root)
    os.rmdir("/.old")
    _mount("none", "/", "none", _MS_REMOUNT | _MS_BIND | safe | _MS_RDONLY)
    os.chdir(HOME)


def _bind_mount(root: str, path: str) -> bool:
    """Bind-mount `path` in the new root and return True, or return False if it is already there."""
    if os.path.lexists(root + path):
        return False
    if os.path.isdir(path):
        os.makedirs(root + path)
    else:
        os.makedirs(root + os.path.dirname(path), exist_ok=True)
        with open(root + path, "w"):
            pass
    _mount(path, root + path, "none", _MS_BIND | _MS_REC)
    return True


def _switch_user() -> None:
    """Switch to the unprivileged user of the namespace."""
    if os.getuid() != INSIDE_UID:
        os.setgroups([])
        os.setresgid(INSIDE_UID, INSIDE_UID, INSIDE_UID)
        os.setresuid(INSIDE_UID, INSIDE_UID, INSIDE_UID)


def restrict(tier: Tier, limits: SandboxLimits, view: FileSystemView, home: str) -> None:
    """Restrict the resources, files and system calls of this process, before it runs code."""
    _limit_resources(tier, limits)
    if tier == "none":
        return
    _drop_privileges()
    if tier == "rlimit":
        readable = [*view.parts, *view.files, *view.package_paths()]
        readable += [*_SYSTEM_FILES, *_DEVICES[1:]]
        _restrict_files(readable, [home, "/dev/null"], listable=view.folders)
    _install_filter(build_program(os.getpid(), shared_files=tier != "namespaces"))


def _limit_resources(tier: Tier, limits: SandboxLimits) -> None:
    maxima = {
        resource.RLIMIT_AS: limits.memory,
        resource.RLIMIT_FSIZE: limits.disk,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 128,
    }
    if tier == "namespaces":
        # Counted per user namespace. In other tiers it would count all processes of the user, and
        # there the system call filter prevents new processes.
        maxima[resource.RLIMIT_NPROC] = TASKS
    for kind, value in maxima.items():
        _, hard = resource.getrlimit(kind)
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (allowed, allowed))


# ---------------------------------------------------------------- system calls


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")
    return result


def unshare_namespaces() -> None:
    """Move this process to new namespaces of every kind."""
    _check(_libc().unshare(_ALL_NAMESPACES), "unshare")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Mount a file system with mount(2)."""
    result = _libc().mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
    )
    _check(result, f"mount {target}")


def _make_read_only(target: str) -> None:
    """Make a mount and all mounts below it read-only and `nosuid` (Linux 5.12)."""
    attributes = struct.pack("=QQQQ", 1 | 2, 0, 0, 0)
    result = _libc().syscall(
        _NR_MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, attributes, len(attributes)
    )
    _check(result, f"mount_setattr {target}")


def _change_root(path: str) -> None:
    """Switch to a new root mount and detach the old root."""
    os.chdir(path)
    libc = _libc()
    number = 41 if os.uname().machine == "aarch64" else 155
    _check(libc.syscall(number, b".", b"."), "pivot_root")
    _check(libc.umount2(b".", _MNT_DETACH), "umount the old root")
    os.chdir("/")


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends."""
    _check(_libc().prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    """Adopt orphaned descendant processes."""
    _check(_libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER")


def hide_from_debuggers() -> None:
    """Protect this process from debuggers of the same user."""
    _check(_libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "PR_SET_DUMPABLE")


def _drop_privileges() -> None:
    """Drop all capabilities permanently, including those that set-uid programs would grant."""
    libc = _libc()
    for capability in range(64):
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # past the last capability of this kernel, or not permitted
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _check(libc.capset(header, bytes(24)), "capset")
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")


def _install_filter(program: bytes) -> None:
    """Install a seccomp filter for the system calls of this process."""
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(instructions))
    result = _libc().prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0)
    _check(result, "PR_SET_SECCOMP")


def _restrict_files(
    readable: Iterable[str], writable: Iterable[str], listable: Iterable[str] = ()
) -> None:
    """Restrict file access to paths below `readable` and `writable` (Landlock).

    Folders below `listable` can be listed too. Raises `OSError` without Landlock.
    """
    version = int(_libc().syscall(_NR_LANDLOCK_CREATE, None, 0, 1))
    if version <= 0:
        raise OSError("the kernel does not support Landlock")
    rights = _FIRST_RIGHTS
    for bit, since in ((13, 2), (14, 3), (15, 5)):
        rights |= (1 << bit) if version >= since else 0
    attributes = struct.pack("=Q", rights)
    if version >= 6:  # also no TCP, no abstract sockets and no signals to processes outside
        attributes = struct.pack("=QQQ", rights, 3, 3)
    libc = _libc()
    number = _check(
        libc.syscall(_NR_LANDLOCK_CREATE, attributes, len(attributes), 0), "landlock_create_ruleset"
    )
    values = ((_READ_RIGHTS, readable), (rights, writable), (_LIST_RIGHT, listable))
    for allowed, paths in values:
        for path in paths:
            _allow_path(libc, number, path, allowed)
    _check(libc.syscall(_NR_LANDLOCK_RESTRICT, number, 0), "landlock_restrict_self")
    os.close(number)


def _allow_path(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= 1 | 2 | 4 | 1 << 14
        rule = struct.pack("=Qi", rights, opened)
        _check(libc.syscall(_NR_LANDLOCK_ADD, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
    finally:
        os.close(opened)
