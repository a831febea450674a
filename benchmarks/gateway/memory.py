"""Resident memory of one gateway over many requests of many attempts.

    python -m benchmarks.gateway.memory [--requests 100000]

Attempts are opened and closed as in a run: each has a session and a record of its own, and sends
its requests to a scripted model over a connection that stays open for the attempts after it. Prints
a line after each tenth; exit code 1 where the second half took more than 2 MB. Server and clients
are one process, so it is the memory of both.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
from pathlib import Path

from benchmarks.gateway.load import Connection, request
from benchmarks.gateway.run import machine

from tutelage.gateway import Gateway, ScriptedClient

REPLY, TURNS, MOST_MB = "It is 46.", 5, 2.0


def resident_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def attempt(gateway: Gateway, connection: Connection, number: int) -> None:
    """One attempt: five requests, each of which is on record when it closes."""
    chat = ScriptedClient([REPLY])
    session = gateway.open(f"rollout-{number}", "attempt-1", chat)
    sent = argparse.Namespace(
        path="/v1/chat/completions", port=gateway.port, key=session.api_key, model="policy"
    )
    connection.request = request(sent)
    for _ in range(TURNS):
        await connection.ask()
        answer = json.loads(connection.last)
        assert answer["choices"][0]["message"]["content"] == REPLY, answer
    await asyncio.wrap_future(gateway.submit(session.aclose()))
    assert len(chat.calls) == TURNS
    assert not connection.errors


async def measure(gateway: Gateway, requests: int, connections: int) -> list[float]:
    """Memory after each tenth."""
    loop, numbers = asyncio.get_running_loop(), itertools.count()
    opened = [
        (await loop.create_connection(lambda: Connection(b""), "127.0.0.1", gateway.port))[1]
        for _ in range(connections)
    ]
    memory: list[float] = []
    begin = time.perf_counter()

    async def work(connection: Connection) -> None:
        while (number := next(numbers)) < requests // TURNS:
            await attempt(gateway, connection, number)
            if (number + 1) % (requests // TURNS // 10) == 0:
                memory.append(resident_mb())
                spent = time.perf_counter() - begin
                print(f"{(number + 1) * TURNS:7,} {memory[-1]:6.1f} MB {spent:5.0f} s", flush=True)

    await asyncio.gather(*map(work, opened))
    return memory


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=16)
    args = parser.parse_args()
    print(machine())
    with Gateway() as gateway:
        print(f"      0 {resident_mb():6.1f} MB")
        memory = asyncio.run(measure(gateway, args.requests, args.connections))
    half = memory[len(memory) // 2 :]
    sys.exit(max(half) - half[0] > MOST_MB)


if __name__ == "__main__":
    main()
