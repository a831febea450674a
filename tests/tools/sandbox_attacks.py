"""Attacks on a sandbox, and what must have come of each; run as a program, as whichever user.

`python sandbox_attacks.py SOURCE TIER` prints a JSON object: attack -> [held, what was seen].
SOURCE is the folder that holds the package, whose dependencies this interpreter may not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import socket
import sys
import tempfile
import threading
import types
from typing import Any

FORGED = "a forged value, too long to be read"
SECRET = "sk-tutelage-secret-93712"

ATTACKS: dict[str, str] = {
    "environment of every process": """
import os, glob
found = [p for p in glob.glob('/proc/*') + ['/proc/%d' % os.getppid()]]
seen = str(dict(os.environ))
for p in ['/proc/self', '/proc/%d' % os.getppid(), *('/proc/%d' % n for n in PIDS), *found]:
    for name in ('environ', 'cmdline', 'mem'):
        try:
            seen += open(p + '/' + name, 'rb').read(1 << 16).decode('latin1')
        except (OSError, ValueError):
            pass
print('LEAK' if SECRET_HALF + '-secret-93712' in seen else 'nothing')
""",
    "fork bomb": """
import os, time
started = 0
for _ in range(300):
    try:
        if os.fork() == 0:
            time.sleep(1000)
            os._exit(0)
        started += 1
    except OSError:
        break
print('started', started)
""",
    "programs": """
import subprocess
try:
    subprocess.run(['/bin/sh', '-c', 'echo hi > /tmp/x'])
    print('RAN')
except OSError as error:
    print('refused')
""",
    "fill the disk with many files": """
written = 0
for i in range(2000):
    with open(f'f{i}', 'wb') as file:
        file.write(bytes(1 << 20))
    written += 1
print('FILLED')
""",
    "fill the disk with files that have no name": """
import os, time
kept = []
for i in range(40):
    kept.append(open('hidden', 'wb'))
    os.unlink('hidden')
    for _ in range(4):
        kept[-1].write(bytes(1 << 20))
        kept[-1].flush()
    time.sleep(0.02)
print('FILLED')
""",
    "files on their way through a socket": """
import os, socket, time
left, right = socket.socketpair()
for i in range(40):
    with open('hidden', 'wb') as file:
        os.unlink('hidden')
        for _ in range(4):
            file.write(bytes(1 << 20))
        file.flush()
        socket.send_fds(left, [b'x'], [file.fileno()])
    time.sleep(0.02)
print('FILLED')
""",
    "fill the disk where nobody may look": """
import os, time
os.mkdir('dark', 0o300)
for i in range(60):
    with open(f'dark/{i}', 'wb') as file:
        file.write(bytes(1 << 20))
    time.sleep(0.02)
print('FILLED')
""",
    "folders without end": """
import os
for i in range(100_000):
    os.mkdir('f')
    os.chdir('f')
print('FILLED')
""",
    "change what is outside": """
import os, ctypes
done = []
libc = ctypes.CDLL(None)
# Only a file of the test: should the attack succeed, nothing of the machine is harmed.
for place in READABLE[:1]:
    for change in (
        lambda: os.chmod(place, 0o666), lambda: os.utime(place, (1, 1)),
        lambda: os.setxattr(place, 'user.x', b'1'), lambda: os.chown(place, os.getuid(), -1),
        lambda: os.fchmod(os.open(place, os.O_RDONLY), 0o666), lambda: os.truncate(place, 0),
        lambda: os.rename(place, place + '2'), lambda: os.unlink(place),
    ):
        try:
            change()
            done.append(place)
        except OSError:
            pass
    if libc.syscall(452, -100, place.encode(), 0o666, 0) == 0:
        done.append(place)
print('CHANGED' if done else 'refused', done)
""",
    "network": """
import socket
for family, kind, address in ((socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', PORT)),
                              (socket.AF_INET, socket.SOCK_DGRAM, ('127.0.0.1', PORT)),
                              (socket.AF_UNIX, socket.SOCK_STREAM, PATH)):
    try:
        s = socket.socket(family, kind)
        s.connect(address)
        print('CONNECTED', family, kind)
    except OSError as error:
        print('refused')
""",
    "compute for ever, deaf to signals": """
import signal
for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGXCPU):
    signal.signal(n, signal.SIG_IGN)
while True: pass
""",
    "kill the parent": """
import os, signal, ctypes, fcntl
def attempt(f, *a):
    try:
        f(*a)
    except OSError:
        pass
libc = ctypes.CDLL(None)
for pid in [os.getppid(), -1, *PIDS]:
    if pid > 1 or pid == -1:
        attempt(os.kill, pid, signal.SIGKILL)
        attempt(signal.pthread_kill, pid, 9) if False else None
        libc.syscall(200, pid, 9)
        libc.syscall(234, pid, pid, 9)
        libc.syscall(424, pid, 9, 0, 0)
        libc.syscall(101, 16, pid, 0, 0)
attempt(os.killpg, 0, 0)
r, w = os.pipe()
for pid in PIDS:
    attempt(fcntl.fcntl, r, fcntl.F_SETOWN, pid)
    attempt(fcntl.fcntl, r, 10, 9)
    attempt(fcntl.fcntl, r, fcntl.F_SETFL, os.O_ASYNC)
os.write(w, b'x')
print('alive')
""",
    "change the limits of the parent": """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
others = [pid for pid in [*PIDS, os.getppid()] if pid > 1]
done = [libc.prlimit(pid, 0, struct.pack('QQ', 0, 0), None) for pid in others]
print('CHANGED' if 0 in done else 'refused')
""",
    "raise its own limits": """
import resource
refused = 0
for what in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
    try:
        resource.setrlimit(what, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (ValueError, OSError):
        refused += 1
print('refused' if refused == 3 else 'RAISED')
""",
    "write outside": """
import os
done = []
for place in PLACES:
    try:
        with open(place, 'w') as file:
            file.write('x')
        done.append(place)
    except OSError:
        pass
    try:
        os.mkdir(place + '-folder')
        done.append(place)
    except OSError:
        pass
print(done)
""",
    "read outside": """
seen = ''
for place in READABLE:
    try:
        seen += open(place).read()
    except OSError:
        pass
print('LEAK' if SECRET_HALF in seen or 'root:' in seen else 'nothing')
""",
    "the project and what is installed": """
import os
seen = []
for place in PROJECT:
    try:
        seen.append(open(place).read()[:20])
    except OSError:
        pass
    try:
        seen += os.listdir(os.path.dirname(place))
    except OSError:
        pass
print('LEAK' if seen else 'nothing', seen[:5])
""",
    "where links of processes and of the machine lead": """
import os
seen = []
for place in [*LINKS, *(f'/proc/{n}/{name}' for n in PIDS for name in ('cwd', 'exe', 'fd/0'))]:
    try:
        seen.append(os.readlink(place))
    except OSError:
        pass
print('LEAK' if seen else 'nothing', seen)
""",
    "watch what happens to files outside": """
import ctypes, os
libc = ctypes.CDLL(None)
watched = []
for make in (lambda: libc.inotify_init(), lambda: libc.inotify_init1(0)):
    held = make()
    for place in READABLE:
        if held >= 0 and libc.inotify_add_watch(held, place.encode(), 0xfff) >= 0:
            watched.append(place)
print('LEAK' if watched else 'nothing', watched)
""",
    "attributes of files outside": """
import os
seen = []
for place in READABLE:
    try:
        seen += os.listxattr(place)
        seen.append(os.getxattr(place, 'user.note'))
    except OSError:
        pass
print('LEAK' if seen else 'nothing', seen)
""",
    "datagrams to a socket by its name": """
import socket
left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
for send in (lambda: left.sendto(b'x', DATAGRAMS), lambda: left.connect(DATAGRAMS),
             lambda: left.sendmsg([b'x'], [], 0, DATAGRAMS)):
    try:
        send()
        print('CONNECTED', left.send(b'x'))
    except OSError:
        print('refused')
""",
    "links out of its folder": """
import os
seen = ''
for place in READABLE:
    try:
        os.symlink(place, 'link'); seen += open('link').read()
    except OSError:
        pass
    try:
        os.unlink('link')
    except OSError:
        pass
    try:
        os.link(place, 'hard'); seen += open('hard').read()
    except OSError:
        pass
print('LEAK' if SECRET_HALF in seen or 'root:' in seen else 'nothing')
""",
    "memory bit by bit": """
kept = []
while True:
    kept.append(bytearray(1 << 20))
    if len(kept) > 2000:
        print('GOT')
        break
""",
    "memory outside the address space": """
import ctypes, os
libc = ctypes.CDLL(None)
got = libc.shmget(0, 1 << 28, 0o1600) >= 0
try:
    os.memfd_create('x')
    got = True
except OSError:
    pass
print('GOT' if got else 'refused')
""",
    "threads": """
import threading, time
started = 0
try:
    for _ in range(5000):
        threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
        started += 1
except (RuntimeError, MemoryError):
    pass
print('started', started)
""",
    "output without end": "while True: print('x' * 1000)",
    "forged messages": """
import os, struct
for fd in range(3, 64):
    try:
        os.write(fd, struct.pack('>I', 1 << 31) + b'x' * 100)
    except OSError:
        pass
""",
    FORGED: """
import os, struct, json, stat
body = json.dumps({'error': None, 'output': '', 'value': '[' + '1,' * 4_000_000 + ']'}).encode()
for fd in range(3, 64):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            rest = struct.pack('>I', len(body)) + body
            while rest:
                rest = rest[os.write(fd, rest):]
    except OSError:
        pass
""",
    "namespaces of its own": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print('GOT' if libc.unshare(0x10000000) == 0 or libc.unshare(0x20000) == 0 else 'refused')
""",
    "mounts": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print('GOT' if libc.mount(b'proc', b'.', b'proc', 0, None) == 0 else 'refused')
""",
    "end the interpreter": "import os\nos._exit(0)",
    "crash the interpreter": "import ctypes\nctypes.string_at(0)",
}


ENDLESS = (
    "compute for ever, deaf to signals",
    "forged messages",
)


def held(name: str, seen: Any, files: list[str]) -> bool:
    """Whether the attack failed, from what the sandbox gave back."""
    output, error = seen.output, seen.error
    clean = not any(word in output for word in ("LEAK", "GOT", "CONNECTED", "FILLED", "CHANGED",
                                                "RAISED", "RAN"))  # fmt: skip
    match name:
        case "fork bomb":
            return "started 0" in output
        case "threads":
            started = output.partition("started ")[2]
            return error in ("timeout", "died") or int(started or "9999") < 200
        case "compute for ever, deaf to signals":
            return error == "timeout"
        case "kill the parent":
            return "alive" in output
        case "write outside":
            return output.strip() == "[]" and not any(os.path.exists(f) for f in files)
        case "memory bit by bit":
            return clean and error in ("MemoryError", "died")
        case "output without end":
            return len(output) < 6000 and error == "OSError" and "File too large" in output
        case "forged messages" | "end the interpreter" | "crash the interpreter":
            return error in ("died", "timeout") and len(output) < 500
        case "files on their way through a socket":
            return clean and error in ("OSError", "PermissionError", "died")
        case _ if name == FORGED:
            return seen.value is None
        case _ if name.startswith("fill the disk") or name == "folders without end":
            return clean and error in ("OSError", "died")
        case _:
            return clean and bool(output.strip()) and error is None


async def attack(name: str, tier: str, given: dict[str, Any]) -> list[Any]:
    from tutelage.tools.sandbox.client import Sandbox
    from tutelage.tools.sandbox.limits import SandboxLimits

    head = "\n".join(f"{key} = {value!r}" for key, value in given.items())
    # Long enough for a busy machine, short where the attack is to take for ever.
    seconds = 2.0 if name in ENDLESS else 20.0
    limits = SandboxLimits(seconds=seconds, memory=256 << 20, disk=8 << 20)
    async with Sandbox(limits, tier=tier) as sandbox:
        await sandbox.run(head)
        seen = await sandbox.run(ATTACKS[name])
        # Whatever happened, the sandbox works, again or still.
        after = await sandbox.run("print(1 + 1)")
    # A forged reply is one too many, so the one to the next code is what was asked before.
    works = after.output == "2\n" or name == FORGED
    good = held(name, seen, given["PLACES"]) and works
    return [good, f"{seen!r:.600} then {after!r:.200}"]


def left_over(marker: str) -> list[int]:
    """Processes whose command line holds `marker`."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if marker.encode() in file.read():
                        found.append(int(entry))
            except OSError:
                continue
    return found


async def main(tier: str) -> dict[str, Any]:
    from tutelage.tools.sandbox import spawn

    server: Any = await asyncio.to_thread(spawn.get_server, os.getpid())
    base = server._base
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, socket.socket() as listening:
        connected: list[Any] = []
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        path = os.path.join(folder, "socket")
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(path)
        unix.listen()

        def accept(attempt_session: socket.socket) -> None:
            try:
                connected.append(attempt_session.accept())
            except OSError:
                return

        for attempt_session in (listening, unix):
            threading.Thread(target=accept, args=(attempt_session,), daemon=True).start()
        mine = os.path.join(folder, "mine.txt")
        with open(mine, "w") as file:
            file.write(SECRET)
        os.chmod(mine, 0o644)
        os.chmod(folder, 0o755)
        with contextlib.suppress(OSError):  # some file systems have no attributes
            os.setxattr(mine, "user.note", SECRET.encode())
        link = os.path.join(folder, "link")
        os.symlink(mine, link)
        datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        datagrams.bind(os.path.join(folder, "datagrams"))
        datagrams.setblocking(False)
        given = {
            "SECRET_HALF": SECRET.partition("-secret")[0],
            "PIDS": [os.getpid(), server._process.pid],
            "PORT": listening.getsockname()[1],
            "PATH": path,
            "PLACES": [os.path.join(folder, "x"), "/tmp/../x", "/var/tmp/tutelage-attack", "/usr/x",
                       "/dev/shm/tutelage-attack", os.path.expanduser("~/tutelage-attack"),
                       os.path.join(base, "x"), "/etc/tutelage-attack"],
            "PROJECT": [os.path.join(sys.argv[1], "tutelage", "errors.py"), *installed()],
            "LINKS": [link],
            "DATAGRAMS": datagrams.getsockname(),
            "READABLE": [mine, "/etc/passwd", "/proc/1/environ", "/etc/hostname"],
        }  # fmt: skip
        for name in ATTACKS:
            try:
                results[name] = await attack(name, tier, given)
            except Exception as error:
                results[name] = [False, f"{type(error).__name__}: {error}"]
        with contextlib.suppress(BlockingIOError):
            connected.append(datagrams.recv(10))
        results["no connection arrived"] = [not connected, repr(connected)]
        unix.close()
        datagrams.close()
    await asyncio.sleep(0.3)
    running = left_over(base)
    results["nothing is left running"] = [running == [server._process.pid], repr(running)]
    folders = [f for f in os.listdir(base) if f != "root"]
    results["no folder is left"] = [not folders, repr(folders)]
    results["the server lives"] = [server.alive, ""]
    return results


def installed() -> list[str]:
    """A file of each of some packages that this interpreter has and nobody listed."""
    found = [importlib.util.find_spec(name) for name in ("pip", "pytest", "torch", "pydantic")]
    return [spec.origin for spec in found if spec is not None and spec.origin is not None]


if __name__ == "__main__":
    source = sys.argv[1]
    os.environ["OPENAI_API_KEY"] = SECRET
    for name in ("tutelage", "tutelage.tools", "tutelage.tools.sandbox"):
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(source, *name.split("."))]
        sys.modules[name] = module
    print(json.dumps(asyncio.run(main(sys.argv[2]))))
