"""Build the system call filter, a small BPF program that `confine.py` installs.

It is a deny list: a refused call returns EPERM, which Python raises as `PermissionError`. It covers
sockets, other processes, new programs, mounts and namespaces, kernel interfaces with a history of
vulnerabilities, and memory that no resource limit counts. The call numbers are for x86-64 and
aarch64; other machines have no filter, and no tier that needs one.
"""

from __future__ import annotations

import errno
import os
import struct

# name: (x86-64, aarch64); None where the architecture has no such call.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    # other processes
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "mbind": (237, 235),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "quotactl": (179, 60),
    # interfaces of the kernel
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "fanotify_init": (300, 262), "personality": (135, 92), "syslog": (103, 116),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "vhangup": (153, 58),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
    # memory outside the limit of the address space
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
}  # fmt: skip
# Operations that Landlock does not control: a file's mode, owner, times and attributes (which can
# hold text), truncation by name before version 3, file notifications, sockets in the file system,
# and sending files over sockets, which the disk limit could not count.
_ATTRIBUTES: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "removexattrat": (466, 466), "file_setattr": (469, 469),
    "getxattr": (191, 8), "lgetxattr": (192, 9), "fgetxattr": (193, 10), "getxattrat": (464, 464),
    "listxattr": (194, 11), "llistxattr": (195, 12), "flistxattr": (196, 13),
    "listxattrat": (465, 465), "truncate": (76, 45),
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "connect": (42, 203), "bind": (49, 200), "sendmsg": (46, 211), "sendmmsg": (307, 269),
}  # fmt: skip
# Reading links, including those in /proc to open files of other processes. Fails with EINVAL as for
# a file that is not a link, which the C library handles.
_LINKS = ((89, None), (267, 78))
_OPEN, _OPENAT, _OPENAT2, _SENDTO = (2, None), (257, 56), (437, 437), (44, 206)
_TRUNCATE = 0o1000
_CLONE, _CLONE3 = (56, 220), (435, 435)
_KILL, _TGKILL, _PRLIMIT = (62, 129), (234, 131), (302, 261)
_FCNTL, _IOCTL = (72, 25), (16, 29)

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CLONE_THREAD = 0x00010000
_NEW_NAMESPACES = 0x7E020080
# fcntl commands that make a file send any signal to any process when it becomes readable.
_FCNTL_SIGNALS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX
# TIOCSTI, FIOSETOWN, SIOCSPGRP, FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
_IOCTL_REFUSED = (0x5412, 0x8901, 0x8902, 0x40086602, 0x401C5820)

_LOAD, _RETURN = 0x20, 0x06
_EQUAL, _GREATER_EQUAL, _ANY_BIT, _AND = 0x15, 0x35, 0x45, 0x54
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NR, _ARCH, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000


def build_program(own_pid: int, *, shared_files: bool = False) -> bytes:
    """Build the BPF system call filter of a process; it forbids starting other processes.

    `shared_files` is for a process that sees the
    host's file system: it forbids changing mode, owner, times and attributes of files, reading
    links, and connecting to sockets by name. Signals and limits are allowed for `own_pid` only.
    Raises `OSError` on an unsupported architecture.
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise OSError(f"no seccomp filter for the architecture {machine!r}")
    cpu, audit = _ARCHITECTURES[machine]
    refuse = _step(_RETURN, _ERRNO | errno.EPERM)
    code = [_step(_LOAD, _ARCH), _step(_EQUAL, audit, 1, 0), _step(_RETURN, _KILL_PROCESS)]
    code += [_step(_LOAD, _NR), _step(_GREATER_EQUAL, _X32, 0, 1), refuse]
    table = _REFUSED | (_ATTRIBUTES if shared_files else {})
    for numbers in table.values():
        number = numbers[cpu]
        if number is not None:
            code += [_step(_EQUAL, number, 0, 1), refuse]
    # After ENOSYS the C library falls back to clone, whose flags a filter can check.
    code += [_step(_EQUAL, _CLONE3[cpu], 0, 1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    thread_only = [_step(_ANY_BIT, _CLONE_THREAD, 1, 0), refuse]
    code += _guard(_CLONE[cpu], 0, [*thread_only, _step(_ANY_BIT, _NEW_NAMESPACES, 0, 1), refuse])
    own_only = [_step(_EQUAL, own_pid, 1, 0), refuse]
    for number in (_KILL[cpu], _TGKILL[cpu]):
        code += _guard(number, 0, own_only)
    code += _guard(_PRLIMIT[cpu], 0, [_step(_EQUAL, 0, 2, 0), *own_only])
    for number, values in ((_FCNTL[cpu], _FCNTL_SIGNALS), (_IOCTL[cpu], _IOCTL_REFUSED)):
        tests = [step for value in values for step in (_step(_EQUAL, value, 0, 1), refuse)]
        code += _guard(number, 1, tests)
    if shared_files:
        code += _shared_file_filter(cpu, refuse)
    return b"".join([*code, _step(_RETURN, _ALLOW)])


def _shared_file_filter(cpu: int, refuse: bytes) -> list[bytes]:
    code = [_step(_EQUAL, _OPENAT2[cpu], 0, 1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    for numbers in _LINKS:
        if (number := numbers[cpu]) is not None:
            code += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _ERRNO | errno.EINVAL)]
    # Before Landlock 3, opening a file for reading with O_TRUNC could empty it.
    truncating = [
        _step(_ANY_BIT, _TRUNCATE, 0, 4),
        _step(_AND, os.O_ACCMODE),
        _step(_EQUAL, os.O_WRONLY, 2, 0),
        _step(_EQUAL, os.O_RDWR, 1, 0),
        refuse,
    ]
    for numbers, argument in ((_OPEN, 1), (_OPENAT, 2)):
        if (number := numbers[cpu]) is not None:
            code += _guard(number, argument, truncating)
    # The destination address pointer, in both halves of the register.
    high = _ARGUMENTS + 8 * 4 + 4
    return code + _guard(
        _SENDTO[cpu],
        4,
        [_step(_EQUAL, 0, 0, 2), _step(_LOAD, high), _step(_EQUAL, 0, 1, 0), refuse],
    )


def _guard(number: int, argument: int, steps: list[bytes]) -> list[bytes]:
    """Return BPF code that checks one argument of a system call and then allows the call."""
    body = [_step(_LOAD, _ARGUMENTS + 8 * argument), *steps, _step(_RETURN, _ALLOW)]
    return [_step(_EQUAL, number, 0, len(body)), *body]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
