"""A load generator: keep-alive connections that send one prepared request, as fast or as often as
they are told, and measure each answer. Runs as a process of its own; prints one JSON object.

With `--rate` requests start on a schedule, and a request's latency counts from when it was due, so
a server that falls behind cannot hide it. Without a rate each connection sends as soon as it has
its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import statistics
import time
from typing import Any


class Connection(asyncio.Protocol):
    """One connection; `ask` sends the request and waits for the whole answer."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self._waiting: asyncio.Future[None] | None = None
        self._buffer = b""
        self.errors = 0
        self.last = b""
        """The latest answer's body."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self) -> asyncio.Future[None]:
        self._waiting = asyncio.get_running_loop().create_future()
        if self._transport.is_closing():
            self._waiting.set_exception(ConnectionError("the server closed a connection at rest"))
        self._transport.write(self.request)
        return self._waiting

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self._buffer.lower().find(b"content-length:", 0, head)
        end = self._buffer.find(b"\r\n", at, head + 2)
        if len(self._buffer) < head + 4 + int(self._buffer[at + 15 : end]):
            return
        if not self._buffer.startswith(b"HTTP/1.1 200"):
            self.errors += 1
        self.last, self._buffer = self._buffer[head + 4 :], b""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError(f"the server closed: {error}"))


def request(args: argparse.Namespace) -> bytes:
    """The bytes that every request has."""
    body = json.dumps(
        {
            "model": args.model,
            "messages": [
                {"role": "system", "content": "You are a careful calculator."},
                {"role": "user", "content": "What is 12 + 34? " * 8},
            ],
        }
    )
    head = (
        f"POST {args.path} HTTP/1.1\r\nhost: 127.0.0.1:{args.port}\r\n"
        f"authorization: Bearer {args.key}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the load and sum it up; latencies in milliseconds."""
    loop = asyncio.get_running_loop()
    sent = request(args)
    connections = [
        (await loop.create_connection(lambda: Connection(sent), "127.0.0.1", args.port))[1]
        for _ in range(args.connections)
    ]
    latencies: list[float] = []
    # All at once: a slow server would close the first while it waits for the last.
    await asyncio.gather(*(connection.ask() for connection in connections))
    begin = time.perf_counter() + 0.01
    end = begin + args.seconds
    left = args.requests or 1 << 62

    async def closed(connection: Connection) -> None:
        nonlocal left
        while time.perf_counter() < end and left > 0:
            left -= 1
            start = time.perf_counter()
            await connection.ask()
            latencies.append(time.perf_counter() - start)

    async def paced(connection: Connection, number: int) -> None:
        due = begin + number / args.rate
        while due < end:
            wait = due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            await connection.ask()
            latencies.append(time.perf_counter() - due)
            due += len(connections) / args.rate

    work = [paced(c, i) if args.rate else closed(c) for i, c in enumerate(connections)]
    start = time.perf_counter()
    await asyncio.gather(*work)
    seconds = time.perf_counter() - start
    latencies.sort()
    cut = statistics.quantiles(latencies, n=100, method="inclusive")
    return {
        "requests": len(latencies),
        "seconds": seconds,
        "rate": len(latencies) / seconds,
        "median_ms": 1000 * cut[49],
        "p99_ms": 1000 * cut[98],
        "errors": sum(c.errors for c in connections),
        "answer": connections[0].last.decode()[:400],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", default="/v1/chat/completions")
    parser.add_argument("--key", default="none")
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--core", type=int, default=None)
    args = parser.parse_args()
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    factory = None
    if importlib.util.find_spec("uvloop") is not None:
        factory = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        print(json.dumps(runner.run(measure(args))))


if __name__ == "__main__":
    main()
