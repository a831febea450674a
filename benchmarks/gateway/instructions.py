"""Instructions that a request at one connection takes, which other work cannot change.

    python -m benchmarks.gateway.instructions --before OTHER_CHECKOUT/src

valgrind's callgrind counts those of a process that serves a scripted reply and asks for it over a
socket, once with 100 requests and once with 500: the difference is that of 400, without the start.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import machine

FEW, MANY = 100, 500
REPLY = "The sum of 12 and 34 is 46, which I know without a calculator."
BODY = json.dumps(
    {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "What is 12 + 34?"}]}
).encode()


def ask(count: int) -> None:
    """Serve, and ask so often over one connection."""
    from tutelage.gateway import Gateway, ScriptedClient

    with Gateway() as gateway:
        session = gateway.open("r", "a", ScriptedClient([REPLY]))
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: */*\r\n"
            f"authorization: Bearer {session.api_key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(BODY)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", gateway.port)) as client:
            for _ in range(count):
                client.sendall(head.encode() + BODY)
                read(client)


def read(client: socket.socket) -> None:
    """Read one answer to its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += client.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    if not head.startswith(b"HTTP/1.1 200") or length is None:
        raise SystemExit(f"the answer is {data!r}")
    while len(body) < int(length[1]):
        body += client.recv(1 << 16)


def counted(source: Path, count: int) -> int:
    """Instructions of a process that asks so often, with the package of a source folder."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable]
    root = Path(__file__).resolve().parents[2]
    told = subprocess.run(
        [*command, "-m", "benchmarks.gateway.instructions", "--requests", str(count)],
        env=os.environ | {"PYTHONPATH": f"{source}:{root}", "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    found = re.search(r"refs: +([\d,]+)", told)
    if found is None:
        raise SystemExit(f"callgrind says {told!r}")
    return int(found[1].replace(",", ""))


def main() -> None:
    """Print the instructions of a request, before and now."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="the src folder of another checkout")
    parser.add_argument("--requests", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.requests is not None:
        ask(args.requests)
        return
    now = Path(__file__).resolve().parents[2] / "src"
    sources = [now] if args.before is None else [args.before.resolve(), now]
    each = [(counted(s, MANY) - counted(s, FEW)) / (MANY - FEW) for s in sources]
    print(machine())
    print(" to ".join(f"{count:,.0f}" for count in each), "instructions a request")
    if len(each) > 1:
        print(f"ratio {each[1] / each[0]:.3f} (bar 1.05)")


if __name__ == "__main__":
    main()
