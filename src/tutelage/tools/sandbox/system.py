"""The few system calls of Linux that Python has no function for, and what is made of them.

Rights that are given up here are given up for good: capabilities, new privileges, files outside a
list of folders (Landlock). Each function raises `OSError` where the kernel refuses. The filter of
system calls is `seccomp.py`; who calls all this, and in which order, is `confine.py`.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWUSER = 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
ALL_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER
    | CLONE_NEWPID | CLONE_NEWNET
)  # fmt: skip

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

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

# Rights of Landlock by the version that brought them: 13 in the first, then refer, truncate, ioctl.
_FIRST_RIGHTS = (1 << 13) - 1
_READ_RIGHTS = 1 | 1 << 2 | 1 << 3  # execute, read a file, read a folder
_LIST_RIGHT = 1 << 3


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` names for new ones."""
    _check(_libc().unshare(flags), "unshare")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Mount `source` at `target`; see mount(2)."""
    result = _libc().mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
    )
    _check(result, f"mount {target}")


def read_only(target: str) -> None:
    """Make a mount and all mounts below it read-only, without set-uid programs (Linux 5.12)."""
    attributes = struct.pack("=QQQQ", 1 | 2, 0, 0, 0)
    result = _libc().syscall(
        _NR_MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, attributes, len(attributes)
    )
    _check(result, f"mount_setattr {target}")


def change_root(new: str) -> None:
    """Make `new`, a mount point, the root, and detach the old one."""
    os.chdir(new)
    libc = _libc()
    number = 41 if os.uname().machine == "aarch64" else 155
    _check(libc.syscall(number, b".", b"."), "pivot_root")
    _check(libc.umount2(b".", MNT_DETACH), "umount the old root")
    os.chdir("/")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _check(_libc().prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _check(_libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER")


def hide_from_debuggers() -> None:
    """Keep processes of the same user from reading or writing this one."""
    _check(_libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "PR_SET_DUMPABLE")


def drop_privileges() -> None:
    """Give up every capability, and the way to any: set-uid programs do nothing from here on."""
    libc = _libc()
    for capability in range(64):
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # past the last capability of this kernel, or not ours to drop
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _check(libc.capset(header, bytes(24)), "capset")
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")


def install_filter(program: bytes) -> None:
    """Filter this process's system calls from here on; `program` comes from `seccomp.py`."""
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(instructions))
    result = _libc().prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0)
    _check(result, "PR_SET_SECCOMP")


def _landlock_version() -> int:
    """The version of Landlock that the kernel has; 0 without it."""
    return max(0, int(_libc().syscall(_NR_LANDLOCK_CREATE, None, 0, 1)))


def only_these_files(
    readable: Iterable[str], writable: Iterable[str], listed: Iterable[str] = ()
) -> None:
    """Close the file system but for what is below `readable` and `writable` (Landlock).

    Of what is below `listed` the names can be read as well.
    """
    version = _landlock_version()
    if not version:
        raise OSError("the kernel has no Landlock")
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
    given = ((_READ_RIGHTS, readable), (rights, writable), (_LIST_RIGHT, listed))
    for allowed, paths in given:
        for path in paths:
            _allow_below(libc, number, path, allowed)
    _check(libc.syscall(_NR_LANDLOCK_RESTRICT, number, 0), "landlock_restrict_self")
    os.close(number)


def _allow_below(libc: ctypes.CDLL, ruleset: int, path: str, allowed: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            allowed &= 1 | 2 | 4 | 1 << 14
        rule = struct.pack("=Qi", allowed, opened)
        _check(libc.syscall(_NR_LANDLOCK_ADD, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
    finally:
        os.close(opened)
