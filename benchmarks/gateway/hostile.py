"""The gateway against hostile clients: is each of them answered or ended, and are others served?

    python -m benchmarks.gateway.hostile

A `Gateway` in a process of its own is sent malformed bodies (those of real clients, changed at
random, in all four dialects), heads and bodies that trickle in, many streams at once, and clients
that ask for much and read nothing. Bars: no answer of 5xx and no malformed body without an answer;
slow senders and clients that stop reading are ended; all streams end as they should; a good request
is answered after each attack, and while senders trickle. Prints a table, and exits with 1 where a
bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import random
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from benchmarks.gateway.recording import whole
from benchmarks.gateway.run import Server, machine, wait_for

HERE = Path(__file__).parent
BODIES = HERE.parents[1] / "tests" / "gateway" / "bodies"
JSON = dict[str, Any]
GOOD: JSON = {"model": "scripted", "messages": [{"role": "user", "content": "What is 12 + 34?"}]}
PATIENCE = 30.0
"""Seconds after which a client that should have been answered, or ended, counts as forgotten."""
PAUSE = 0.3
"""Seconds between two bytes of a slow sender."""


@dataclass
class Siege:
    """What one kind of attack met."""

    name: str
    sent: int = 0
    statuses: Counter[str] = field(default_factory=Counter[str])
    missed: list[str] = field(default_factory=list[str])
    """Bars that were missed."""

    def count(self, outcome: int | str) -> None:
        """Note how one attempt ended."""
        kind = f"{outcome // 100}xx" if isinstance(outcome, int) else outcome
        self.statuses[kind] += 1
        self.sent += 1

    def expect(self, outcomes: int, what: str) -> None:
        """All attempts should have ended so."""
        if outcomes != self.sent:
            self.missed.append(f"{self.sent - outcomes} of {self.sent} were not {what}")


@dataclass(frozen=True)
class Target:
    """The gateway that is attacked."""

    server: Server
    keys: list[str]

    def head(self, length: int, path: str = "/v1/chat/completions", attempt: int = 0) -> bytes:
        """The head of a request."""
        key = self.keys[attempt % len(self.keys)]
        return (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\ncontent-length: {length}\r\n"
            "connection: close\r\n\r\n"
        ).encode()

    def request(self, body: JSON, attempt: int = 0) -> bytes:
        """A whole request."""
        content = json.dumps(body).encode()
        return self.head(len(content), attempt=attempt) + content

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A raw connection."""
        return await asyncio.open_connection("127.0.0.1", self.server.port)

    async def is_well(self) -> bool:
        """Whether a good request is answered well."""
        url = f"http://127.0.0.1:{self.server.port}/v1/chat/completions"
        headers = {"authorization": f"Bearer {self.keys[-1]}"}
        try:
            async with httpx2.AsyncClient(timeout=PATIENCE, headers=headers) as http:
                answer = await http.post(url, json=GOOD)
                return answer.status_code == 200 and bool(answer.json()["choices"])
        except (httpx2.HTTPError, KeyError, ValueError):
            return False


@contextmanager
def besieged() -> Generator[Target]:
    """The gateway in its process."""
    command = [sys.executable, str(HERE / "servers.py"), "besieged"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        wait_for(told["port"])
        server = Server("gateway", process.pid, told["port"], told["key"])
        yield Target(server, told["keys"])
    finally:
        process.kill()
        process.wait()


# ---------------------------------------------------------------- malformed bodies


DEEP: Any = json.loads("[" * 300 + "]" * 300)
JUNK: list[Any] = [
    None, True, False, -1, 0, 1e308, 1 << 70, "", "x" * 20_000, "\x00", "\ud800", [], {}, [None],
    [[[]]], {"type": "object", "$ref": "#"}, {"": {}}, "required", DEEP,
]  # fmt: skip


def real_requests() -> list[tuple[str, JSON]]:
    """Path and body of what real clients sent."""
    found: list[tuple[str, JSON]] = []
    for file in sorted(BODIES.glob("*.json")):
        for cell in json.loads(file.read_text("utf-8"))["cells"].values():
            found += [(r["path"], r["body"]) for r in whole(cell["requests"]) if r.get("body")]
    return found


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Each place in a body."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield (*path, name)
            yield from places(each, (*path, name))
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield (*path, i)
            yield from places(each, (*path, i))


def change(body: JSON, dice: random.Random) -> None:
    """Change one place of a body."""
    found = list(places(body))
    if not found:
        return
    *path, last = dice.choice(found)
    inside: Any = body
    for step in path:
        inside = inside[step]
    kind = dice.randrange(5)
    if kind == 0:
        del inside[last]
    elif kind == 1 and isinstance(inside, list):
        inside.insert(last, copy.deepcopy(inside[last]))
    elif kind == 2 and isinstance(inside, dict):
        inside[dice.choice(["nonsense", "type", "role", "content", "schema", "n"])] = inside[last]
    elif kind == 3:
        inside[last] = [inside[last]]
    else:
        inside[last] = copy.deepcopy(dice.choice(JUNK))


def broken(content: bytes, dice: random.Random) -> bytes:
    """Change the bytes of a body."""
    at = dice.randrange(len(content) + 1)
    return dice.choice([
        content[:at],
        content[:at] + dice.randbytes(4) + content[at:],
        content[:at] + dice.choice([b"NaN", b"1e999", b"{", b"]", b'"', b"\xff", b"\\u"])
        + content[at + 1 :],
        b"\xef\xbb\xbf" + content,
        content.decode("latin-1").encode("utf-16"),
        b"[" * 100_000,
        content + content,
        b"",
    ])  # fmt: skip


def malformed(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Paths and bodies, the same for a seed; each dialect is as frequent as any other."""
    dice = random.Random(seed)
    by_path: dict[str, list[JSON]] = {}
    for path, body in real_requests():
        by_path.setdefault(path, []).append(body)
    for i in range(count):
        path = sorted(by_path)[i % len(by_path)]
        # Of several models none has another name: what can be read is to be answered.
        body = copy.deepcopy(dice.choice(by_path[path])) | {"model": "scripted"}
        for _ in range(dice.randint(1, 3)):
            change(body, dice)
        content = json.dumps(body).encode()
        yield path, broken(content, dice) if dice.random() < 0.3 else content


async def send_malformed(target: Target, count: int, seed: int) -> Siege:
    """Bodies that no client should send."""
    siege = Siege("malformed bodies")
    waiting = malformed(count, seed)
    base = f"http://127.0.0.1:{target.server.port}"
    unnamed = 0

    async def work(http: httpx2.AsyncClient) -> None:
        nonlocal unnamed
        for number, (path, content) in enumerate(waiting):
            key = {"authorization": f"Bearer {target.keys[number % len(target.keys)]}"}
            try:
                answer = await http.post(base + path, content=content, headers=key)
            except httpx2.HTTPError:
                siege.count("no answer")
                continue
            siege.count(answer.status_code)
            unnamed += answer.status_code >= 400 and not told(answer)

    async with httpx2.AsyncClient(timeout=PATIENCE) as http:
        await asyncio.gather(*(work(http) for _ in range(16)))
    siege.expect(siege.sent - siege.statuses["no answer"], "answered")
    if unnamed:
        siege.missed.append(f"{unnamed} errors without a message")
    return siege


def told(answer: httpx2.Response) -> bool:
    """Whether an error says what is wrong."""
    try:
        return bool(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return False


# ---------------------------------------------------------------- slow and many


async def send_slowly(target: Target, count: int) -> Siege:
    """Heads and bodies that trickle: each is ended, while others are answered."""
    siege = Siege("slow senders")
    text = target.request(GOOD)
    head = target.head(10_000)

    async def trickle(at_once: bytes, rest: bytes) -> None:
        reader, writer = await target.connect()
        writer.write(at_once)
        answer = asyncio.ensure_future(reader.read())
        with suppress(ConnectionError):
            for byte in rest:
                if answer.done():
                    break
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.wait([answer], timeout=PAUSE)
        siege.count(await outcome(answer))
        writer.close()

    work = [trickle(b"", text) if i % 2 else trickle(head, b" " * 200) for i in range(count)]
    whole_work = asyncio.gather(*work)
    asked = answered = 0
    while not whole_work.done():
        asked += 1
        answered += await target.is_well()
        await asyncio.sleep(PAUSE)
    await whole_work
    if answered < asked:
        siege.missed.append(f"{asked - answered} of {asked} good requests failed meanwhile")
    siege.expect(siege.statuses["ended"] + siege.statuses["4xx"], "ended")
    return siege


async def outcome(answer: asyncio.Future[bytes]) -> int | str:
    """How the server ended a connection: a status, or without one."""
    try:
        data = await asyncio.wait_for(answer, PATIENCE)
    except TimeoutError:
        return "forgotten"
    except ConnectionError:
        return "ended"
    return status(data) or "ended"


def status(data: bytes) -> int | None:
    """Of an answer."""
    return int(data[9:12]) if data.startswith(b"HTTP/1.1 ") else None


async def open_streams(target: Target, count: int) -> Siege:
    """Streams that are all open before the first says a word."""
    siege = Siege("streams at once")
    at_once = most = whole_ones = 0

    async def one(number: int) -> None:
        nonlocal at_once, most, whole_ones
        try:
            reader, writer = await target.connect()
            writer.write(target.request(GOOD | {"model": "slow", "stream": True}, number))
            at_once += 1
            most = max(most, at_once)
            data = await asyncio.wait_for(reader.read(), 2 * PATIENCE)
            at_once -= 1
            siege.count(status(data) or "ended")
            whole_ones += b"data: [DONE]" in data
            writer.close()
        except (OSError, TimeoutError):
            siege.count("no answer")

    await asyncio.gather(*(one(i) for i in range(count)))
    siege.expect(whole_ones, "streamed to their end")
    if most < count:
        siege.missed.append(f"only {most} were open at once: the machine is too slow for this")
    return siege


async def stop_reading(target: Target, count: int) -> Siege:
    """Clients that ask for 8 MB, streamed and not, and read nothing."""
    siege = Siege("clients that stop reading")
    ended = select.poll()
    clients: dict[int, socket.socket] = {}
    for i in range(count):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", target.server.port))
        sock.sendall(target.request(GOOD | {"model": "huge", "stream": i % 2 == 0}, i))
        ended.register(sock, select.POLLRDHUP)
        clients[sock.fileno()] = sock
    end = time.monotonic() + PATIENCE
    while clients and time.monotonic() < end:
        for number, _ in await asyncio.to_thread(ended.poll, 500):
            ended.unregister(number)
            clients.pop(number).close()
            siege.count("ended")
    for sock in clients.values():
        sock.close()
        siege.count("forgotten")
    siege.expect(siege.statuses["ended"], "ended")
    return siege


# ---------------------------------------------------------------- the whole


COLUMNS = ("2xx", "4xx", "5xx", "ended", "no answer", "forgotten")


async def besiege(target: Target, args: argparse.Namespace) -> list[Siege]:
    """One attack after the other."""
    attacks: list[Callable[[], Any]] = [
        lambda: send_malformed(target, args.malformed, args.seed),
        lambda: send_slowly(target, args.slow),
        lambda: open_streams(target, args.streams),
        lambda: stop_reading(target, args.silent),
    ]
    print(f"| attack | clients | {' | '.join(COLUMNS)} | a good request afterwards | s | MB |")
    print(f"|---|{'---|' * (len(COLUMNS) + 4)}")
    found: list[Siege] = []
    for attack in attacks:
        begun = time.monotonic()
        siege: Siege = await attack()
        seconds = time.monotonic() - begun
        well = await target.is_well()
        if siege.statuses["5xx"]:
            siege.missed.append(f"{siege.statuses['5xx']} answers of 5xx")
        if not well:
            siege.missed.append("a good request was not answered afterwards")
        cells = [siege.name, f"{siege.sent:,}", *(f"{siege.statuses[c]:,}" for c in COLUMNS)]
        cells += ["answered" if well else "failed", f"{seconds:.0f}"]
        print(f"| {' | '.join(cells)} | {target.server.memory_mb():.0f} |", flush=True)
        found.append(siege)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--malformed", type=int, default=5000)
    parser.add_argument("--slow", type=int, default=200)
    parser.add_argument("--streams", type=int, default=1500)
    parser.add_argument("--silent", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    import resource  # which not every system has

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(f"{machine()}\n", flush=True)
    with besieged() as target:
        sieges = asyncio.run(besiege(target, args))
    missed = [f"{siege.name}: {words}" for siege in sieges for words in siege.missed]
    print("\n" + ("\n".join(f"missed: {each}" for each in missed) or "all bars are met"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
