"""How a process is confined, tier by tier, from the outside in.

`namespaces`: the process sees a root file system of its own (what `filesystem.py` lists, read-only,
and an empty folder), no network, no other processes, and is an unprivileged user who owns nothing
outside. `rlimit`: the names of all files are where they are, but only those that `filesystem.py`
lists and its own can be opened (Landlock), and it can start no process and signal no other. Both
filter system calls and limit resources. `server.py` forks and calls this; `client.py` decides which
tier to ask for.

The second half is the few system calls of Linux that Python has no function for. Rights that are
given up there are given up for good: capabilities, new privileges, files outside a list of folders
(Landlock). Each raises `OSError` where the kernel refuses. The filter of system calls is
`seccomp.py`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from collections.abc import Iterable

from tutelage.tools.sandbox.filesystem import FileSystemView
from tutelage.tools.sandbox.limits import SandboxLimits, Tier
from tutelage.tools.sandbox.seccomp import program

INSIDE_UID = 1000
HOME = "/sandbox"
"""The folder inside a namespace."""
_SYSTEM_LINKS = ("/lib", "/lib64", "/bin", "/sbin")
_SYSTEM_FILES = ("/etc/ld.so.cache",)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_OPEN_FILES = 64
TASKS = 64
"""Threads of one process; in the tier `rlimit` the watcher counts them."""

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

# Rights of Landlock by the version that brought them: 13 in the first, then refer, truncate, ioctl.
_FIRST_RIGHTS = (1 << 13) - 1
_READ_RIGHTS = 1 | 1 << 2 | 1 << 3  # execute, read a file, read a folder
_LIST_RIGHT = 1 << 3


def enter_root(root: str, view: FileSystemView, limits: SandboxLimits) -> None:
    """Build the new root file system at the folder `root`, enter it, and give up every right; needs
    new namespaces."""
    _build_root(root, view, limits)
    _become_nobody()
    _drop_privileges()
    die_with_parent()  # as root the change of user cleared it


def _build_root(at: str, view: FileSystemView, limits: SandboxLimits) -> None:
    """Make the new root file system at the folder `at` and enter it."""
    _mount("none", "/", "none", _MS_REC | _MS_PRIVATE)
    safe = _MS_NOSUID | _MS_NODEV
    _mount("tmpfs", at, "tmpfs", safe, "size=1m,nr_inodes=2048,mode=0755")
    for link in _SYSTEM_LINKS:
        if os.path.islink(link):  # into /usr
            os.symlink(os.readlink(link), at + link)
    shown = [folder for folder in view.folders if _show(at, folder)]
    for folder in view.hidden:
        _mount("tmpfs", at + folder, "tmpfs", safe, "size=64k,nr_inodes=256,mode=0755")
    shown += [path for path in (*view.files, *view.package_paths()) if _show(at, path)]
    for path in shown:
        _read_only(at + path)
    for file in (*_SYSTEM_FILES, *_DEVICES):
        if not os.path.exists(file):
            continue
        _show(at, file)
        if file in _SYSTEM_FILES:
            _read_only(at + file)
    os.makedirs(at + HOME)
    if not os.path.lexists(at + "/tmp"):  # it is there when Python is installed below it
        os.symlink(HOME, at + "/tmp")
    owner = f"uid={INSIDE_UID},gid={INSIDE_UID}"
    data = f"size={limits.disk},nr_inodes=4096,mode=0700,{owner}"
    _mount("tmpfs", at + HOME, "tmpfs", safe, data)
    os.makedirs(at + "/.old")
    _change_root(at)
    os.rmdir("/.old")
    _mount("none", "/", "none", _MS_REMOUNT | _MS_BIND | safe | _MS_RDONLY)
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
    _mount(path, at + path, "none", _MS_BIND | _MS_REC)
    return True


def _become_nobody() -> None:
    """Be the unprivileged user of the namespace."""
    if os.getuid() != INSIDE_UID:
        os.setgroups([])
        os.setresgid(INSIDE_UID, INSIDE_UID, INSIDE_UID)
        os.setresuid(INSIDE_UID, INSIDE_UID, INSIDE_UID)


def restrict(tier: Tier, limits: SandboxLimits, view: FileSystemView, home: str) -> None:
    """The last steps, in the process that will run the code: limits, files, system calls."""
    one = limits.processes == 1
    if not one and tier != "namespaces":
        raise OSError(f"a limit of {limits.processes} processes needs the tier 'namespaces'")
    _limit_resources(tier, limits, one)
    if tier == "none":
        return
    _drop_privileges()
    if tier == "rlimit":
        readable = [*view.parts, *view.files, *view.package_paths()]
        readable += [*_SYSTEM_FILES, *_DEVICES[1:]]
        _only_these_files(readable, [home, "/dev/null"], listed=view.folders)
    shared = tier != "namespaces"
    _install_filter(program(os.getpid(), one_process=one, shared_files=shared))


def _limit_resources(tier: Tier, limits: SandboxLimits, one: bool) -> None:
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


# ---------------------------------------------------------------- system calls


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def leave_namespaces() -> None:
    """Leave all namespaces for new ones."""
    _check(_libc().unshare(_ALL_NAMESPACES), "unshare")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Mount `source` at `target`; see _mount(2)."""
    result = _libc().mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
    )
    _check(result, f"mount {target}")


def _read_only(target: str) -> None:
    """Make a mount and all mounts below it read-only, without set-uid programs (Linux 5.12)."""
    attributes = struct.pack("=QQQQ", 1 | 2, 0, 0, 0)
    result = _libc().syscall(
        _NR_MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, attributes, len(attributes)
    )
    _check(result, f"mount_setattr {target}")


def _change_root(new: str) -> None:
    """Make `new`, a mount point, the root, and detach the old one."""
    os.chdir(new)
    libc = _libc()
    number = 41 if os.uname().machine == "aarch64" else 155
    _check(libc.syscall(number, b".", b"."), "pivot_root")
    _check(libc.umount2(b".", _MNT_DETACH), "umount the old root")
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


def _drop_privileges() -> None:
    """Give up every capability, and the way to any: set-uid programs do nothing from here on."""
    libc = _libc()
    for capability in range(64):
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # past the last capability of this kernel, or not ours to drop
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _check(libc.capset(header, bytes(24)), "capset")
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")


def _install_filter(program: bytes) -> None:
    """Filter this process's system calls from here on; `program` comes from `seccomp.py`."""
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(instructions))
    result = _libc().prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0)
    _check(result, "PR_SET_SECCOMP")


def _only_these_files(
    readable: Iterable[str], writable: Iterable[str], listed: Iterable[str] = ()
) -> None:
    """Close the file system but for what is below `readable` and `writable` (Landlock).

    Of what is below `listed` the names can be read as well.
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
    values = ((_READ_RIGHTS, readable), (rights, writable), (_LIST_RIGHT, listed))
    for allowed, paths in values:
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
